"""Which settings may differ when a run is taken up again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from millpond.store.errors import ResumeError

_ABSENT = object()


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys: {"trainer": {"gamma": 0.99}} gives {"trainer.gamma": 0.99}."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def check_changes(
    old: Mapping[str, Any], new: Mapping[str, Any], may_change: Collection[str] | Callable[[str], bool]
) -> dict[str, tuple[Any, Any]]:
    """The settings that differ between a run's flat settings and those it is to be resumed with.

    Those that may not change are refused by name, all at once.
    """
    allowed = may_change if callable(may_change) else may_change.__contains__
    changes = {
        key: (old.get(key, _ABSENT), new.get(key, _ABSENT))
        for key in sorted({*old, *new})
        if old.get(key, _ABSENT) != new.get(key, _ABSENT)
    }
    refused = [
        f"{key}: {_show(before)} -> {_show(after)}" for key, (before, after) in changes.items() if not allowed(key)
    ]
    if refused:
        examples = f" (such as {', '.join(sorted(may_change)[:6])})" if not callable(may_change) and may_change else ""
        raise ResumeError(
            "a resumed run keeps the settings it began with; these may not change:\n  "
            + "\n  ".join(refused)
            + f"\nOnly lengths and logging{examples} may. For other settings start a new run; --from keeps the weights."
        )
    return {key: (_plain(before), _plain(after)) for key, (before, after) in changes.items()}


def _show(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)


def _plain(value: Any) -> Any:
    return None if value is _ABSENT else value

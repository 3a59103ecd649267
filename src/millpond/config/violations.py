"""What is wrong with a config: every violation at once, each with key, value, rule and fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millpond.errors import MillpondError

Overrides = Mapping[str, Any]


def show(value: Any) -> str:
    """A value as it reads best in a sentence."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def as_override(key: str, value: Any) -> str:
    """A key and its value as they are typed on the command line."""
    if isinstance(value, bool) or value is None:
        return f"{key}={show(value)}"
    if isinstance(value, (list, tuple)):
        return f"{key}=[{','.join(str(item) for item in value)}]"
    return f"{key}={value}"


def as_overrides(fix: Overrides) -> str:
    """Several keys as they are typed on the command line."""
    return " ".join(as_override(key, value) for key, value in fix.items())


@dataclass(frozen=True)
class Violation:
    """A rule that a config breaks. `keys` are all that the rule reads; `fixes` are sets of overrides, best first."""

    keys: tuple[str, ...]
    message: str
    fixes: tuple[Overrides, ...] = ()

    def __str__(self) -> str:
        if not self.fixes:
            return self.message
        choices = [as_overrides(fix) for fix in self.fixes]
        if len({tuple(fix) for fix in self.fixes}) == 1 and len(self.fixes[0]) == 1:  # one key: name it once
            choices[1:] = [choice.partition("=")[2] for choice in choices[1:]]
        return f"{self.message}; try {' or '.join(choices)}"


Values = Mapping[str, Any]  # every key of a recipe by its dotted name
Rule = Callable[[Values], Iterator[Violation]]


class ConfigError(MillpondError):
    """A config that cannot run. `fix` holds overrides that together mend every violation, where these are known."""

    def __init__(self, violations: list[Violation], fix: Overrides | None = None, source: str = "") -> None:
        self.violations = tuple(violations)
        self.fix = dict(fix) if fix else {}
        lines = [str(violation) for violation in violations]
        if len(lines) > 1:
            lines = [f"{len(lines)} settings{f' of {source}' if source else ''} are wrong:", *(f"- {x}" for x in lines)]
            if self.fix:
                lines.append(f"All of it mended: {as_overrides(self.fix)}")
        super().__init__("\n".join(lines))

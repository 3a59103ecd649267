"""Options of an environment: a mapping from a config file, turned into a frozen dataclass or refused with a reason."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from millpond.envs.errors import EnvError

Options = TypeVar("Options")


def parse_options(kind: type[Options], options: Mapping[str, Any], *, env_id: str) -> Options:
    """Make `kind`, a dataclass, of a mapping. Unknown names and wrong types are errors; nothing is converted
    except an int where a float is asked for and a list where a tuple is."""
    declared = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in options if name not in declared]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), declared, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else "."
        raise EnvError(f"env {env_id!r} has no option {unknown[0]!r}{meant} Its options are: {', '.join(declared)}")
    missing = [
        n for n, f in declared.items() if n not in options and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise EnvError(f"env {env_id!r} needs the option {missing[0]!r}; give it in the section env")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _typed(value, hints[name], name, env_id) for name, value in options.items()})


def _typed(value: Any, hint: Any, name: str, env_id: str) -> Any:
    for choice in _choices(hint):
        origin = typing.get_origin(choice) or choice
        if origin is typing.Literal:
            if value in typing.get_args(choice):
                return value
        elif origin is float and type(value) in (int, float):
            return float(value)
        elif origin is int and type(value) is int:
            return value
        elif origin is tuple and isinstance(value, list | tuple):
            return tuple(value)
        elif origin not in (int, float) and isinstance(origin, type) and isinstance(value, origin):
            return value
    expected = " or ".join(_name(choice) for choice in _choices(hint))
    raise EnvError(f"env {env_id!r}: option {name}={value!r} must be {expected}, not {type(value).__name__}")


def _choices(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _name(choice: Any) -> str:
    if choice is type(None):
        return "null"
    if typing.get_origin(choice) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(choice))
    return getattr(typing.get_origin(choice) or choice, "__name__", str(choice))


def require(rule_holds: bool, env_id: str, message: str) -> None:
    """Raise an EnvError unless the rule holds; the message names the option, its value, the rule and the fix."""
    if not rule_holds:
        raise EnvError(f"env {env_id!r}: {message}")

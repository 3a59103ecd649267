"""Errors of a config: every violation at once, each with key, value, rule and fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millpond.errors import MillpondError

Overrides = Mapping[str, Any]


def show(value: Any) -> str:
    """Format a value for a sentence: 4,096, true, null."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def as_override(key: str, value: Any) -> str:
    """Format a key and its value as they are typed on the command line."""
    if isinstance(value, bool) or value is None:
        return f"{key}={show(value)}"
    if isinstance(value, (list, tuple)):
        return f"{key}=[{','.join(str(item) for item in value)}]"
    return f"{key}={value}"


def as_overrides(fix: Overrides) -> str:
    """Format several keys as they are typed on the command line."""
    return " ".join(as_override(key, value) for key, value in fix.items())


@dataclass(frozen=True)
class Violation:
    """A rule that a config violates. `keys` are those that the rule reads; `fixes` are sets of overrides, best first."""

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
    """A config that cannot run. `fix` has overrides that together fix every violation, if they are known."""

    def __init__(self, violations: list[Violation], fix: Overrides | None = None, source: str = "") -> None:
        self.violations = tuple(violations)
        self.fix = dict(fix) if fix else {}
        lines = [str(violation) for violation in violations]
        if len(lines) > 1:
            lines = [f"{len(lines)} settings{f' of {source}' if source else ''} are wrong:", *(f"- {x}" for x in lines)]
            if self.fix:
                lines.append(f"To fix all of them: {as_overrides(self.fix)}")
        super().__init__("\n".join(lines))

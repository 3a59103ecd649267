"""Advice: what to change, why, and the overrides that do it. An override that is shown has been checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.config.check import mend
from millpond.config.violations import as_overrides


@dataclass(frozen=True)
class Advice:
    """`overrides` may be empty where there is something to know but nothing to set."""

    topic: str
    reason: str
    overrides: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}: {self.reason}" + (f" -> {as_overrides(dict(self.overrides))}" if self.overrides else "")


def advise(
    topic: str, reason: str, flat: Mapping[str, Any], written: set[str], overrides: Mapping[str, Any]
) -> list[Advice]:
    """The advice with its overrides completed until they are valid together; none where that is not possible."""
    whole = mend(flat, written, overrides)
    return [Advice(topic, reason, tuple(whole.items()))] if whole else []

"""What a report is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from millpond.report.facts import Facts
from millpond.report.markup import Markup


@dataclass(frozen=True)
class Block:
    """A part of the page with a heading. `folded` ones are opened with a click."""

    title: str
    body: Markup
    folded: bool = False


class Section(Protocol):
    """Makes a block of a run's facts, or None where the run has nothing to tell of it."""

    def __call__(self, facts: Facts, /) -> Block | None: ...

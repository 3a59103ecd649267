"""Which sections a report has, and in which order. A kind of trainer adds its own to `OF_KIND`."""

from __future__ import annotations

from millpond.report import settings
from millpond.report.curves import curves
from millpond.report.episode import episode
from millpond.report.evaluation import evaluations
from millpond.report.phases import phases
from millpond.report.saved import checkpoints
from millpond.report.section import Section
from millpond.report.stages import nine_stages
from millpond.report.summary import summary

FIRST: tuple[Section, ...] = (summary, episode, evaluations)
# What only one kind of recipe has to show, between its results and its curves.
OF_KIND: dict[str, tuple[Section, ...]] = {"ppo": (nine_stages,)}
LAST: tuple[Section, ...] = (curves, phases, checkpoints, settings.plan, settings.config, settings.host)


def sections(kind: str) -> tuple[Section, ...]:
    """All sections for a run of this kind; an unknown kind has those that every run has."""
    return (*FIRST, *OF_KIND.get(kind, ()), *LAST)

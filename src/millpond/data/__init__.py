"""Recorded episodes on disk: read lazily, drawn from fast, and audited before anything is learned from them."""

from millpond.data.audit import Finding, audit
from millpond.data.episodes import VECTOR, Episode, Episodes, Transitions
from millpond.data.errors import DataError
from millpond.data.fitting import refuse_unfit, unfit
from millpond.data.opening import IN_PACKAGE, open_episodes
from millpond.data.source import Field

__all__ = [
    "IN_PACKAGE",
    "VECTOR",
    "DataError",
    "Episode",
    "Episodes",
    "Field",
    "Finding",
    "Transitions",
    "audit",
    "open_episodes",
    "refuse_unfit",
    "unfit",
]

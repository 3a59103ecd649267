"""Recorded episodes on disk: read lazily, drawn from fast, and audited before anything is learned from them."""

from millpond.data.audit import AuditFinding, audit
from millpond.data.episodes import VECTOR, Episodes, RecordedEpisode, RecordedTransitions
from millpond.data.fitting import refuse_unfit, unfit
from millpond.data.opening import IN_PACKAGE, open_episodes
from millpond.data.source import ArrayField, DataError

__all__ = [
    "IN_PACKAGE",
    "VECTOR",
    "ArrayField",
    "AuditFinding",
    "DataError",
    "Episodes",
    "RecordedEpisode",
    "RecordedTransitions",
    "audit",
    "open_episodes",
    "refuse_unfit",
    "unfit",
]

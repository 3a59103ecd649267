"""Recorded episodes on disk: opened lazily, sampled fast, and audited before anything is learned from them.

episodes   `open_episodes`, and `Episodes`: what a trainer samples from, whatever the file layout
source     `EpisodeSource`, the protocol of all readers; how files are opened; the selection of observation fields
hdf5, demonstrations, npz, lake   the readers
audit      problems in the data, the objectives that it can serve, and the split into training and held-out episodes
survey     the single pass over the data that an audit is based on
"""

from millpond.data.audit import AuditFinding, audit, refuse_unfit, unfit
from millpond.data.episodes import VECTOR, Episodes, RecordedEpisode, RecordedTransitions, open_episodes
from millpond.data.source import IN_PACKAGE, ArrayField, DataError

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

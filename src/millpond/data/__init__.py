"""Recorded episodes on disk: opened lazily, sampled fast, and audited before anything is learned from them.

opening      `open_episodes`: a file, a folder of files, a lake, or a packaged dataset
episodes     `Episodes`: what a trainer samples from, whatever the file layout
source       `EpisodeSource`, the protocol of all readers, and the selection of observation fields
hdf5, demonstrations, minari, npz, lake   the readers
audit, survey   problems in the data, and the single pass over it that finds them
fitting      which objectives the data can serve; the split into training and held-out episodes
"""

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

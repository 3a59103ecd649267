"""Training by several processes (ranks) started by `torchrun`: collectives, checkpoints, and handling of lost ranks.

A single process uses `ALONE`, which calls no collective.
"""

from millpond.distributed.ranks import ALONE, Place, RankError, RankLostError, Ranks, join
from millpond.distributed.training import NoRecorder, PerRank, restore_over_ranks, save_over_ranks, training_over_ranks

__all__ = [
    "ALONE",
    "NoRecorder",
    "PerRank",
    "Place",
    "RankError",
    "RankLostError",
    "Ranks",
    "join",
    "restore_over_ranks",
    "save_over_ranks",
    "training_over_ranks",
]

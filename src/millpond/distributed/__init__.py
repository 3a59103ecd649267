"""Several processes that train one policy: which one this is, what they add up, and what happens when one dies.

Started by `torchrun`. A process on its own is `ALONE`, for which everything here is free: no collective is called.
"""

from millpond.distributed.checkpoints import PerRank, restore_over_ranks, save_over_ranks
from millpond.distributed.ranks import ALONE, Place, RankError, RankLostError, Ranks, join
from millpond.distributed.training import NoRecorder, training_over_ranks

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

"""Which of several processes this is. Imports nothing heavy, so that any command may ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from millpond.cores import usable_cores

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets all


@dataclass(frozen=True)
class Place:
    """One of `count` ranks, and one of the `local_count` of them that are on this machine."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @staticmethod
    def here(environment: Mapping[str, str] = os.environ) -> Place:
        """As torchrun says; on its own where nothing, or not all of it, is said."""
        if any(name not in environment for name in VARIABLES):
            return Place()
        return Place(*(int(environment[name]) for name in VARIABLES[:4]))

    @property
    def launcher(self) -> str:
        """What stands before `millpond` in a command that starts as many ranks; nothing for one."""
        return launcher(self.count, self.local_count)

    @property
    def cores(self) -> int:
        """Cores that fall to each rank of this machine, at least one."""
        allowed = usable_cores()
        return max(1, allowed // self.local_count)


def launcher(count: int, local_count: int | None = None) -> str:
    """The beginning of a command for `count` ranks, `local_count` on each machine (all on one where it is left out)."""
    each = local_count or count
    if count == 1:
        return ""
    nodes = f"--nnodes={count // each} " if count > each else ""
    # `--` ends torchrun's own options: it would take millpond's --run for an abbreviation of its --run-path.
    return f"torchrun {nodes}--nproc-per-node={each} -m -- "

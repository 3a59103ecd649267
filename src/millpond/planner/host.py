"""The machine that a plan is judged against."""

from __future__ import annotations

import os
from dataclasses import dataclass

from millpond.cores import usable_cores


@dataclass(frozen=True)
class Host:
    """Cores that this process may use, and memory in bytes (0: not known)."""

    cores: int
    memory: int

    @staticmethod
    def here() -> Host:
        cores = usable_cores()
        try:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError, AttributeError):
            memory = 0
        return Host(cores, memory)

"""The machine that a plan is judged against."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.cores import memory_bytes, usable_cores


@dataclass(frozen=True)
class Host:
    """Cores that this process may use, and memory in bytes (0: not known)."""

    cores: int
    memory: int

    @staticmethod
    def here() -> Host:
        return Host(usable_cores(), memory_bytes())

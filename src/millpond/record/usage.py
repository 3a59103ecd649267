"""Processor time and memory that this process and its worker processes use."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """Cores in use, on average since the last measurement, and bytes of memory; None if the system does not tell."""

    cores: float
    memory: int | None


class UsageMeter:
    """Measures this process and all its descendants; on systems other than Linux, this process alone."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # processor time by process
        self._measured_at = time.monotonic()
        self()

    def __call__(self) -> Usage:
        """Return what is in use. Memory that processes share is counted once."""
        now, seconds, memory = time.monotonic(), {os.getpid(): time.process_time()}, None
        if sys.platform == "linux":
            memory = _own_memory()
            for pid in descendants(os.getpid()):
                measured = measure_process(pid)
                if measured is not None:
                    seconds[pid] = measured[0]
                    memory += measured[1]
        used = sum(spent - self._seconds.get(pid, 0.0) for pid, spent in seconds.items())
        elapsed = max(now - self._measured_at, 1e-9)
        self._seconds, self._measured_at = seconds, now
        return Usage(used / elapsed, memory)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started (Linux)."""
    found: list[int] = []
    try:
        for task in (PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:  # it has just ended, or the kernel does not list children
        pass
    return found + [other for child in found for other in descendants(child)]


def _own_memory() -> int:
    return int((PROC / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_process(pid: int) -> tuple[float, int] | None:
    """Return seconds and unshared bytes of a process; None if it has ended."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        _, resident, shared, *_ = map(int, (PROC / str(pid) / "statm").read_text().split())
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), (resident - shared) * os.sysconf("SC_PAGE_SIZE")

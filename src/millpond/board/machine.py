"""Cores, memory and disk of this machine, and what each running run uses of them (Linux; elsewhere what the system tells)."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from millpond.cpu import usable_cores
from millpond.record.usage import descendants, measure_process

PROC = Path("/proc")


class MachineMeter:
    """Measures what is in use since its last call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._busy = _busy_seconds()
        self._processes: dict[int, float] = {}  # processor seconds by process
        self._at = time.monotonic()
        self._newest: dict[str, Any] = {}

    def __call__(self, processes: dict[str, int]) -> dict[str, Any]:
        """Return what is in use; `processes` are those of running runs by name. At most one measurement a second."""
        now = time.monotonic()
        if self._newest and now - self._at < 1.0:
            return self._newest
        elapsed, busy = max(now - self._at, 1e-3), _busy_seconds()
        used = None if busy is None or self._busy is None else max(0.0, (busy - self._busy) / elapsed)
        runs, seconds = {}, {}
        for name, pid in processes.items():
            cores = memory = 0.0
            for each in [pid, *descendants(pid)]:
                measured = measure_process(each)
                if measured is None:
                    continue
                seconds[each] = measured[0]
                cores += max(0.0, measured[0] - self._processes.get(each, measured[0])) / elapsed
                memory += measured[1]
            runs[name] = {"cores": round(cores, 2), "memory": memory}
        self._busy, self._processes, self._at = busy, seconds, now
        disk = shutil.disk_usage(self._folder)
        self._newest = {
            "cores": usable_cores(),
            "cores_in_all": os.cpu_count(),
            "busy_cores": None if used is None else round(used, 2),
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "memory": _memory(),
            "disk": {"used": disk.total - disk.free, "total": disk.total},
            "runs": runs,
        }
        return self._newest


def _busy_seconds() -> float | None:
    """Return the seconds that all cores together were busy since the machine started."""
    try:
        user, nice, system, _idle, _wait, *rest = map(int, (PROC / "stat").read_text().split("\n", 1)[0].split()[1:8])
    except (OSError, ValueError):
        return None
    return float(user + nice + system + sum(rest)) / float(os.sysconf("SC_CLK_TCK"))


def _memory() -> dict[str, int] | None:
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
        values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        return {"used": values["MemTotal"] - values["MemAvailable"], "total": values["MemTotal"]}
    except (OSError, ValueError, KeyError, IndexError):
        return None

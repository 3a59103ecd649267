"""State of a run (running, finished, stopped or failed), and the process that it belongs to."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from millpond.durable import replace_json


@dataclass(frozen=True)
class Process:
    """A process id is used again after a while; together with the time of its start it is not."""

    pid: int
    started: str
    host: str

    @staticmethod
    def this() -> Process:
        return Process(os.getpid(), start_of(os.getpid()) or "", socket.gethostname())

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """Whether it runs. On another machine that cannot be seen, and is believed."""
        return not self.here or start_of(self.pid) == self.started

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def start_of(pid: int) -> str | None:
    """When a process started, in whatever terms the system has; None when it is gone, or is a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():  # Linux
        try:
            # The name in parentheses may hold anything; after it come the state (field 3) and the start (field 22).
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if fields[0] in "ZX" else f"{boot} {fields[19]}"
    if sys.platform == "win32":
        return _start_on_windows(pid)
    asked = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    def _start_on_windows(pid: int) -> str | None:
        query = 0x1000  # PROCESS_QUERY_LIMITED_INFORMATION
        kernel = ctypes.WinDLL("kernel32")
        kernel.OpenProcess.restype = wintypes.HANDLE
        kernel.OpenProcess.argtypes = wintypes.DWORD, wintypes.BOOL, wintypes.DWORD
        kernel.GetProcessTimes.argtypes = wintypes.HANDLE, *[ctypes.POINTER(wintypes.FILETIME)] * 4
        kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
        process = kernel.OpenProcess(query, False, pid)
        if not process:
            return None
        try:
            start, end, system, user = (wintypes.FILETIME() for _ in range(4))
            known = kernel.GetProcessTimes(process, *map(ctypes.byref, (start, end, system, user)))
        finally:
            kernel.CloseHandle(process)
        ended = end.dwHighDateTime or end.dwLowDateTime
        return f"{start.dwHighDateTime} {start.dwLowDateTime}" if known and not ended else None


State = Literal["running", "finished", "stopped", "failed"]
FILE = "state.json"
SETTING_UP = "being set up"  # the note of a new run until it trains


@dataclass(frozen=True)
class RunStatus:
    """A run's state, since when, why, and the process that said so."""

    state: State
    note: str
    since: float
    process: Process


def write_status(folder: Path, state: State, note: str = "") -> None:
    replace_json(
        folder / FILE, {"state": state, "note": note, "since": time.time(), "process": Process.this().as_dict()}
    )


def read_status(folder: Path) -> RunStatus:
    """The state of a run. One that says it runs, but whose process is gone, has failed."""
    try:
        said = json.loads((folder / FILE).read_text())
        status = RunStatus(said["state"], said["note"], said["since"], Process(**said["process"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return RunStatus("failed", f"{FILE} cannot be read: {error}", folder.stat().st_mtime, Process(0, "", ""))
    if status.state == "running" and not status.process.is_alive():
        note = f"its process {status.process.pid} died without a word"
        if status.note == SETTING_UP:
            note = f"its process {status.process.pid} died while the run was being set up: nothing was trained"
        return RunStatus("failed", note, status.since, status.process)
    return status


def died_in_setup(folder: Path) -> bool:
    """True for the folder of a new run whose process died before it trained anything."""
    try:
        note = json.loads((folder / FILE).read_text())["note"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(note == SETTING_UP) and read_status(folder).state == "failed"

"""State of a run (running, finished, stopped or failed), and the process that it belongs to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from millpond.durable import replace_json
from millpond.safe_read import UnreadableFileError, is_count, is_finite_number, read_json_object


@dataclass(frozen=True)
class Process:
    """A process, identified by id, start time and host. An id alone may be reused after a while."""

    pid: int
    started: str
    host: str

    @staticmethod
    def this() -> Process:
        return Process(os.getpid(), process_start(os.getpid()) or "", socket.gethostname())

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def same_boot(self) -> bool:
        """True if it was started since this machine booted, perhaps in a container with another host name (Linux)."""
        boot = self.started.partition(" ")[0]
        return sys.platform == "linux" and boot == Process.this().started.partition(" ")[0]

    def is_alive(self) -> bool:
        """Return True if the process is running; one on another machine cannot be checked and counts as running."""
        return not self.here or process_start(self.pid) == self.started

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def process_start(pid: int) -> str | None:
    """Return the start time of a process in the format of the system; None if it has ended or is a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():  # Linux
        try:
            # The name in parentheses may contain anything; after it come the state (field 3) and the start (field 22).
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if fields[0] in "ZX" else f"{boot} {fields[19]}"
    if sys.platform == "win32":
        return _start_on_windows(pid)
    listing = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listing.stdout.strip() or None


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
STATE_FILE = "state.json"
SETTING_UP = "being set up"  # note of a new run until it trains
MAX_TIME = 1e11  # seconds since 1970 that can be shown as a date
MAX_PID = 1 << 31


@dataclass(frozen=True)
class RunStatus:
    """State of a run, when and why it changed, and the process that wrote it."""

    state: State
    note: str
    since: float
    process: Process


def write_status(folder: Path, state: State, note: str = "") -> None:
    """Write the state of a run; the record of its newest checkpoint stays."""
    fields = {"state": state, "note": note, "since": time.time(), "process": Process.this().as_dict()}
    checkpoint = recorded_checkpoint(folder)
    replace_json(folder / STATE_FILE, fields if checkpoint is None else {**fields, "checkpoint": checkpoint})


def record_checkpoint(folder: Path, updates: int) -> None:
    """Record durably that a run has written a checkpoint, so that its loss is noticed. A folder without state has none."""
    fields = _read_fields(folder)
    if fields is not None:
        replace_json(folder / STATE_FILE, {**fields, "checkpoint": updates})


def recorded_checkpoint(folder: Path) -> int | None:
    """Return the updates of the newest checkpoint that was written; None if none was, or by Millpond 0.2 or before."""
    checkpoint = (_read_fields(folder) or {}).get("checkpoint")
    return checkpoint if is_count(checkpoint) else None


def _read_fields(folder: Path) -> dict[str, Any] | None:
    try:
        return read_json_object(folder / STATE_FILE)
    except UnreadableFileError:
        return None


def read_status(folder: Path) -> RunStatus:
    """Read the state of a run. One that is marked as running, but whose process has ended, has failed."""
    try:
        status = _status_of(read_json_object(folder / STATE_FILE))
    except (UnreadableFileError, KeyError, TypeError) as error:
        note = str(error) if isinstance(error, UnreadableFileError) else f"{STATE_FILE} is not a state: {error}"
        return RunStatus("failed", note, folder.stat().st_mtime, Process(0, "", ""))
    if status.state == "running" and not status.process.is_alive():
        note = f"its process {status.process.pid} died without an error message"
        if status.note == SETTING_UP:
            note = f"its process {status.process.pid} died while the run was being set up: nothing was trained"
        return RunStatus("failed", note, status.since, status.process)
    return status


def _status_of(fields: dict[str, Any]) -> RunStatus:
    """Check the types of every field, which others show, compare and calculate with."""
    process = Process(**fields["process"])
    status = RunStatus(fields["state"], fields["note"], fields["since"], process)
    if status.state not in get_args(State):
        raise TypeError(f"state={status.state!r} is none of {', '.join(get_args(State))}")
    if not all(isinstance(text, str) for text in (status.note, process.started, process.host)):
        raise TypeError("note, process.started and process.host must be text")
    if not is_finite_number(status.since) or not 0 <= status.since <= MAX_TIME:
        raise TypeError(f"since={status.since!r} is not a time")
    if not is_count(process.pid, MAX_PID):
        raise TypeError(f"process.pid={process.pid!r} is not the id of a process")
    return status


def died_in_setup(folder: Path) -> bool:
    """Return True for the folder of a new run whose process died before it trained anything."""
    note = (_read_fields(folder) or {}).get("note")
    return bool(note == SETTING_UP) and read_status(folder).state == "failed"

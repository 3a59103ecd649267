"""Bytes that stay: whole writes at their places, syncs, full disks, and a lock that dies with its holder."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.durable import open_file, read_at, write_at
from millpond.replay.faults import LakeBusy, LakeFull

if TYPE_CHECKING:
    import sqlite3

try:
    import fcntl
except ImportError:  # Windows
    HAS_FLOCK = False
else:
    HAS_FLOCK = True

NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
LOCK_SECONDS = 0.01  # between two looks at a lock that is waited for, without flock


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`. A write may be cut short before it fails: go on until it is whole."""
    view = memoryview(data).cast("B")
    while view:
        written = write_at(fd, view, offset)
        view, offset = view[written:], offset + written


def sync(fd: int) -> None:
    """Bytes and size on the disk; times of access may stay behind."""
    os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)


def no_space(error: OSError, folder: Path, needed: int) -> LakeFull:
    """An error that names the folder, the bytes that were needed and those that there are."""
    try:
        free = f"{shutil.disk_usage(folder).free:,} bytes are free"
    except OSError:
        free = "the free space cannot be read"
    return LakeFull(
        f"{folder}: no space for an append of {needed:,} bytes ({os.strerror(error.errno or 0)}; {free}). "
        "What was acknowledged is kept. Free some space or set a lower max_bytes, then append again."
    )


class Lock:
    """An exclusive lock on a file, held until `release` or the death of the process, however it dies.

    It is `flock` where the system has it. Elsewhere it is the lock of an SQLite database beside the file: SQLite uses
    whatever the system offers, and locks of processes that died go with them there, too.
    """

    def __init__(self, path: Path, what: str, *, wait: bool = False) -> None:
        self.path = path
        self.fd = open_file(path, os.O_RDWR | os.O_CREAT)
        self._database: sqlite3.Connection | None = None
        try:
            if HAS_FLOCK:
                fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            else:
                self._database = _lock_database(path.with_name(f"{path.name}.sqlite"), wait)
        except BlockingIOError:
            pid = bytearray(20)
            count = read_at(self.fd, memoryview(pid), 0)
            holder = pid[:count].decode("ascii", "replace").strip() or "unknown"
            os.close(self.fd)
            raise LakeBusy(
                f"{what} is held by another process (pid {holder}); one writer a stream: close it, or use another stream"
            ) from None
        os.ftruncate(self.fd, 0)
        write_all(self.fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self.fd >= 0:
            if self._database is not None:
                self._database.close()
            os.close(self.fd)
            self.fd = -1


def _lock_database(path: Path, wait: bool) -> sqlite3.Connection:
    """Open a transaction that excludes all others; raise BlockingIOError if there is one and `wait` is False."""
    import sqlite3

    database = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
    while True:
        try:
            database.execute("BEGIN EXCLUSIVE")
            return database
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY":
                database.close()
                raise
            if not wait:
                database.close()
                raise BlockingIOError(errno.EAGAIN, "locked by another process") from error
            time.sleep(LOCK_SECONDS)

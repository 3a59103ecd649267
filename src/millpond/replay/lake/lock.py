"""The lock of a stream: released when its process ends, however it ends."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.durable import open_file, read_at, write_all
from millpond.replay.errors import LakeBusy

if TYPE_CHECKING:
    import sqlite3

try:
    import fcntl
except ImportError:  # Windows
    HAS_FLOCK = False
else:
    HAS_FLOCK = True

RETRY_SECONDS = 0.01  # between two attempts to take a lock, without flock


class Lock:
    """An exclusive lock on a file, held until `release` or until the process ends.

    It is `flock` if the system has it, else the lock of an SQLite database beside the file: SQLite uses what the system
    offers, and there, too, the locks of a process end with it.
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
                f"{what} is held by another process (pid {holder}); a stream has one writer: close it, or use another stream"
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
            time.sleep(RETRY_SECONDS)

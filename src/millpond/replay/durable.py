"""Bytes that stay: whole writes at their places, syncs, full disks, and a lock that dies with its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

from millpond.replay.faults import LakeBusy, LakeFull

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`. A write may be cut short before it fails: go on until it is whole."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(fd, view, offset)
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
    """An exclusive lock on a file, held until `release` or the death of the process, however it dies."""

    def __init__(self, path: Path, what: str, *, wait: bool = False) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.pread(self.fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self.fd)
            raise LakeBusy(
                f"{what} is held by another process (pid {holder}); one writer a stream: close it, or use another stream"
            ) from None
        os.ftruncate(self.fd, 0)
        write_all(self.fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

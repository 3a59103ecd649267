"""Durable and atomic writes: after a power cut a file has its old or its new content. Locks between processes.

Calls that only some systems have (pread, pwrite, O_DIRECTORY, flock) are used if available, and emulated if not. Only regular
files are opened, and an error names its file.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

try:
    import fcntl
except ImportError:  # Windows
    HAS_FLOCK = False
else:
    HAS_FLOCK = True

COPY_BYTES = 8 << 20
RETRY_SECONDS = 0.01  # between two attempts to take a lock, without flock
_seek_lock = threading.Lock()  # held while a file's position is moved, on systems without pread and pwrite


# Windows translates line ends without O_BINARY. Where a link or a pipe is put after it was looked for, do not follow or wait.
OPEN_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class NotARegularFile(OSError):
    """A link, pipe, device or folder stands where a file is expected."""


def is_regular(path: Path) -> bool:
    """True if there is a regular file at the path itself, not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def open_file(path: Path, flags: int) -> int:
    """Open or create a regular file of bytes and return its descriptor, which child processes do not inherit."""
    if not is_regular(path) and os.path.lexists(path):
        raise _not_regular(path)
    descriptor = os.open(path, flags | OPEN_FLAGS, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # the path named another file by now
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def _not_regular(path: Path) -> NotARegularFile:
    return NotARegularFile(errno.EINVAL, "not a regular file, so it is not opened", str(path))


def read_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Return the content of a regular file; raise an OSError if it has more than `max_bytes`."""
    file = DiskFile(path, os.O_RDONLY)
    try:
        size = file.size
        if max_bytes is not None and size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes; at most {max_bytes:,} are read", str(path))
        return bytes(file.read(0, size))
    finally:
        file.close()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to an OSError that has none: system calls on descriptors do not know it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


class DiskFile:
    """An open file of bytes, read and written at given positions; its errors name its path."""

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self.fd = -1
        self.fd = open_file(path, flags)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def read(self, offset: int, count: int) -> bytearray:
        """Return `count` bytes from `offset` on; fewer at the end of the file."""
        data = bytearray(max(min(count, self.size - offset), 0))
        left = memoryview(data)
        with naming(self.path):
            while left and (nbytes := read_at(self.fd, left, offset)):
                left, offset = left[nbytes:], offset + nbytes
        missing = len(left)
        left.release()
        del data[len(data) - missing :]
        return data

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of `data`, in several writes if one is short."""
        with naming(self.path):
            write_all(self.fd, data, offset)

    def sync(self) -> None:
        """Make the bytes and the size durable."""
        with naming(self.path):
            sync(self.fd)

    def truncate(self, size: int) -> None:
        with naming(self.path):
            os.ftruncate(self.fd, size)

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


def read_at(descriptor: int, target: memoryview, offset: int) -> int:
    """Read into `target` from `offset` and return the number of bytes, 0 at the end of the file."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, (target,), offset)
    if hasattr(os, "pread"):
        data = os.pread(descriptor, len(target), offset)
    else:
        with _seek_lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            data = os.read(descriptor, len(target))
    target[: len(data)] = data
    return len(data)


def write_at(descriptor: int, data: memoryview, offset: int) -> int:
    """Write at `offset` and return the number of bytes written, which may be less than all."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    with _seek_lock:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)


def write_all(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, in several writes if one is short."""
    view = memoryview(data).cast("B")
    while view:
        written = write_at(descriptor, view, offset)
        view, offset = view[written:], offset + written


def sync(descriptor: int) -> None:
    """Make a file's bytes and size durable; its access times need not be."""
    os.fdatasync(descriptor) if hasattr(os, "fdatasync") else os.fsync(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and make its bytes durable. Its name is durable once its folder is synced."""
    file = DiskFile(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with naming(path):
            left = memoryview(data)
            while left:  # a write may be short, for example on a disk that is nearly full
                left = left[os.write(file.fd, left) :]
            os.fsync(file.fd)
    finally:
        file.close()


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: needed after files were created or renamed.

    Windows cannot open a folder, and journals names itself.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and make their names durable.

    The name of a folder that exists is synced, too: whoever created it may have failed or died before that.
    """
    if not path.parent.is_dir():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically."""
    temporary = _temporary(path, data)
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_by_prefix(path: Path, size: int) -> None:
    """Replace a file by its first `size` bytes atomically; whoever has the old one open or mapped keeps all of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        source, target = DiskFile(path, os.O_RDONLY), DiskFile(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for begin in range(0, size, COPY_BYTES):
                target.write(source.read(begin, min(COPY_BYTES, size - begin)), begin)
            target.sync()
        finally:
            source.close()
            target.close()
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def create_file(path: Path, data: bytes) -> bool:
    """Create a complete file atomically; return False if there is one already, which is not changed."""
    temporary = _temporary(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def replace_json(path: Path, value: Any) -> None:
    replace_file(path, json.dumps(value, indent=2).encode() + b"\n")


def _temporary(path: Path, data: bytes) -> Path:
    """Write the bytes durably under another name in the same folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        write_file(temporary, data)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


@dataclass(frozen=True)
class LockHolder:
    """The process that holds, or last held, a lock. Host and time are unknown in files of Millpond 0.2 and before."""

    pid: int
    host: str = ""
    since: float | None = None

    @staticmethod
    def from_bytes(data: bytes) -> LockHolder | None:
        """Read the content of a lock's file; None if nobody has written it, or it is torn."""
        words = data.decode("utf-8", "replace").split()
        try:
            return LockHolder(int(words[0]), words[1], float(words[2])) if len(words) > 1 else LockHolder(int(words[0]))
        except (ValueError, IndexError):
            return None

    def to_bytes(self) -> bytes:
        return f"{self.pid} {self.host} {self.since}\n".encode()


class LockHeld(Exception):
    """Another process holds the lock, or another owner in this process; `holder` is None if it is unknown."""

    def __init__(self, path: Path, holder: LockHolder | None) -> None:
        super().__init__(f"{path} is locked by {holder}")
        self.holder = holder


class FileLock:
    """An exclusive lock on a file, held until `release` or until the process ends, however it ends.

    It is `flock` if the system has it, else the lock of an SQLite database beside the file: SQLite uses what the system
    offers, and there, too, the locks of a process end with it. Child processes do not hold it.
    `previous` is the process that held it before.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self.path = path
        self.fd = -1
        self._database: sqlite3.Connection | None = None
        self._take(wait)
        while not self._is_at_path():  # its folder was removed or renamed before the lock was taken
            self.release()
            self._take(wait)
        try:
            self.previous = self._holder()
            os.ftruncate(self.fd, 0)
            write_all(self.fd, LockHolder(os.getpid(), socket.gethostname(), time.time()).to_bytes(), 0)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self.fd >= 0:
            _held_locks.discard(self)
            if self._database is not None:
                self._database.close()
                self._database = None
            os.close(self.fd)
            self.fd = -1

    def _take(self, wait: bool) -> None:
        self.fd = open_file(self.path, os.O_RDWR | os.O_CREAT)
        _held_locks.add(self)
        try:
            if HAS_FLOCK:
                fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            else:
                self._database = _lock_database(self.path.with_name(f"{self.path.name}.sqlite"), wait)
        except BlockingIOError:
            time.sleep(RETRY_SECONDS)  # a process that has just taken it writes its name next
            holder = self._holder()
            self.release()
            raise LockHeld(self.path, holder) from None
        except BaseException:
            self.release()
            raise

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _holder(self) -> LockHolder | None:
        content = bytearray(400)
        return LockHolder.from_bytes(bytes(content[: read_at(self.fd, memoryview(content), 0)]))


_held_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _close_locks_after_fork() -> None:
    """Close a forked child's copies: with them it would hold the locks of a parent that was killed."""
    for lock in list(_held_locks):
        os.close(lock.fd)
        lock.fd = -1
    _held_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks_after_fork)


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

"""Writing so that after a power cut there is the old thing or the new thing; reading and writing at a position.

Python calls that only some systems have (pread, pwrite, O_DIRECTORY) are used where they are, and replaced where not.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

_seek_lock = threading.Lock()  # held while a file's position is moved, on systems without pread and pwrite


def open_file(path: Path, flags: int) -> int:
    """Open or create a file of bytes and return its descriptor, which child processes do not inherit."""
    return os.open(path, flags | getattr(os, "O_BINARY", 0), 0o644)  # without O_BINARY, Windows translates line ends


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


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`. A write may be cut short before it fails: go on until it is whole."""
    view = memoryview(data).cast("B")
    while view:
        written = write_at(fd, view, offset)
        view, offset = view[written:], offset + written


def sync(fd: int) -> None:
    """Bytes and size on the disk; times of access may stay behind."""
    os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and make its bytes durable. Its name is durable once its folder is synced."""
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        left = memoryview(data)
        while left:  # a write may be short, on a disk that is nearly full for one
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: needed after files were made or renamed.

    Windows cannot open a folder, and writes names through its own journal.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Put a file in the place of another in one step."""
    temporary = _temporary(path, data)
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def create_file(path: Path, data: bytes) -> bool:
    """Make a file that is there whole or not at all; False where there was one already, which stays."""
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
    """The bytes under another name in the same folder, on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        write_file(temporary, data)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary

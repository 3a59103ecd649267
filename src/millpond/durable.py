"""Durable and atomic writes: after a power cut a file has its old or its new content. Reads and writes at a position.

Calls that only some systems have (pread, pwrite, O_DIRECTORY) are used if available, and emulated if not.
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


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
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
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        left = memoryview(data)
        while left:  # a write may be short, for example on a disk that is nearly full
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: needed after files were created or renamed.

    Windows cannot open a folder, and journals names itself.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically."""
    temporary = _temporary(path, data)
    try:
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

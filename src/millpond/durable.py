"""Writing so that after a power cut there is the old thing or the new thing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and make its bytes durable. Its name is durable once its folder is synced."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(data)
        while left:  # a write may be short, on a disk that is nearly full for one
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: needed after files were made or renamed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Put a file in the place of another in one step."""
    temporary = _temporary(path, data)
    try:
        os.rename(temporary, path)
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

"""The arrays that a vector and its workers share."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import uuid
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers
from millpond.envs.spec import EnvSpec
from millpond.vector.layout import Layout, VectorError

ALIGNMENT = 64  # bytes: no two arrays share a cache line


class NamedFile:
    """A temporary file that other processes open by name, for systems without anonymous files (memfd)."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"millpond-{uuid.uuid4().hex}"
        self.fd = NamedFile.open(self.path, os.O_CREAT | os.O_EXCL)

    @staticmethod
    def open(path: Path, flags: int = 0) -> int:
        # Windows cannot remove a mapped file; with O_TEMPORARY it removes it when the last process closes it.
        return os.open(path, os.O_RDWR | flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_TEMPORARY", 0), 0o600)

    def read_text(self) -> str:
        os.lseek(self.fd, 0, os.SEEK_SET)
        return os.read(self.fd, 1 << 20).decode(errors="replace")

    def close(self) -> None:
        os.close(self.fd)
        if not hasattr(os, "O_TEMPORARY"):
            self.path.unlink(missing_ok=True)


@dataclass
class Arena:
    """All arrays that trainer and workers read and write.

    `progress` holds, for each env batch, the env that it is stepping, counted within the batch; -1 if unknown.
    """

    buffers: Buffers
    seeds: npt.NDArray[np.uint64]  # [num_envs]
    progress: npt.NDArray[np.int64]  # [shards]
    fd: int = -1  # the mapped file, if other processes share the arrays
    file: NamedFile | None = None  # that file, if it has a name

    @staticmethod
    def local(spec: EnvSpec, layout: Layout) -> Arena:
        """Allocate in the memory of this process."""
        arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in _arrays(spec, layout).items()}
        return Arena(*_split(arrays))

    @staticmethod
    def shared(spec: EnvSpec, layout: Layout) -> Arena:
        """Allocate in an anonymous file, which is freed with the last process that holds it (Linux)."""
        _require_room(spec, layout, _available_bytes(), "of shared memory")
        fd = os.memfd_create("millpond-vector", os.MFD_CLOEXEC)
        try:
            # allocated now, so that a lack of memory shows here and not in the middle of a run
            os.posix_fallocate(fd, 0, _size(spec, layout))
        except OSError:
            os.close(fd)
            raise
        return Arena.attach(fd, spec, layout)

    @staticmethod
    def in_named_file(spec: EnvSpec, layout: Layout) -> Arena:
        """Allocate in a file in the folder for temporary files."""
        folder = tempfile.gettempdir()
        _require_room(spec, layout, shutil.disk_usage(folder).free, f"in {folder}")
        file = NamedFile()
        try:
            os.ftruncate(file.fd, _size(spec, layout))
            arena = Arena.attach(file.fd, spec, layout)
        except BaseException:
            file.close()
            raise
        arena.file = file
        return arena

    @staticmethod
    def attach(fd: int, spec: EnvSpec, layout: Layout) -> Arena:
        """Map the arrays in the file `fd`."""
        memory = mmap.mmap(fd, _size(spec, layout))
        arrays: dict[str, npt.NDArray[Any]] = {}
        offset = 0
        for name, (shape, dtype) in _arrays(spec, layout).items():
            arrays[name] = np.ndarray(shape, dtype, buffer=memory, offset=offset)
            offset += _aligned(arrays[name].nbytes)
        return Arena(*_split(arrays), fd=fd)

    def close(self) -> None:
        """Close the file. The mapping is freed with the last view of it."""
        if self.file is not None:
            self.file.close()
        elif self.fd >= 0:
            os.close(self.fd)
        self.fd, self.file = -1, None


def _require_room(spec: EnvSpec, layout: Layout, free: int, where: str) -> None:
    size = _size(spec, layout)
    if size > free:
        raise VectorError(
            f"the buffers of {layout.num_envs:,} envs of {spec.id} need {size:,} bytes {where}, and {free:,} are free; "
            f"use fewer envs"
        )


def _available_bytes() -> int:
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _arrays(spec: EnvSpec, layout: Layout) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    return Buffers.layout(spec, layout.num_envs) | {
        "seeds": ((layout.num_envs,), np.dtype(np.uint64)),
        "progress": ((len(layout.shards),), np.dtype(np.int64)),
    }


def _split(arrays: dict[str, npt.NDArray[Any]]) -> tuple[Buffers, npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    buffers = Buffers(**{field.name: arrays[field.name] for field in fields(Buffers)})
    return buffers, arrays["seeds"], arrays["progress"]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _size(spec: EnvSpec, layout: Layout) -> int:
    sizes = (int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in _arrays(spec, layout).values())
    return sum(map(_aligned, sizes)) + ALIGNMENT  # an empty array at the end still needs a valid offset

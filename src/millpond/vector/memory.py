"""The arrays that a vector and its workers share."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.spec import EnvSpec
from millpond.envs.world import Buffers
from millpond.vector.crash import VectorError
from millpond.vector.layout import Layout

ALIGNMENT = 64  # bytes: arrays of two workers never share a cache line at their beginning


@dataclass
class Arena:
    """Everything that both sides read and write.

    `progress` holds, for each world, the env that it is busy with, counted within the world; -1 where unknown.
    """

    buffers: Buffers
    seeds: npt.NDArray[np.uint64]  # [num_envs]
    progress: npt.NDArray[np.int64]  # [shards]
    fd: int = -1  # the anonymous file behind the arrays, where other processes share them

    @staticmethod
    def local(spec: EnvSpec, layout: Layout) -> Arena:
        """In the memory of this process."""
        arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in _arrays(spec, layout).items()}
        return Arena(*_split(arrays))

    @staticmethod
    def shared(spec: EnvSpec, layout: Layout) -> Arena:
        """In an anonymous file, which has no name and vanishes with the last process that holds it."""
        if not hasattr(os, "memfd_create"):
            raise VectorError("vector.backend=processes needs Linux (memfd_create); use inline or threads here")
        size, free = _size(spec, layout), _available_bytes()
        if size > free:
            raise VectorError(
                f"the buffers of {layout.num_envs:,} envs of {spec.id} need {size:,} bytes of shared memory, and "
                f"{free:,} are free; use fewer envs"
            )
        fd = os.memfd_create("millpond-vector", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size)  # taken now, so that a lack shows here and not in the middle of a run
        except OSError:
            os.close(fd)
            raise
        return Arena.attach(fd, spec, layout)

    @staticmethod
    def attach(fd: int, spec: EnvSpec, layout: Layout) -> Arena:
        """The arrays in the file `fd`."""
        memory = mmap.mmap(fd, _size(spec, layout))
        arrays: dict[str, npt.NDArray[Any]] = {}
        offset = 0
        for name, (shape, dtype) in _arrays(spec, layout).items():
            arrays[name] = np.ndarray(shape, dtype, buffer=memory, offset=offset)
            offset += _aligned(arrays[name].nbytes)
        return Arena(*_split(arrays), fd=fd)

    def close(self) -> None:
        """Give up the file. The mapping lives as long as somebody holds a view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


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
    return sum(map(_aligned, sizes)) + ALIGNMENT  # an array of no elements may come last and still needs a place

"""Limits of this machine that stages are compared with: matrix products, memory copies, disk; and FLOP counts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from millpond.bench.timing import Effort, median_seconds
from millpond.processor import can_use_bfloat16
from millpond.threads import torch_threads

SMALL_MATRIX = 256
MAX_PRODUCT_SECONDS = 0.5
BLOCK_BYTES = 4 << 20  # written or read in one call
FORWARD_AND_BACKWARD = 3  # backward has two products for each one forward: gradients of inputs and of weights


@dataclass(frozen=True)
class Limits:
    """Operations or bytes per second. The product of an n x k and a k x m matrix is 2 n k m operations."""

    float32: float
    bfloat16: float  # 0 where it does not work
    memory: float  # bytes copied
    disk_write: float  # until they are on the disk
    disk_read: float  # not from the page cache

    def products(self, precision: str) -> float:
        """Return the operations per second of matrix products."""
        return self.bfloat16 if precision == "bfloat16" else self.float32


def measure_limits(effort: Effort, folder: Path) -> Limits:
    """Measure with all torch threads; the disk is the one that holds `folder`."""
    write, read = _disk(effort, folder)
    return Limits(
        float32=_products(effort, torch.float32),
        bfloat16=_products(effort, torch.bfloat16) if can_use_bfloat16() else 0.0,
        memory=_memory(effort),
        disk_write=write,
        disk_read=read,
    )


def count_flops(work: Callable[[], object]) -> float:
    """Count the floating-point operations of the matrix products and convolutions in a call, run in this thread alone."""
    in_place: dict[Any, Any] = {torch.ops.aten.addmm_: _addmm_flops}  # the one product that torch does not count
    counted = FlopCounterMode(display=False, custom_mapping=in_place)
    with torch_threads(1), counted as counter:
        work()
    return float(counter.get_total_flops())


def _addmm_flops(
    target: torch.Size, left: torch.Size, right: torch.Size, *, out_shape: Any = None, **scales: Any
) -> int:
    return 2 * left[0] * left[1] * right[1]


def _products(effort: Effort, dtype: torch.dtype) -> float:
    """Return operations per second. Matrices are smaller where bfloat16 is emulated, so that the measurement ends."""
    size = min(SMALL_MATRIX, effort.matrix_size)
    rate = _product_rate(size, dtype, 2)
    while size * 2 <= effort.matrix_size and 2 * (size * 2) ** 3 / rate < MAX_PRODUCT_SECONDS:
        size *= 2
    return _product_rate(size, dtype, effort.repeats)


def _product_rate(size: int, dtype: torch.dtype, repeats: int) -> float:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(size, size, generator=generator).to(dtype) for _ in range(2))
    out = torch.empty(size, size, dtype=dtype)
    return 2 * size**3 / median_seconds(lambda: torch.mm(left, right, out=out), repeats)


def _memory(effort: Effort) -> float:
    source = torch.ones(effort.copy_bytes, dtype=torch.uint8)
    target = torch.zeros_like(source)
    return effort.copy_bytes / median_seconds(lambda: target.copy_(source), effort.repeats)


def _disk(effort: Effort, folder: Path) -> tuple[float, float]:
    """Return bytes per second of writing and of reading a file."""
    blocks = max(1, effort.write_bytes // BLOCK_BYTES)
    size = min(BLOCK_BYTES, effort.write_bytes)
    noise, buffer = os.urandom(size), bytearray(size)  # noise, so that a compressing file system gains nothing
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        descriptor = file.fileno()

        def write() -> None:
            os.lseek(descriptor, 0, os.SEEK_SET)
            for _ in range(blocks):
                left = memoryview(noise)
                while left:
                    left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)

        def drop_page_cache() -> None:
            os.lseek(descriptor, 0, os.SEEK_SET)
            if hasattr(os, "posix_fadvise"):  # elsewhere reads come from the page cache and look faster than the disk
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

        def read() -> None:
            while file.readinto(buffer):
                pass

        repeats = min(3, effort.repeats)
        write_seconds = median_seconds(write, repeats)
        return blocks * size / write_seconds, blocks * size / median_seconds(read, repeats, drop_page_cache)

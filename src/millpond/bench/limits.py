"""What this machine can do at most: products, copies, disk. Stages are measured against these."""

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
from millpond.policies.products import through_torch
from millpond.policies.threads import torch_threads
from millpond.processor import can_use_bfloat16

SMALL_MATRIX = 256
LONGEST_PRODUCT = 0.5  # seconds
BLOCK = 4 << 20  # bytes written or read in one call


@dataclass(frozen=True)
class Limits:
    """Operations or bytes a second. A product of a matrix with n x k and k x m numbers is 2 n k m operations."""

    float32: float
    bfloat16: float  # 0 where it does not work
    memory: float  # bytes copied
    disk_write: float  # until they are on the disk
    disk_read: float  # not from the page cache

    def products(self, precision: str) -> float:
        return self.bfloat16 if precision == "bfloat16" else self.float32


def measure_limits(effort: Effort, folder: Path) -> Limits:
    """With all of torch's threads; the disk is the one that holds `folder`."""
    write, read = _disk(effort, folder)
    return Limits(
        float32=_products(effort, torch.float32),
        bfloat16=_products(effort, torch.bfloat16) if can_use_bfloat16() else 0.0,
        memory=_memory(effort),
        disk_write=write,
        disk_read=read,
    )


def _products(effort: Effort, dtype: torch.dtype) -> float:
    """Operations a second. A processor that only emulates bfloat16 is given smaller matrices, so that it ends."""
    side = min(SMALL_MATRIX, effort.matrix)
    rate = _product_rate(side, dtype, 2)
    while side * 2 <= effort.matrix and 2 * (side * 2) ** 3 / rate < LONGEST_PRODUCT:
        side *= 2
    return _product_rate(side, dtype, effort.repeats)


def _product_rate(side: int, dtype: torch.dtype, repeats: int) -> float:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(side, side, generator=generator).to(dtype) for _ in range(2))
    out = torch.empty(side, side, dtype=dtype)
    return 2 * side**3 / median_seconds(lambda: torch.mm(left, right, out=out), repeats)


def _memory(effort: Effort) -> float:
    source = torch.ones(effort.copied, dtype=torch.uint8)
    target = torch.zeros_like(source)
    return effort.copied / median_seconds(lambda: target.copy_(source), effort.repeats)


def _disk(effort: Effort, folder: Path) -> tuple[float, float]:
    blocks = max(1, effort.written // BLOCK)
    size = min(BLOCK, effort.written)
    noise, into = os.urandom(size), bytearray(size)  # noise: a file system that compresses gains nothing
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        descriptor = file.fileno()

        def write() -> None:
            os.lseek(descriptor, 0, os.SEEK_SET)
            for _ in range(blocks):
                left = memoryview(noise)
                while left:
                    left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)

        def forget() -> None:
            os.lseek(descriptor, 0, os.SEEK_SET)
            if hasattr(os, "posix_fadvise"):  # elsewhere the page cache answers, and reads look faster than the disk
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

        def read() -> None:
            while file.readinto(into):
                pass

        repeats = min(3, effort.repeats)
        written = median_seconds(write, repeats)
        return blocks * size / written, blocks * size / median_seconds(read, repeats, forget)


# -- Counting the floating-point operations of matrix products and convolutions, which stages are measured against.

BACKWARD_TOO = 3  # for each product forward, one for the inputs' gradient and one for the weights'


def operations(work: Callable[[], object]) -> float:
    """Floating-point operations of the matrix products in a call, which is made in this thread alone."""
    in_place: dict[Any, Any] = {torch.ops.aten.addmm_: _product_operations}  # torch counts all but this one
    counted = FlopCounterMode(display=False, custom_mapping=in_place)
    with torch_threads(1), through_torch(), counted as counter:
        work()
    return float(counter.get_total_flops())


def _product_operations(
    target: torch.Size, left: torch.Size, right: torch.Size, *, out_shape: Any = None, **scales: Any
) -> int:
    return 2 * left[0] * left[1] * right[1]

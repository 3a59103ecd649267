"""Measuring: timing of calls, the machine's limits, and stages that several kinds share.

A timing is the median of several calls after a warm-up that does not count. Stages are compared with limits: matrix products
(FLOPs are counted), memory copies, the disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.flop_counter import FlopCounterMode

from millpond.envs.spec import ActionSpec, EnvSpec
from millpond.loop import LevelEnd, Loop
from millpond.processor import can_use_bfloat16
from millpond.replay import Lake, Schema, Steps
from millpond.threads import torch_threads
from millpond.vector import Vector

Progress = Callable[[str], object]  # called with a description of what is measured next
MAX_SECONDS = 40.0  # of real rounds or cycles; after that no further one starts
SMALL_MATRIX = 256
MAX_PRODUCT_SECONDS = 0.5
BLOCK_BYTES = 4 << 20  # written or read in one call
FORWARD_AND_BACKWARD = 3  # backward has two products for each one forward: gradients of inputs and of weights
SAMPLE_SIZE = 256  # transitions of a batch
MIN_APPEND_BYTES = 32 << 20  # so that more than the sync is measured
MAX_APPEND_STEPS = 512


@dataclass(frozen=True)
class Effort:
    """Amount of measuring. `quick` is for trying the command: its numbers mean nothing."""

    repeats: int = 7  # timings of each piece of work; their median counts
    iterations: int | None = None  # real iterations that are timed; None: as many as their size allows
    matrix_size: int = 2_048  # rows and columns of the matrices that are multiplied
    copy_bytes: int = 256 << 20
    write_bytes: int = 256 << 20
    calls: int = 48  # forward passes in one timing
    updates: int = 6  # training steps in one timing

    @staticmethod
    def quick() -> Effort:
        small = 4 << 20
        return Effort(repeats=2, iterations=1, matrix_size=256, copy_bytes=small, write_bytes=small, calls=2, updates=1)


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of several timings or ratios."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Stage:
    """A stage, measured alone. Seconds are per iteration (round, cycle), or per call if the stage is not part of one."""

    name: str
    alone: float  # seconds
    amount: float  # units in that time
    unit: str
    limit: str  # what bounds it; empty if nothing does
    at_best: float | None  # seconds at its limit
    together: float | None = None  # seconds within a real iteration, if timed there
    in_iteration: bool = True

    @property
    def rate(self) -> float:
        return self.amount / self.alone

    @property
    def of_limit(self) -> float | None:
        return None if self.at_best is None else self.at_best / self.alone


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median_seconds(work: Callable[[], object], repeats: int, before: Callable[[], object] | None = None) -> float:
    """Return the median seconds of a call after one that does not count. `before` runs before each call, untimed."""
    seconds = []
    for _ in range(repeats + 1):
        if before is not None:
            before()
        seconds.append(timed(work))
    return median(seconds[1:])


def limit_seconds(loop: Loop, level: str, progress: Progress, seconds: float = MAX_SECONDS) -> None:
    """Report each item of `level`, and stop the loop after some time, but not before the second item has ended."""
    began = time.monotonic()

    def at_end(ended: LevelEnd) -> None:
        progress(f"a {level}")
        if ended.number >= 1 and time.monotonic() - began > seconds:
            loop.stop("measured")

    loop.at_end(level, at_end)
    progress(f"a {level}, to warm up")


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


class RandomActions:
    """Writes random actions, drawn once per shape. With an action mask it takes the first valid action of each choice."""

    def __init__(self, spec: ActionSpec) -> None:
        self.spec, self.rng = spec, np.random.default_rng(0)
        self.by_shape: dict[tuple[int, ...], npt.NDArray[Any]] = {}

    def __call__(self, out: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> None:
        if mask.shape[-1]:
            first = np.cumsum((0, *self.spec.sizes))
            actions = [mask[..., low:high].argmax(-1) for low, high in pairwise(first)]
            choices = np.stack(actions, -1) if actions else np.zeros((*mask.shape[:-1], 0))
            out[...] = self.spec.join(choices, np.zeros((*mask.shape[:-1], len(self.spec.low))))
            return
        if out.shape not in self.by_shape:
            self.by_shape[out.shape] = self._draw(out.shape).astype(out.dtype)
        np.copyto(out, self.by_shape[out.shape])

    def _draw(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        spec, lead = self.spec, shape[: len(shape) - len(self.spec.shape)]
        choices = self.rng.integers(0, np.array(spec.sizes, np.int64), (*lead, len(spec.sizes)))
        return spec.join(choices, self.rng.uniform(spec.low, spec.high, (*lead, len(spec.low))))


class RandomSteps:
    """Steps vectors with random actions."""

    def __init__(self, vectors: list[Vector]) -> None:
        self.players = [(vector, RandomActions(vector.spec.action)) for vector in vectors]

    def __call__(self, count: int) -> None:
        """Take `count` steps of every env of each vector; the last ones are sent but not yet received."""
        for _ in range(count):
            for vector, write_actions in self.players:
                for _ in range(vector.groups):
                    batch = vector.recv()
                    write_actions(batch.action, batch.action_mask)
                    vector.send()

    def end_round(self) -> None:
        """Receive the last steps, so that a run or another stage can continue."""
        for vector, _ in self.players:
            for _ in range(vector.groups):
                vector.recv()
            vector.end_round()


def measure_lake(
    spec: EnvSpec, observations: npt.NDArray[Any], limits: Limits, effort: Effort, folder: Path
) -> tuple[Stage, Stage]:
    """Measure synced appends of real observations [T, lanes, *observation], then samples from the page cache."""
    min_bytes = MIN_APPEND_BYTES if effort.copy_bytes > MIN_APPEND_BYTES else 1
    times = max(1, min(MAX_APPEND_STEPS // len(observations), -(-min_bytes // observations.nbytes)))
    observation = np.ascontiguousarray(np.tile(observations, (times, *([1] * (observations.ndim - 1)))))
    shape = observation.shape[:2]
    terminated = np.random.default_rng(0).random(shape) < 0.005
    action = np.zeros((*shape, *spec.action.shape), spec.action.dtype)
    steps = Steps(observation, action, np.zeros(shape, np.float32), terminated, np.zeros(shape, bool))
    count, schema = shape[0] * shape[1], Schema.from_spec(replace(spec, action_masks=False))
    with tempfile.TemporaryDirectory(dir=folder) as scratch, Lake.create(Path(scratch) / "lake", schema) as lake:
        with lake.writer("bench", shape[1]) as writer:
            append = median_seconds(lambda: writer.append(steps), effort.repeats)
        stored = sum(path.stat().st_size for path in lake.folder.rglob("*") if path.is_file()) / (effort.repeats + 1)
        lake.refresh()
        rng = np.random.default_rng(0)
        for _ in range(effort.repeats):
            lake.sample(SAMPLE_SIZE, rng)
        sample = median_seconds(lambda: lake.sample(SAMPLE_SIZE, rng), 10 * effort.repeats)
    moved = 2 * SAMPLE_SIZE * spec.observation.nbytes
    return (
        Stage("lake append", append, count, "transitions", "disk", stored / limits.disk_write, None, False),
        Stage("lake sample", sample, SAMPLE_SIZE, "transitions", "memory", moved / limits.memory, None, False),
    )

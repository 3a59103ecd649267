"""Timing: a warm-up that does not count, then the median of several calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from millpond.loop import LevelEnd, Loop

Progress = Callable[[str], object]  # called with a description of what is measured next
MAX_SECONDS = 40.0  # of real rounds or cycles; after that no further one starts


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


def limit_seconds(loop: Loop, level: str, progress: Progress) -> None:
    """Report each item of `level`, and stop the loop after `MAX_SECONDS`, but not before the second item has ended."""
    began = time.monotonic()

    def at_end(ended: LevelEnd) -> None:
        progress(f"a {level}")
        if ended.number >= 1 and time.monotonic() - began > MAX_SECONDS:
            loop.stop("measured")

    loop.at_end(level, at_end)
    progress(f"a {level}, to warm up")

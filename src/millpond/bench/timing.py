"""Taking times: once to warm up, then several times, and the median counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from millpond.loop import LevelEnd, Loop

Watch = Callable[[str], object]  # told what is being measured
LONGEST = 40.0  # seconds of real rounds or cycles after which no further one is begun


@dataclass(frozen=True)
class Effort:
    """How much is measured. `quick` is for trying the command out: its figures say nothing."""

    repeats: int = 7  # timings of each piece of work, of which the median counts
    iterations: int | None = None  # real iterations that are timed; None: by their size
    matrix: int = 2_048  # side of the matrices of the products
    copied: int = 256 << 20  # bytes of the memory copy
    written: int = 256 << 20  # bytes of the file
    calls: int = 48  # forward passes in one timing
    updates: int = 6  # training steps in one timing

    @staticmethod
    def quick() -> Effort:
        return Effort(repeats=2, iterations=1, matrix=256, copied=4 << 20, written=4 << 20, calls=2, updates=1)


@dataclass(frozen=True)
class Spread:
    """The median of several timings or ratios, and how far apart they are."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(median(values), min(values), max(values), len(values))


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median_seconds(work: Callable[[], object], repeats: int, before: Callable[[], object] | None = None) -> float:
    """Seconds of a call, the median of several, after one that does not count. `before` each, `before()` is called."""
    spent = []
    for _ in range(repeats + 1):
        if before is not None:
            before()
        spent.append(timed(work))
    return median(spent[1:])


def stop_in_time(loop: Loop, level: str, watch: Watch) -> None:
    """Tell of each item of `level`, and end the loop when it has taken long and one item besides the first is done."""
    began = time.monotonic()

    def ended(now: LevelEnd) -> None:
        watch(f"a {level}")
        if now.number >= 1 and time.monotonic() - began > LONGEST:
            loop.stop("measured")

    loop.at_end(level, ended)
    watch(f"a {level}, to warm up")

"""Compare prioritised sampling from a lake with uniform sampling, alternately in one process.

    python benchmarks/lake_priority.py [--transitions 100000 10000000] [--batch 256] [--repeats 5]

Observations are four numbers, so that the draw itself counts. Also shown: an update of the priorities of a batch, opening
them, and their memory.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from millpond.replay import Field, Lake, Priorities, Schema, Steps

SCHEMA = Schema((Field("observation", (4,), "float32"),), Field("action", (), "int32"))
LANES, STEPS = 64, 2_000


def fill(folder: Path, transitions: int) -> Lake:
    lake, rng = Lake.create(folder, SCHEMA), np.random.default_rng(0)
    with lake.writer("agent0", lanes=LANES) as writer:
        for begin in range(0, transitions, LANES * STEPS):
            count = min(STEPS, -(-(transitions - begin) // LANES))
            shape = (count, LANES)
            terminated, none = rng.random(shape) < 0.01, np.zeros(shape, bool)
            seen = rng.normal(size=(*shape, 4)).astype(np.float32)
            writer.append(Steps(seen, np.zeros(shape, int), np.ones(shape), terminated, none))
    lake.refresh()
    return lake


def seconds(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def measure(lake: Lake, batch_size: int, repeats: int, calls: int) -> str:
    """Return a line about one lake."""
    start = time.perf_counter()
    Priorities.open(lake, "big").close()
    created, start = time.perf_counter() - start, time.perf_counter()
    with Priorities.open(lake, "big") as priorities:
        opened, rng = time.perf_counter() - start, np.random.default_rng(1)
        batch = lake.sample(batch_size, rng, priority=priorities)
        works: dict[str, Callable[[], Any]] = {
            "uniform": lambda: lake.sample(batch_size, rng),
            "prioritised": lambda: lake.sample(batch_size, rng, priority=priorities),
            "update": lambda: priorities.update(batch.stream, batch.index, rng.random(batch_size) + 0.1),
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(1 + repeats):
            for name, work in works.items():
                times[name].append(seconds(work, calls))
        means = {name: median(values[1:]) for name, values in times.items()}  # the first ones compile
        rates = ", ".join(f"{name} {batch_size / value:,.0f}/s" for name, value in means.items())
        return (
            f"{rates}; prioritised takes {means['prioritised'] / means['uniform']:.2f} times as long; created in "
            f"{created:.2f} s, opened in {opened:.2f} s, {priorities.nbytes:,} bytes in memory"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=40)
    arguments = parser.parse_args()
    print(
        f"batches of {arguments.batch} on {platform.processor() or platform.machine()}, median of {arguments.repeats}"
    )
    for transitions in arguments.transitions:
        with tempfile.TemporaryDirectory() as folder, fill(Path(folder) / "lake", transitions) as lake:
            line = measure(lake, arguments.batch, arguments.repeats, arguments.calls)
            print(f"{transitions:>11,} transitions: {line}", flush=True)


if __name__ == "__main__":
    main()

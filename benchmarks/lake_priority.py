"""Compare prioritised sampling from a lake with uniform sampling, alternately in one process.

    python benchmarks/lake_priority.py [--transitions 100000 10000000] [--batch 256] [--repeats 5]

Observations are four numbers, so that the draw itself counts. Also shown: an update of the priorities of a batch, opening them, and
their memory.
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
            start = time.perf_counter()
            Priorities.open(lake, "big").close()
            created = time.perf_counter() - start
            start = time.perf_counter()
            with Priorities.open(lake, "big") as priorities:
                opened, rng = time.perf_counter() - start, np.random.default_rng(1)

                def uniform(lake: Lake = lake, rng: Any = rng) -> Any:
                    return lake.sample(arguments.batch, rng)

                def prioritised(lake: Lake = lake, rng: Any = rng, by: Priorities = priorities) -> Any:
                    return lake.sample(arguments.batch, rng, priority=by)

                def update(lake: Lake = lake, rng: Any = rng, by: Priorities = priorities) -> None:
                    by.update(batch.stream, batch.index, rng.random(arguments.batch) + 0.1)

                batch = prioritised()
                uniform()
                times: dict[str, list[float]] = {"uniform": [], "prioritised": [], "update": []}
                for _ in range(arguments.repeats):
                    for name, call in (("uniform", uniform), ("prioritised", prioritised), ("update", update)):
                        times[name].append(seconds(call, arguments.calls))
                means = {name: median(values) for name, values in times.items()}
                rates = ", ".join(f"{name} {arguments.batch / value:,.0f}/s" for name, value in means.items())
                print(
                    f"{transitions:>11,} transitions: {rates}; prioritised takes {means['prioritised'] / means['uniform']:.2f} "
                    f"times as long; created in {created:.2f} s, opened in {opened:.2f} s, {priorities.nbytes:,} bytes in memory"
                )


if __name__ == "__main__":
    main()

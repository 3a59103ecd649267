"""What Loop, record and Timer add to a body of one millisecond, against a bare for loop in the same process.

    python benchmarks/loop_overhead.py

The body is a fixed number of small matrix products, so it uses the caches as training does. Blocks with and without the
loop alternate and the median of their ratios is shown, in CPU time of this process, so that a machine that is busy with
other things does not show much; the ratio of bare blocks to bare blocks says how much. The target is 3 %.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from millpond.loop import Loop
from millpond.record import Timer

BODY_SECONDS = 1e-3
BLOCKS, BATCHES, ITERATIONS = 15, 50, 6
STEPS = BATCHES * ITERATIONS
LIMIT = 1.03


MATRIX = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))


def work(products: int) -> None:
    for _ in range(products):
        MATRIX @ MATRIX


def products_in(seconds: float) -> int:
    """How many products take so long; from the CPU time of many."""
    work(1000)
    began = time.process_time()
    work(20_000)
    return round(seconds * 20_000 / (time.process_time() - began))


def bare(products: int) -> float:
    began = time.process_time()
    for _ in range(STEPS):
        work(products)
    return time.process_time() - began


def with_loop(products: int, values: list[float | torch.Tensor]) -> float:
    loop, timer = Loop(cycle=1, iteration=ITERATIONS, batch=BATCHES), Timer()
    means: list[dict[str, float]] = []
    loop.at_end("iteration", lambda ended: means.append({**ended.means(), **timer.take()}))
    began = time.process_time()
    for at in loop.run():
        with timer("train"), timer("update"):
            work(products)
        value = values[at["batch"]]
        loop.record("loss", value, weight=256)
        loop.record("grad_norm", value, weight=256)
        loop.record("entropy", value, weight=256)
    return time.process_time() - began


def median_ratio(block: Callable[[], float], products: int) -> float:
    return statistics.median(block() / bare(products) for _ in range(BLOCKS))


def microseconds(block: Callable[[], float]) -> float:
    """The median cost of a step, with nothing in the body."""
    return statistics.median(block() for _ in range(BLOCKS)) / STEPS * 1e6


def phase_microseconds() -> float:
    timer, repeats = Timer(), 20_000
    began = time.process_time()
    for _ in range(repeats):
        with timer("phase"):
            pass
    with_timer = time.process_time() - began
    began = time.process_time()
    for _ in range(repeats):
        pass
    return (with_timer - (time.process_time() - began)) / repeats * 1e6


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> int:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    tensors: list[float | torch.Tensor] = list(torch.rand(BATCHES, generator=generator))
    floats: list[float | torch.Tensor] = [float(tensor) for tensor in tensors]
    print(f"{processor()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{BLOCKS} blocks of {STEPS} steps of {BODY_SECONDS * 1e3:g} ms, in turn with and without")
    print(f"{'three values a step, two nested phases':<40}{'ratio':>9}{'empty body':>14}")
    products, worst = products_in(BODY_SECONDS), 0.0
    print(f"{'bare against bare: the noise':<40}{median_ratio(lambda: bare(products), products):>9.4f}")
    for name, values in (("floats", floats), ("tensors", tensors)):
        ratio = median_ratio(lambda values=values: with_loop(products, values), products)
        cost = microseconds(lambda values=values: with_loop(0, values)) - microseconds(lambda: bare(0))
        print(f"{name:<40}{ratio:>9.4f}{cost:>11.1f} us")
        worst = max(worst, ratio)
    print(f"{'one Timer phase alone':<40}{'':>9}{phase_microseconds():>11.2f} us")
    print(f"worst ratio {worst:.4f}, limit {LIMIT}: {'ok' if worst <= LIMIT else 'TOO SLOW'}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

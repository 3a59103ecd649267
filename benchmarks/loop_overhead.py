"""Measure what Loop, record and Timer add to a body of one millisecond, compared with a bare for loop.

    python benchmarks/loop_overhead.py

Two bodies: one waits for the clock, so that it takes a millisecond under any load; the other multiplies
matrices, so that it uses the caches as training does. Short blocks with and without the loop alternate in one process. Shown
are the median of their ratios, in CPU time, and that of bare to bare blocks: the noise. The target is 3 %.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product

import torch

from hardware import processor
from millpond.loop import Loop
from millpond.record import Timer

BODY_SECONDS = 1e-3
BATCHES, PAIRS = 50, 60
LIMIT = 1.03  # with one value per step, such as R_loss; three are shown too
ONE, THREE = ("loss",), ("loss", "grad_norm", "entropy")
MATRIX = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))

Body = Callable[[], object]


def wait_for_clock() -> None:
    end = time.perf_counter() + BODY_SECONDS
    while time.perf_counter() < end:
        pass


def multiply() -> Body:
    """Return a body with as many products as take a millisecond of CPU time."""

    def products(number: int) -> None:
        for _ in range(number):
            MATRIX @ MATRIX

    products(1000)
    began = time.process_time()
    products(20_000)
    number = round(BODY_SECONDS * 20_000 / (time.process_time() - began))
    return lambda: products(number)


def bare(body: Body) -> float:
    began = time.process_time()
    for _ in range(BATCHES):
        body()
    return time.process_time() - began


def with_loop(body: Body, values: list[float] | list[torch.Tensor], names: Sequence[str]) -> float:
    """Time one iteration with these values per step, two nested phases, and means and times at its end."""
    loop, timer = Loop(iteration=1, batch=BATCHES), Timer()
    loop.at_end("iteration", lambda ended: {**ended.means(), **timer.take()})
    began = time.process_time()
    for at in loop.run():
        with timer("train"), timer("update"):
            body()
        value = values[at["batch"]]
        for name in names:
            loop.record(name, value, weight=256)
    return time.process_time() - began


def median_ratio(block: Callable[[], float], body: Body) -> float:
    return statistics.median(block() / bare(body) for _ in range(PAIRS))


def empty() -> None:
    pass


def microseconds(values: list[float] | list[torch.Tensor]) -> float:
    """Return the cost of a step with three values, once everything is warm."""
    added = (with_loop(empty, values, THREE) - bare(empty) for _ in range(PAIRS))
    return statistics.median(added) / BATCHES * 1e6


def phase_microseconds() -> float:
    timer, repeats = Timer(), 20_000
    began = time.process_time()
    for _ in range(repeats):
        with timer("phase"):
            pass
    return (time.process_time() - began) / repeats * 1e6


def main() -> int:
    torch.set_num_threads(1)
    tensors = list(torch.rand(BATCHES, generator=torch.Generator().manual_seed(0)))
    floats = [float(tensor) for tensor in tensors]
    print(f"{processor()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"median of {PAIRS} pairs of blocks of {BATCHES} steps, in two nested phases")
    print(f"{'body of 1 ms':<32}{'noise':>9}{'floats':>9}{'tensors':>9}")
    worst = 0.0
    bodies = (("waits", wait_for_clock), ("multiplies", multiply()))
    for (title, body), names in product(bodies, (ONE, THREE)):
        noise = median_ratio(lambda body=body: bare(body), body)
        ratios = [
            median_ratio(lambda body=body, v=values, n=names: with_loop(body, v, n), body)
            for values in (floats, tensors)
        ]
        counted = f"{title}, {len(names)} value{'s' if len(names) > 1 else ''} per step"
        print(f"{counted:<32}{noise:>9.4f}{ratios[0]:>9.4f}{ratios[1]:>9.4f}")
        worst = max(worst, *ratios) if names == ONE else worst
    print(f"a step alone: {microseconds(floats):.1f} us with floats, {microseconds(tensors):.1f} us with tensors")
    print(f"a Timer phase: {phase_microseconds():.2f} us")
    print(f"worst ratio with one value per step {worst:.4f}, limit {LIMIT}: {'ok' if worst <= LIMIT else 'TOO SLOW'}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

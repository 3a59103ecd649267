"""Measure the overhead of the vector: a turn over envs that do nothing, and the start of 2,720 envs in 16 workers.

python benchmarks/vector_cost.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hardware import processor
from millpond.envs.env_batch import Buffers
from millpond.vector import MakeEnvBatch, make_vector
from timed_envs import SPEC, empty, generators

RUNS, TURNS = 7, 500


def best_of_runs(turn: Callable[[], None]) -> float:
    """Return seconds per turn of the fastest run, which other work disturbed least."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(TURNS):
            turn()
        times.append((time.perf_counter() - start) / TURNS)
    return min(times)


def bare_seconds(num_envs: int) -> float:
    """Return seconds per turn without a vector: one env batch, called directly, with the same copy of actions."""
    env_batch = empty(num_envs, Buffers.allocate(SPEC, num_envs), 0)
    actions = np.zeros((num_envs, 1), np.int64)

    def turn() -> None:
        np.copyto(env_batch.buffers.action, actions, casting="same_kind")
        env_batch.step(0, num_envs)
        env_batch.episodes()

    return best_of_runs(turn)


def turn_seconds(num_envs: int, **options: Any) -> float:
    """Return seconds for recv and send of one group."""
    with make_vector(SPEC, empty, num_envs=num_envs, groups=2, **options) as vector:
        vector.reset(0)
        actions = np.zeros((num_envs // 2, 1), np.int64)

        def turn() -> None:
            vector.recv()
            vector.send(actions)

        return best_of_runs(turn)


def start_seconds(make_env_batch: MakeEnvBatch, num_envs: int, num_workers: int) -> tuple[float, float, float]:
    """Return seconds until the vector is built, until the first batch, and to close."""
    start = time.perf_counter()
    vector = make_vector(
        SPEC, make_env_batch, num_envs=num_envs, groups=2, num_workers=num_workers, backend="processes"
    )
    built = time.perf_counter()
    vector.reset(0)
    vector.recv()
    received = time.perf_counter()
    vector.close()
    return built - start, received - start, time.perf_counter() - received


if __name__ == "__main__":
    print(processor())
    print(f"\n{'recv + send of an env batch that does nothing':<52} {'µs':>7}  times the bare env batch")
    for num_envs in (32, 2720):
        bare = bare_seconds(num_envs // 2)
        print(f"{num_envs:>5,} envs  {'bare env batch, half of the envs':<39} {bare * 1e6:7.1f}")
        for options in (
            {"backend": "inline"},
            {"backend": "threads", "threads": 1},
            {"backend": "threads", "threads": 2},
            {"backend": "processes", "num_workers": 1},
            {"backend": "processes", "num_workers": 2},
            {"backend": "processes", "num_workers": 16},
        ):
            seconds = turn_seconds(num_envs, **options)
            title = " ".join(str(value) for value in options.values())
            print(f"{num_envs:>5,} envs  {title:<39} {seconds * 1e6:7.1f}  {seconds / bare:6.1f}")
    print("\nstart of worker processes, a generator for each env")
    for num_envs, num_workers in ((2, 1), (2720, 1), (2720, 16)):
        built, received, closed = start_seconds(generators, num_envs, num_workers)
        print(
            f"{num_envs:>5,} envs in {num_workers:>2} workers: built in {built:.2f} s, "
            f"first batch after {received:.2f} s, closed in {closed:.2f} s"
        )

"""Measure real environments behind the vector: agent steps per second by backend, relative to the bare env batch on one core.

    python benchmarks/vectors.py      about a minute; run it with nothing else running

All backends of an environment are measured alternately, several times, and the best of each is shown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from envs import rates, stepper
from hardware import processor
from millpond.envs.registry import EnvBatchFactory, describe, make_env_batch, prepare
from millpond.vector import Vector, make_vector

SECONDS, ROUNDS = 0.6, 3


@dataclass(frozen=True)
class Case:
    env_id: str
    num_envs: int
    backend: Literal["inline", "threads", "processes", "native"]
    workers: int = 1
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        workers = f" x{self.workers}" if self.backend in ("threads", "processes") else ""
        return f"{self.env_id}, {self.num_envs:,} envs, {self.backend}{workers}"


CASES = [
    Case("grid", 1_360, "inline"),
    Case("grid", 1_360, "threads", 2),
    Case("mettagrid", 64, "inline"),
    Case("mettagrid", 64, "processes", 2),
    Case("atari:gravitar", 32, "native"),
]


def open_vector(case: Case) -> Vector:
    options = dict(case.options)
    prepare(case.env_id, options)
    return make_vector(
        describe(case.env_id, options),
        EnvBatchFactory(case.env_id, options),
        num_envs=case.num_envs,
        groups=2,
        num_workers=case.workers,
        backend=case.backend,
        threads=case.workers if case.backend == "threads" else None,
    )


def rate(vector: Vector) -> float:
    """Return agent steps per second with random actions, both groups stepping whenever possible."""
    random = np.random.default_rng(0)
    agents, steps = vector.spec.num_agents, 0
    actions = random.integers(0, vector.spec.action.sizes[0], (16, vector.num_envs // 2, agents)).astype(np.int32)
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for _ in range(len(vector)):
            vector.recv()
            vector.send(actions[steps % 16])
        steps += 1
    return steps * vector.num_envs * agents / (time.perf_counter() - began)


def main() -> None:
    print(processor())
    bare: dict[str, float] = {}
    for env_id, num_envs in dict.fromkeys((case.env_id, case.num_envs) for case in CASES):
        options = {"num_threads": 1} if env_id.startswith("atari:") else {}
        env_batch = make_env_batch(env_id, num_envs, options)
        bare[env_id] = rates({env_id: stepper(env_batch)})[env_id]
        env_batch.close()
    vectors = {case: open_vector(case) for case in CASES}
    best = dict.fromkeys(CASES, 0.0)
    try:
        for vector in vectors.values():
            vector.reset(1)
        for _ in range(ROUNDS):
            for case, vector in vectors.items():
                best[case] = max(best[case], rate(vector))
    finally:
        for vector in vectors.values():
            vector.close()
    print(f"{'':<44}{'agent steps/s':>15}{'of the bare env batch on one core':>32}")
    for case in CASES:
        print(f"{case.name:<44}{best[case]:>15,.0f}{best[case] / bare[case.env_id]:>32.2f}")


if __name__ == "__main__":
    main()

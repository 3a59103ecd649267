"""Environments for the benchmarks of the vector, in a separate module so that worker processes can import them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EpisodeStats
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

STEP_SECONDS = 0.005
SPEC = EnvSpec("timed", ObservationSpec.single((2,), "float64", "vector"), ActionSpec.discrete(4), releases_gil=True)


class EmptyEnvs:
    """Do nothing, so that only the vector's overhead remains."""

    def __init__(self, num_envs: int, buffers: Buffers, first_env: int) -> None:
        self.spec, self.num_envs, self.buffers = SPEC, num_envs, buffers

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self.buffers.alive[...] = True

    def step(self, first: int, last: int) -> None:
        pass

    def episodes(self) -> list[EpisodeStats]:
        return []

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        pass

    def close(self) -> None:
        pass


class TimedEnvs(EmptyEnvs):
    """Take 5 ms per step, for any number of envs, and show when it started and ended, in seconds of the monotonic clock."""

    def step(self, first: int, last: int) -> None:
        began = time.monotonic()
        time.sleep(STEP_SECONDS)
        self.buffers.observation[first:last, :, 0] = began
        self.buffers.observation[first:last, :, 1] = time.monotonic()


class GeneratorEnvs(EmptyEnvs):
    """Create a generator for each env, as environments in Python do."""

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self.generators = [np.random.default_rng(int(seed)) for seed in seeds]
        super().reset(seeds)


def empty(num_envs: int, buffers: Buffers, first_env: int) -> EmptyEnvs:
    return EmptyEnvs(num_envs, buffers, first_env)


def timed(num_envs: int, buffers: Buffers, first_env: int) -> TimedEnvs:
    return TimedEnvs(num_envs, buffers, first_env)


def generators(num_envs: int, buffers: Buffers, first_env: int) -> GeneratorEnvs:
    return GeneratorEnvs(num_envs, buffers, first_env)

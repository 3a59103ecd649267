"""Where each env's seed comes from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def env_seed(seed: int, env: int, restarts: int = 0) -> int:
    """The seed of one env: a function of the run's seed, the env's index and how often the env was restarted.

    It is the child (env, restarts) of `SeedSequence(seed)`, so neither backend, workers nor groups can change it.
    """
    return int(np.random.SeedSequence(seed, spawn_key=(env, restarts)).generate_state(1, np.uint64)[0])


def env_seeds(seed: int, num_envs: int) -> npt.NDArray[np.uint64]:
    """The seeds [num_envs] of a fresh start."""
    return np.array([env_seed(seed, env) for env in range(num_envs)], dtype=np.uint64)

"""Plays a vector with actions that depend on env, agent and time alone, and records everything it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.vector import Batch, RoundRobin, Vector
from tests.support.vector_envs import ENV_STEPS

RECORDED = ("observation", "reward", "terminated", "truncated", "alive", "action_mask", "restarted")


@dataclass
class Trajectories:
    """Everything that each env returned, step by step: env -> list of tuples of arrays."""

    steps: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    episodes: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)

    def record(self, batch: Batch) -> None:
        for env in range(batch.first, batch.last):
            row = env - batch.first
            values = [getattr(batch, name)[row].copy() for name in RECORDED]
            ended = batch.terminated[row, 0] or batch.truncated[row, 0]
            final = batch.final_observation[row].copy() if ended else None
            self.steps.setdefault(env, []).append((batch.stepped, final, *values))
        for episode in batch.episodes:
            self.episodes.setdefault(episode.env, []).append((episode.returns, episode.length, episode.info))

    def assert_equal(self, other: Trajectories) -> None:
        assert self.steps.keys() == other.steps.keys()
        for env, steps in self.steps.items():
            assert len(steps) == len(other.steps[env])
            for here, there in zip(steps, other.steps[env], strict=True):
                for one, two in zip(here, there, strict=True):
                    np.testing.assert_array_equal(one, two)
        assert self.episodes == other.episodes


def act(batch: Batch) -> npt.NDArray[np.int64]:
    """Return actions that are a function of the env and of its number of steps."""
    env = np.arange(batch.first, batch.last)[:, None]
    return (env * 7 + batch.observation[:, :, ENV_STEPS] * 3 + np.arange(batch.action.shape[1])) % 1000


def play(envs: Vector | RoundRobin, env_steps: int, trajectories: Trajectories | None = None) -> Trajectories:
    """Play a round of `env_steps` steps of every env."""
    trajectories = trajectories or Trajectories()
    for _ in range(env_steps):
        for _ in range(len(envs)):
            batch = envs.recv()
            trajectories.record(batch)
            envs.send(act(batch))
    for _ in range(len(envs)):
        trajectories.record(envs.recv())
    envs.end_round()
    return trajectories

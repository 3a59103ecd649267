"""Rewards held back to the end of the episode: the return at once and nothing before, the hard case for credit.

    reward_t <- 0                          while the agent's episode goes on
    reward_t <- r_0 + r_1 + ... + r_t      at the step that ends it

Every agent's rewards are held by themselves. Clipping and scaling come first, so that what is added up is what the
learner would have seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EnvBatch, Episode
from millpond.envs.saving import load_arrays, save_arrays
from millpond.envs.spec import EnvSpec


class EpisodicEnvs:
    """An environment that gives the sum of an episode's rewards with its last step."""

    def __init__(self, env_batch: EnvBatch) -> None:
        self.env_batch = env_batch
        self.spec: EnvSpec = env_batch.spec
        self.num_envs = env_batch.num_envs
        self.buffers: Buffers = env_batch.buffers
        self._held = np.zeros((env_batch.num_envs, env_batch.spec.num_agents), np.float64)
        if hasattr(env_batch, "watch"):  # only then can a crash name its env
            self.watch = env_batch.watch

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self.env_batch.reset(seeds)
        self._held[:] = 0.0

    def step(self, first: int, last: int) -> None:
        self.env_batch.step(first, last)
        part = self.buffers.envs(first, last)
        held, ended = self._held[first:last], part.terminated | part.truncated
        held += part.reward
        part.reward[...] = np.where(ended, held, 0.0)
        held[ended] = 0.0

    def episodes(self) -> list[Episode]:
        return self.env_batch.episodes()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        return self.env_batch.save_state() | save_arrays("episodic", {"held": self._held})

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        load_arrays("episodic", {"held": self._held}, state, env_id=self.spec.id)
        self.env_batch.load_state(state)

    def render_rgb(self, env: int) -> npt.NDArray[np.uint8]:
        from millpond.envs.render import render_rgb

        return render_rgb(self.env_batch, env)

    def close(self) -> None:
        self.env_batch.close()

"""Wrappers that change rewards, off by default: `reward_scale`, `reward_clip` and `episodic`.

    reward <- clip(reward, -reward_clip, reward_clip) * reward_scale

`episodic` then delays rewards to the end of the episode. The statistics of episodes keep the rewards of the env itself,
so that returns stay comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EnvBatch, EpisodeStats, load_arrays, save_arrays
from millpond.envs.families import require
from millpond.envs.spec import EnvSpec


@dataclass(frozen=True)
class RewardOptions:
    reward_scale: float = 1.0
    reward_clip: float | None = None
    episodic: bool = False

    def __post_init__(self) -> None:
        scale, clip = self.reward_scale, self.reward_clip
        require(np.isfinite(scale) and scale != 0.0, "env", f"reward_scale={scale} must be finite and not 0")
        require(clip is None or clip > 0.0, "env", f"reward_clip={clip} must be above 0, or null for none")

    @property
    def changes(self) -> bool:
        """True if rewards are clipped or scaled."""
        return self.reward_scale != 1.0 or self.reward_clip is not None


class RewardEnvs:
    """An env batch whose rewards are clipped and scaled after each step."""

    def __init__(self, env_batch: EnvBatch, options: RewardOptions) -> None:
        self.env_batch = env_batch
        self.options = options
        self.spec: EnvSpec = env_batch.spec
        self.num_envs = env_batch.num_envs
        self.buffers: Buffers = env_batch.buffers
        if hasattr(env_batch, "watch"):  # so that the error of a crash can name the env
            self.watch = env_batch.watch

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self.env_batch.reset(seeds)

    def step(self, first: int, last: int) -> None:
        self.env_batch.step(first, last)
        reward = self.buffers.reward[first:last]
        if self.options.reward_clip is not None:
            np.clip(reward, -self.options.reward_clip, self.options.reward_clip, out=reward)
        reward *= np.float32(self.options.reward_scale)

    def episodes(self) -> list[EpisodeStats]:
        return self.env_batch.episodes()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        return self.env_batch.save_state()

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.env_batch.load_state(state)

    def render_rgb(self, env: int) -> npt.NDArray[np.uint8]:
        from millpond.envs.render import render_rgb

        return render_rgb(self.env_batch, env)

    def close(self) -> None:
        self.env_batch.close()


class EpisodicEnvs:
    """An env batch that delays rewards to the end of the episode: the hard case for credit assignment.

        reward_t <- 0                          while the agent's episode continues
        reward_t <- r_0 + r_1 + ... + r_t      at the step that ends it

    Each agent's rewards are summed separately, after clipping and scaling.
    """

    def __init__(self, env_batch: EnvBatch) -> None:
        self.env_batch = env_batch
        self.spec: EnvSpec = env_batch.spec
        self.num_envs = env_batch.num_envs
        self.buffers: Buffers = env_batch.buffers
        self._held = np.zeros((env_batch.num_envs, env_batch.spec.num_agents), np.float64)
        if hasattr(env_batch, "watch"):  # so that the error of a crash can name the env
            self.watch = env_batch.watch

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self.env_batch.reset(seeds)
        self._held[:] = 0.0

    def step(self, first: int, last: int) -> None:
        self.env_batch.step(first, last)
        buffers = self.buffers.envs(first, last)
        held, ended = self._held[first:last], buffers.terminated | buffers.truncated
        held += buffers.reward
        given = ended | ~np.isfinite(held)  # a NaN at once, so that its error names the step it is of
        buffers.reward[...] = np.where(given, held, 0.0)
        held[given] = 0.0

    def episodes(self) -> list[EpisodeStats]:
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

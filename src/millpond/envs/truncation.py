"""An environment whose value is learned correctly only if truncation bootstraps.

One state, reward 1 at every step, truncated every `max_steps` steps, never terminated: with a discount gamma

    V = 1 / (1 - gamma)

everywhere. A learner that treats truncation as termination learns less: at most (1 - gamma^max_steps) / (1 - gamma).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EpisodeStats, buffer_arrays, load_arrays, save_arrays
from millpond.envs.episode_tracker import EpisodeTracker
from millpond.envs.options import parse_options, require
from millpond.envs.seeds import check_seeds
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec


@dataclass(frozen=True)
class TruncationOptions:
    max_steps: int = 8

    def __post_init__(self) -> None:
        require(self.max_steps >= 1, "truncation", f"max_steps={self.max_steps} must be at least 1")


def describe(mapping: Mapping[str, Any]) -> EnvSpec:
    options = parse_options(TruncationOptions, mapping, env_id="truncation")
    return EnvSpec(
        id="truncation",
        observation=ObservationSpec.single((1,), "float32", "vector", high=1.0),
        action=ActionSpec.discrete(2),  # both do nothing
        max_steps=options.max_steps,
        savable=True,
        native_vector=True,
    )


class TruncationEnvs:
    def __init__(self, num_envs: int, mapping: Mapping[str, Any], buffers: Buffers | None = None) -> None:
        self.spec = describe(mapping)
        self.options = parse_options(TruncationOptions, mapping, env_id="truncation")
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        self._clock = np.zeros(num_envs, np.int64)
        self._tracker = EpisodeTracker(num_envs, 1)

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        """Start all envs; the only random thing is the step at which an env's first episode starts."""
        self._clock[:] = (check_seeds(seeds, self.num_envs) % np.uint64(self.options.max_steps)).astype(np.int64)
        self._tracker.reset()
        self.buffers.observation[:] = 1.0
        self.buffers.reward[:] = 0.0
        self.buffers.terminated[:] = False
        self.buffers.truncated[:] = False
        self.buffers.alive[:] = True

    def step(self, first: int, last: int) -> None:
        buffers = self.buffers
        self._clock[first:last] += 1
        over = self._clock[first:last] >= self.options.max_steps
        buffers.reward[first:last] = 1.0
        buffers.truncated[first:last, 0] = over
        buffers.observation[first:last] = 1.0
        self._tracker.add_step(first, last, buffers.reward[first:last])
        for env in (first + np.flatnonzero(over)).tolist():
            buffers.final_observation[env] = 1.0
            self._clock[env] = 0
            self._tracker.end_episode(env)

    def episodes(self) -> list[EpisodeStats]:
        return self._tracker.pop_ended()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        buffers = save_arrays("buffers", buffer_arrays(self.buffers))
        return save_arrays("truncation", {"clock": self._clock}) | buffers | self._tracker.save_state()

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        load_arrays("truncation", {"clock": self._clock}, state, env_id="truncation")
        load_arrays("buffers", buffer_arrays(self.buffers), state, env_id="truncation")
        self._tracker.load_state(state)

    def close(self) -> None:
        """There is nothing to free but arrays."""

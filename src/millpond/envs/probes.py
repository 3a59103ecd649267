"""Two small environments with known answers, to test learners: `recall` needs memory, `truncation` needs bootstrapping.

`recall`: a cue is shown once, and must be recalled 8 to 32 steps later. Without memory an agent is right once in `cues`
episodes. The state is three numbers per env.

    step          0      1 .. delay-1     delay
    observation   cue    zeros            the question
    reward        0      0                1 if the action is the cue; the episode terminates

`truncation`: one state, reward 1 at every step, truncated every `max_steps` steps, never terminated. With a discount gamma

    V = 1 / (1 - gamma)

everywhere. A learner that treats truncation as termination learns less: at most (1 - gamma^max_steps) / (1 - gamma).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import (
    Buffers,
    EpisodeStats,
    EpisodeTracker,
    buffer_arrays,
    check_seeds,
    draw_below,
    load_arrays,
    save_arrays,
)
from millpond.envs.families import parse_options, require
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec


@dataclass(frozen=True)
class RecallOptions:
    cues: int = 4
    min_delay: int = 8
    max_delay: int = 32

    def __post_init__(self) -> None:
        require(self.cues >= 2, "recall", f"cues={self.cues} must be at least 2")
        require(self.min_delay >= 1, "recall", f"min_delay={self.min_delay} must be at least 1")
        require(
            self.max_delay >= self.min_delay,
            "recall",
            f"max_delay={self.max_delay} must be at least min_delay={self.min_delay}",
        )


def describe_recall(mapping: Mapping[str, Any]) -> EnvSpec:
    options = parse_options(RecallOptions, mapping, env_id="recall")
    return EnvSpec(
        id="recall",
        # One entry per cue, and one for the question.
        observation=ObservationSpec.single((options.cues + 1,), "uint8", "vector", high=1.0),
        action=ActionSpec.discrete(options.cues),
        max_steps=options.max_delay + 1,
        savable=True,
        native_vector=True,
        info_names=("correct",),
    )


class RecallEnvs:
    def __init__(self, num_envs: int, mapping: Mapping[str, Any], buffers: Buffers | None = None) -> None:
        self.spec = describe_recall(mapping)
        self.options = parse_options(RecallOptions, mapping, env_id="recall")
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        self._random = np.zeros(num_envs, np.uint64)
        self._cue = np.zeros(num_envs, np.int64)
        self._left = np.zeros(num_envs, np.int64)  # steps until the question
        self._tracker = EpisodeTracker(num_envs, 1)

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self._random[:] = check_seeds(seeds, self.num_envs)
        self._tracker.reset()
        self.buffers.reward[:] = 0.0
        self.buffers.terminated[:] = False
        self.buffers.truncated[:] = False
        self.buffers.alive[:] = True
        self.buffers.observation[:] = 0
        self._begin(np.arange(self.num_envs))

    def step(self, first: int, last: int) -> None:
        buffers = self.buffers
        at_question = self._left[first:last] == 0
        correct = at_question & (buffers.action[first:last, 0] == self._cue[first:last])
        buffers.reward[first:last, 0] = correct
        buffers.terminated[first:last, 0] = at_question
        self._tracker.add_step(first, last, buffers.reward[first:last])

        self._left[first:last] -= 1
        observation = buffers.observation[first:last, 0]
        observation[:, :-1] = 0
        observation[:, -1] = self._left[first:last] == 0
        ended = first + np.flatnonzero(at_question)
        if len(ended):
            buffers.final_observation[ended] = 0
            for env in ended.tolist():
                self._tracker.end_episode(env, {"correct": float(buffers.reward[env, 0])})
            self._begin(ended)

    def _begin(self, envs: npt.NDArray[np.int64]) -> None:
        """Start new episodes, each env from its own random stream."""
        random = self._random[envs]
        self._cue[envs] = draw_below(random, self.options.cues)
        delays = self.options.max_delay - self.options.min_delay + 1
        self._left[envs] = self.options.min_delay + draw_below(random, delays)
        self._random[envs] = random
        self.buffers.observation[envs, 0] = 0
        self.buffers.observation[envs, 0, self._cue[envs]] = 1

    def episodes(self) -> list[EpisodeStats]:
        return self._tracker.pop_ended()

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {"random": self._random, "cue": self._cue, "left": self._left}

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        buffers = save_arrays("buffers", buffer_arrays(self.buffers))
        return save_arrays("recall", self._arrays()) | buffers | self._tracker.save_state()

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        load_arrays("recall", self._arrays(), state, env_id="recall")
        load_arrays("buffers", buffer_arrays(self.buffers), state, env_id="recall")
        self._tracker.load_state(state)

    def close(self) -> None:
        """There is nothing to free but arrays."""


@dataclass(frozen=True)
class TruncationOptions:
    max_steps: int = 8

    def __post_init__(self) -> None:
        require(self.max_steps >= 1, "truncation", f"max_steps={self.max_steps} must be at least 1")


def describe_truncation(mapping: Mapping[str, Any]) -> EnvSpec:
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
        self.spec = describe_truncation(mapping)
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

"""Envs that return NaN, None or text at a given step. Workers import this module: neither torch nor pytest here."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from pettingzoo import ParallelEnv

from millpond.envs.env_batch import Buffers, EpisodeStats
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

VALUES: dict[str, Any] = {
    "nan": float("nan"),
    "inf": float("inf"),
    "huge": 1e30,
    "none": None,
    "text": "0.5",
}


class Broken(gymnasium.Env[Any, Any]):
    """Returns a bad `field` at step `at` of episode `episode`, if it was seeded with `culprit`; episodes have 20 steps.

    `field`: observation, final, reward, shape, dtype or info.
    """

    observation_space: Any = spaces.Box(-1, 1, (4,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def __init__(
        self,
        field: str = "",
        at: int = 7,
        episode: int = 0,
        culprit: str = "0",
        value: str = "nan",
        continuous: bool = False,
    ) -> None:
        self.field, self.at, self.episode, self.culprit, self.value = field, at, episode, int(culprit), VALUES[value]
        if continuous:
            self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.bad, self.episodes = seed == self.culprit, -1
        self.clock = 0
        self.episodes += 1
        return self._observe(self.at == 0), {}

    def _observe(self, now: bool) -> Any:
        observation = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        if self.bad and now and self.episodes == self.episode:
            if self.field in ("observation", "final"):
                if not isinstance(self.value, float):
                    return [self.value] * 4
                observation[2] = self.value
            if self.field == "shape":
                return observation[:1]
            if self.field == "object":
                return observation.astype(object)
        return observation

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not np.isfinite(action).all():
            raise RuntimeError("the action is not finite")
        self.clock += 1
        now = self.clock == self.at
        hit = self.bad and now and self.episodes == self.episode
        reward = self.value if hit and self.field == "reward" else 1.0
        infos = {"score": float("inf")} if hit and self.field == "info" else {}
        return self._observe(now), reward, False, self.clock == 20, infos


class BrokenDict(Broken):
    """The same with an observation of several parts and dtypes."""

    observation_space = spaces.Dict(
        {"count": spaces.Box(0, 255, (3,), np.uint8), "speed": spaces.Box(-1, 1, (2, 2), np.float32)}
    )

    def _observe(self, now: bool) -> Any:
        flat = super()._observe(now)
        speed = flat if isinstance(flat, list) else flat.reshape(2, 2)
        return {"count": np.array([self.clock, 1, 2], np.uint8), "speed": speed}


class BrokenPair(ParallelEnv[str, Any, Any]):
    """Two agents; the second one gets the bad value at step `at`."""

    possible_agents = ["left", "right"]  # noqa: RUF012
    metadata = {"name": "pair"}  # noqa: RUF012

    def __init__(self, field: str = "", at: int = 7, culprit: str = "0", value: str = "nan") -> None:
        self.field, self.at, self.culprit, self.value = field, at, int(culprit), VALUES[value]

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (4,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if seed is not None:
            self.bad = seed == self.culprit
        self.clock, self.agents = 0, list(self.possible_agents)
        return {name: np.zeros(4, np.float32) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: Any) -> Any:
        self.clock += 1
        hit, over = self.bad and self.clock == self.at, self.clock == 20
        observations: dict[str, Any] = {name: np.zeros(4, np.float32) for name in self.agents}
        rewards: dict[str, Any] = dict.fromkeys(self.agents, 1.0)
        if hit and self.field == "observation":
            observations["right"] = [self.value] * 4 if self.value is None else np.full(4, self.value, np.float32)
        if hit and self.field == "reward":
            rewards["right"] = self.value
        ended = dict.fromkeys(self.agents, over)
        never = dict.fromkeys(self.agents, False)
        infos: dict[str, Any] = {name: {} for name in self.agents}
        if over:
            self.agents = []
        return observations, rewards, never, ended, infos


class BrokenBatch:
    """An own env batch; the env with the seed `culprit` writes None into its buffers at step `at`, which NumPy makes NaN."""

    def __init__(self, num_envs: int, buffers: Buffers | None = None, at: int = 7, culprit: str = "0") -> None:
        self.spec = EnvSpec(
            "broken batch", ObservationSpec.single((4,), "float32", "vector"), ActionSpec.discrete(2), max_steps=20
        )
        self.num_envs, self.at, self.culprit = num_envs, at, int(culprit)
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        self.clock = np.zeros(num_envs, np.int64)
        self.ended: list[EpisodeStats] = []

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self.bad = seeds == self.culprit
        self.clock[:] = 0
        self.buffers.observation[:] = 0.0
        self.buffers.alive[:] = True

    def step(self, first: int, last: int) -> None:
        buffers = self.buffers
        self.clock[first:last] += 1
        buffers.reward[first:last] = 1.0
        buffers.observation[first:last] = 0.5
        buffers.truncated[first:last, 0] = over = self.clock[first:last] == 20
        for env in first + np.flatnonzero(over):
            self.ended.append(EpisodeStats(int(env), (20.0,), 20))
            self.clock[env] = 0
        for env in first + np.flatnonzero(self.bad[first:last] & (self.clock[first:last] == self.at)):
            buffers.observation[env, 0] = [None] * 4

    def episodes(self) -> list[EpisodeStats]:
        ended, self.ended = self.ended, []
        return ended

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        raise NotImplementedError

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


def make_broken_batch(num_envs: int, buffers: Buffers | None = None, at: int = 7, culprit: str = "0") -> BrokenBatch:
    return BrokenBatch(num_envs, buffers, at, culprit)

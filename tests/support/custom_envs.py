"""Small custom envs, correct and faulty, that tests load by dotted path."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from millpond.envs.env_batch import Buffers, EpisodeStats
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec


class Counter(gymnasium.Env[Any, Any]):
    """Shows how many steps were taken and a random offset; terminates at 5, or truncates if asked to."""

    observation_space = spaces.Dict(
        {
            "count": spaces.Box(0, 100, (2,), np.float64),
            "kind": spaces.Discrete(3, start=1),
            "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
        }
    )
    action_space = spaces.MultiDiscrete([3, 2])

    def __init__(self, length: int = 5, truncate: bool = False) -> None:
        self.length, self.truncate = length, truncate

    def _observe(self) -> dict[str, Any]:
        return {
            "count": np.array([self.count, self.offset], np.float64),
            "kind": 1 + self.count % 3,
            "pair": (np.array([self.count % 2, 1], np.int8), np.array([self.count % 2, self.count % 3])),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.offset = 0, float(self.np_random.integers(50))
        return self._observe(), {"action_mask": self._mask()}

    def _mask(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([True, self.count % 2 == 0, True]), np.array([True, False])

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(np.asarray(action, np.int64)), action
        self.count += 1
        over = self.count >= self.length
        infos = {"action_mask": self._mask(), "count": self.count, "half": self.count / 2, "name": "text"}
        return self._observe(), float(action[0]), over and not self.truncate, over and self.truncate, infos


class Masked(gymnasium.Env[Any, Any]):
    """Returns its mask from a method; only action 2 is valid."""

    observation_space = spaces.Box(0, 255, (10, 12, 3), np.uint8)
    action_space = spaces.Discrete(4, start=10)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        return self.np_random.integers(0, 255, (10, 12, 3), np.uint8)

    def action_masks(self) -> list[bool]:
        return [False, False, True, False]

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observe(), float(action == 12), False, bool(self.np_random.random() < 0.1), {}


ACTIONS: dict[str, spaces.Space[Any]] = {
    "choices": spaces.Dict({"a": spaces.Discrete(3, start=1), "b": spaces.Tuple((spaces.MultiBinary(2),))}),
    "numbers": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Dict({"speed": spaces.Box(0, 9, (), np.float64)}))),
    "both": spaces.Dict(
        {
            "move": spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32))),
            "say": spaces.MultiDiscrete([2, 3], start=[0, 5]),
        }
    ),
}


class Composite(gymnasium.Env[Any, Any]):
    """Takes actions of one of the spaces above; `masked` forbids the last option of `say`. Truncates after 6 steps."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, taken: str, masked: bool = False) -> None:
        self.action_space, self.masked = ACTIONS[taken], masked

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock = 0
        return self._observe(), self._infos()

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def _infos(self) -> dict[str, Any]:
        return {"action_mask": {"say": np.array([1, 1, 1, 1, 0])}} if self.masked else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        assert not self.masked or action["say"][1] != 7, action
        self.clock += 1
        return self._observe(), 1.0, False, self.clock == 6, self._infos()


SHOWN: dict[str, spaces.Space[Any]] = {
    "seven bytes": spaces.Dict({"kind": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (1,), np.float32)}),
    "numbers of shape ()": spaces.Dict({"x": spaces.Box(-1, 1, (), np.float64), "y": spaces.Box(0, 9, (), np.int64)}),
    "one number": spaces.Box(-1, 1, (), np.float32),
    "a tuple": spaces.Tuple(
        (spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2, 2), np.float64), spaces.MultiBinary(3))
    ),
    "an image": spaces.Box(0, 255, (40, 48, 3), np.uint8),
    "an image and numbers": spaces.Dict({"i": spaces.Box(0, 255, (12, 12, 1), np.uint8), "v": spaces.Box(-1, 1, (3,))}),
    "float64": spaces.Box(-1, 1, (3,), np.float64),
    "int64": spaces.Box(-100, 10**9, (3,), np.int64),
    "uint16": spaces.Box(0, 60_000, (3,), np.uint16),
    "a discrete": spaces.Discrete(4, start=2),
}


class Strange(gymnasium.Env[Any, Any]):
    """Shows samples of one of the spaces above; terminates after 7 steps."""

    action_space = spaces.Discrete(3, start=1)

    def __init__(self, shown: str) -> None:
        self.observation_space = SHOWN[shown]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.clock = 0
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.clock += 1
        return self.observation_space.sample(), float(action), self.clock == 7, False, {}


def make_strange(shown: str) -> Strange:
    return Strange(shown)


class Blind(Strange):
    """Declares finite numbers, and shows NaN."""

    def __init__(self) -> None:
        super().__init__("float64")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.full(3, np.nan), super().reset(seed=seed)[1]


class Unresettable(Counter):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        raise RuntimeError("there is no display")


class Unseeded(gymnasium.Env[Any, Any]):
    """Draws from an unseeded generator, and shows values outside its space."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    generator = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.generator.random(2).astype(np.float32) + 3, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.generator.random(2).astype(np.float32) + 3, 1.0, bool(self.generator.random() < 0.1), False, {}


class Raising(Counter):
    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.count == 3:
            raise RuntimeError("the wheel came off")
        return super().step(action)


class OldApi:
    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> np.ndarray:
        return np.zeros(2, np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, {}

    def close(self) -> None:
        pass


class Leaving(ParallelEnv[str, Any, int]):
    """Agent i leaves after 2 + i steps, terminated; the last one is truncated. Shows its number and the clock."""

    metadata = {"name": "leaving"}  # noqa: RUF012
    possible_agents = ["one", "two", "three"]  # noqa: RUF012

    def __init__(self, different: bool = False) -> None:
        self.different = different

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 100, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3 if self.different and agent == "two" else 2)

    def _observe(self, agent: str) -> np.ndarray:
        return np.array([self.possible_agents.index(agent) + 1, self.clock, self.start], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.clock, self.start = list(self.possible_agents), 0, int(self.random.integers(50))
        return {a: self._observe(a) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        assert set(actions) == set(self.agents)
        self.clock += 1
        acting = list(self.agents)
        gone = {a: self.clock >= 2 + self.possible_agents.index(a) for a in acting}
        self.agents = [a for a in acting if not gone[a]]
        return (
            {a: self._observe(a) for a in acting},
            {a: 1.0 + actions[a] for a in acting},
            {a: gone[a] and a != "three" for a in acting},
            {a: gone[a] and a == "three" for a in acting},
            {a: {"clock": self.clock} for a in acting},
        )


TEAM_ACTIONS: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {  # of the runner and of chasers
    "choices": (spaces.Discrete(4), spaces.MultiDiscrete([2, 3])),
    "numbers": (spaces.Box(0, 10, (1,), np.float32), spaces.Box(-1, 1, (2,), np.float32)),
    "both": (spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,), np.float32)),
}


class Teams(ParallelEnv[str, Any, Any]):
    """A runner and two chasers with different spaces. The runner gets 1 per step and leaves after 3 steps, chasers get 2.

    With `acting` "choices" the runner must not take its last option.
    """

    metadata = {"name": "teams"}  # noqa: RUF012
    possible_agents = ["runner", "chaser_0", "chaser_1"]  # noqa: RUF012

    def __init__(self, acting: str = "choices") -> None:
        self.acting = acting

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        if agent == "runner":
            return spaces.Dict({"near": spaces.Box(-9, 9, (2,), np.float32)})
        return spaces.Dict({"near": spaces.Box(-9, 9, (3,), np.float32), "kind": spaces.Discrete(2)})

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return TEAM_ACTIONS[self.acting][agent != "runner"]

    def _observe(self, agent: str) -> Any:
        if agent == "runner":
            return {"near": np.array([self.start, self.clock], np.float32)}
        return {"near": np.array([self.start, self.clock, 7], np.float32), "kind": int(agent[-1])}

    def _infos(self, agents: list[str]) -> dict[str, Any]:
        masked = {"action_mask": np.array([1, 1, 1, 0], np.int8)} if self.acting == "choices" else {}
        return {agent: masked if agent == "runner" else {} for agent in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.clock, self.start = list(self.possible_agents), 0, int(self.random.integers(1, 9))
        return {agent: self._observe(agent) for agent in self.agents}, self._infos(self.agents)

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert set(actions) == set(self.agents)
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), (agent, action)
        assert self.acting != "choices" or actions.get("runner", 0) != 3
        self.taken = dict(actions)
        self.clock += 1
        acting = list(self.agents)
        over = self.clock == 5
        gone = {agent: over or (agent == "runner" and self.clock == 3) for agent in acting}
        self.agents = [agent for agent in acting if not gone[agent]]
        return (
            {agent: self._observe(agent) for agent in acting},
            {agent: 1.0 if agent == "runner" else 2.0 for agent in acting},
            {agent: gone[agent] and not over for agent in acting},
            dict.fromkeys(acting, over),
            self._infos(acting),
        )


class Constant:
    """A custom `EnvBatch` that shows the env's seed."""

    def __init__(self, num_envs: int, buffers: Buffers | None, length: int) -> None:
        observation = ObservationSpec.single((1,), "float32", "vector")
        self.spec = EnvSpec("constant", observation, ActionSpec.discrete(2), max_steps=length)
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        self.length, self.ended = length, []  # type: int, list[EpisodeStats]

    def reset(self, seeds: np.ndarray) -> None:
        self.clock = np.zeros(self.num_envs, np.int64)
        self.buffers.observation[:, 0, 0] = seeds % np.uint64(97)
        self.buffers.terminated[:] = False
        self.buffers.truncated[:] = False
        self.buffers.alive[:] = True

    def step(self, first: int, last: int) -> None:
        self.clock[first:last] += 1
        over = self.clock[first:last] % self.length == 0
        self.buffers.reward[first:last] = 1.0
        self.buffers.truncated[first:last, 0] = over
        for env in first + np.flatnonzero(over):
            self.buffers.final_observation[env] = self.buffers.observation[env]
            self.ended.append(EpisodeStats(int(env), (float(self.length),), self.length))

    def episodes(self) -> list[EpisodeStats]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        pass


def make_constant_env(num_envs: int, buffers: Buffers | None = None, length: int = 4) -> Constant:
    return Constant(num_envs, buffers, length)


class Forgetful(Constant):
    """Does not write the final observation, and terminates at the time limit."""

    def step(self, first: int, last: int) -> None:
        self.clock[first:last] += 1
        over = self.clock[first:last] % self.length == 0
        self.buffers.reward[first:last] = 1.0
        self.buffers.terminated[first:last, 0] = over
        self.ended += [
            EpisodeStats(int(env), (float(self.length),), self.length) for env in first + np.flatnonzero(over)
        ]


def make_forgetful_env(num_envs: int, buffers: Buffers | None = None) -> Forgetful:
    return Forgetful(num_envs, buffers, 4)


def make_nothing() -> object:
    return object()


class NoRender(gymnasium.Env[Any, Any]):
    """Ends after seven steps; wins if the last action was 1. It has no render()."""

    observation_space = spaces.Box(0, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)
    length = 7

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        over = self.clock == self.length
        return np.full(1, self.clock, np.float32), float(action), over, False, {}


class Outcomes(NoRender):
    """Reports outcomes on every step, numbers on every step, and numbers at the end of an episode only."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        shown, reward, terminated, truncated, _ = super().step(action)
        infos: dict[str, Any] = {
            "won": terminated,  # a boolean
            "is_success": float(terminated),  # a number, and an outcome by its name
            "early": np.bool_(self.clock == 1),
            "place": self.clock,
        }
        return shown, reward, terminated, truncated, infos | ({"score": 9} if terminated else {})


class RaisingRender(NoRender):
    def render(self) -> Any:
        raise RuntimeError("the window is gone\nand with it the light")


class Bar(NoRender):
    """Draws a bar as long as the number of steps, in the mode `rgb_array` only."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def render(self) -> Any:
        if self.render_mode != "rgb_array":
            return None
        frame = np.zeros((8, 8 * self.length, 3), np.uint8)
        frame[:, : 8 * self.clock] = 255
        return frame


class Text(Bar):
    def render(self) -> Any:
        return np.zeros((4, 4), np.float32)


def make_no_render() -> NoRender:
    return NoRender()


def make_raising_render() -> RaisingRender:
    return RaisingRender()


def make_bar(render_mode: str | None = None) -> Bar:
    return Bar(render_mode)


def make_bar_of_any(**settings: Any) -> Bar:
    return Bar(**settings)


def make_bar_in_one_mode() -> Bar:
    return Bar()


def make_text(**settings: Any) -> Text:
    return Text(**settings)


def make_counter_of_any(**settings: Any) -> Counter:
    return Counter(**settings)


not_callable = 3


class GlobalDraws(Counter):
    """Draws its offset and its rewards from NumPy's global generator."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, infos = super().reset(seed=seed)
        self.offset = float(np.random.randint(50))  # noqa: NPY002
        return observation, infos

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, infos = super().step(action)
        return observation, float(np.random.random()), terminated, truncated, infos  # noqa: NPY002


def grid_envs(num_envs: int, buffers: Buffers | None = None) -> Any:
    """Return a custom batch that has the spec of the built-in environment `grid`."""
    from millpond.envs.grid.envs import GridEnvs

    return GridEnvs(num_envs, {}, buffers)


class Burning(gymnasium.Env[Any, Any]):
    """Computes for 4 ms in every step and holds the GIL."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ends = time.perf_counter() + 0.004
        while time.perf_counter() < ends:
            pass
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, self.steps >= 10, False, {}

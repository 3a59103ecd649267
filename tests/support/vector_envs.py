"""Small environments for tests of the vector. Workers import this module, so it must import neither torch nor pytest."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EpisodeStats
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

IDENTITY, AGENT, ENV_STEPS, SEED, EPISODE, LAST_ACTION, DRAW, TORCH = range(8)


def counting_spec(**changes: Any) -> EnvSpec:
    fields = {
        "id": "counting",
        "observation": ObservationSpec.single((8,), "int64", "vector"),
        "action": ActionSpec.discrete(1_000_000),
        "num_agents": 2,
        "savable": True,
    }
    return EnvSpec(**(fields | changes))


class CountingEnvs:
    """Observations contain the env, the agent, the number of steps and the last action.

    Episodes end after a random number of steps, by termination or truncation, drawn from the generator of the env.
    """

    def __init__(self, num_envs: int, buffers: Buffers, first_env: int, spec: EnvSpec | None = None) -> None:
        self.spec = spec or counting_spec()
        self.num_envs = num_envs
        self.buffers = buffers
        self.first_env = first_env
        self.env_steps = np.zeros(num_envs, np.int64)
        self.seeds = np.zeros(num_envs, np.uint64)
        self.episode = np.zeros(num_envs, np.int64)
        self.length = np.zeros(num_envs, np.int64)
        self.returns = np.zeros((num_envs, self.spec.num_agents))
        self.generators: list[np.random.Generator] = []
        self.ended: list[EpisodeStats] = []
        self.progress: npt.NDArray[np.int64] | None = None

    def watch(self, progress: npt.NDArray[np.int64]) -> None:
        self.progress = progress

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self.seeds[:] = seeds
        self.generators = [np.random.default_rng(int(seed)) for seed in seeds]
        for array in (self.env_steps, self.episode, self.length, self.returns):
            array[...] = 0
        self.buffers.alive[...] = True
        for env in range(self.num_envs):
            self.show(self.buffers.observation, env, 0)

    def step(self, first: int, last: int) -> None:
        for env in range(first, last):
            if self.progress is not None:
                self.progress[0] = env
            self.step_env(env)

    def step_env(self, env: int) -> None:
        buffers = self.buffers
        self.env_steps[env] += 1
        self.length[env] += 1
        reward = self.generators[env].random(self.spec.num_agents, np.float32) + buffers.action[env]
        self.returns[env] += reward
        end = self.generators[env].integers(8)
        buffers.reward[env] = reward
        buffers.terminated[env] = end == 0
        buffers.truncated[env] = end == 1
        if end < 2:
            self.show(buffers.final_observation, env, 1)
            info = {"last": float(self.env_steps[env])}
            self.ended.append(EpisodeStats(env, tuple(self.returns[env]), int(self.length[env]), info))
            self.episode[env] += 1
            self.length[env] = 0
            self.returns[env] = 0
        self.show(buffers.observation, env, 0)

    def show(self, place: npt.NDArray[Any], env: int, final: int) -> None:
        row = place[env]
        row[:, IDENTITY] = self.first_env + env
        row[:, AGENT] = np.arange(self.spec.num_agents)
        row[:, ENV_STEPS] = self.env_steps[env]
        row[:, SEED] = self.seeds[env].astype(np.int64)
        row[:, EPISODE] = self.episode[env]
        row[:, LAST_ACTION] = self.buffers.action[env]
        row[:, DRAW] = -1 if final else self.generators[env].integers(1 << 40)
        row[:, TORCH] = 0

    def episodes(self) -> list[EpisodeStats]:
        ended, self.ended = self.ended, []
        return ended

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        words = []
        for generator in self.generators:
            state: Any = generator.bit_generator.state
            for number in (state["state"]["state"], state["state"]["inc"]):
                words += [number & (2**64 - 1), number >> 64]
            words += [state["has_uint32"], state["uinteger"]]
        return {
            "generators": np.array(words, np.uint64).reshape(self.num_envs, 6),
            "env_steps": self.env_steps.copy(),
            "seeds": self.seeds.copy(),
            "episode": self.episode.copy(),
            "length": self.length.copy(),
            "returns": self.returns.copy(),
            "observation": self.buffers.observation.copy(),
        }

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.generators = []
        for low, high, inc_low, inc_high, has, value in state["generators"].tolist():
            generator = np.random.default_rng(0)
            generator.bit_generator.state = {
                "bit_generator": "PCG64",
                "state": {"state": low + (high << 64), "inc": inc_low + (inc_high << 64)},
                "has_uint32": has,
                "uinteger": value,
            }
            self.generators.append(generator)
        for name in ("env_steps", "seeds", "episode", "length", "returns"):
            getattr(self, name)[...] = state[name]
        self.buffers.observation[...] = state["observation"]

    def close(self) -> None:
        pass


def counting(num_envs: int, buffers: Buffers, first_env: int) -> CountingEnvs:
    return CountingEnvs(num_envs, buffers, first_env)


class WholeEnvs(CountingEnvs):
    """Can only step all its envs at once."""

    def step(self, first: int, last: int) -> None:
        assert (first, last) == (0, self.num_envs)
        super().step(first, last)


def whole(num_envs: int, buffers: Buffers, first_env: int) -> WholeEnvs:
    return WholeEnvs(num_envs, buffers, first_env, counting_spec(partial_step=False))


class FaultyEnvs(CountingEnvs):
    """Fails in the way that the action asks for."""

    FINE = 0
    RAISE, KILL, HANG, EXIT, SEGFAULT, GIVE_UP = range(1001, 1007)  # actions that no player takes by chance

    def step_env(self, env: int) -> None:
        action = int(self.buffers.action[env, 0])
        if action == self.RAISE:
            self.buffers.reward[env] = 77.0
            raise ValueError(f"env {self.first_env + env} does not like this")
        if action == self.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == self.HANG:
            sleep_for_a_long_time()
        elif action == self.EXIT:
            os._exit(3)
        elif action == self.GIVE_UP:
            sys.exit("no more")
        elif action == self.SEGFAULT:
            os.kill(os.getpid(), signal.SIGSEGV)
        super().step_env(env)


def sleep_for_a_long_time() -> None:
    time.sleep(600)


def faulty(num_envs: int, buffers: Buffers, first_env: int) -> FaultyEnvs:
    return FaultyEnvs(num_envs, buffers, first_env)


class UnwatchedEnvs(FaultyEnvs):
    """Does not report which env it is stepping."""

    watch = None  # type: ignore[assignment]


def unwatched(num_envs: int, buffers: Buffers, first_env: int) -> UnwatchedEnvs:
    return UnwatchedEnvs(num_envs, buffers, first_env)


class ModuleEnvs(CountingEnvs):
    """Reports whether torch is imported in its process."""

    def show(self, place: npt.NDArray[Any], env: int, final: int) -> None:
        super().show(place, env, final)
        place[env, :, TORCH] = "torch" in sys.modules


class ProcessIdEnvs(CountingEnvs):
    """Reports the id of its process in the place of the flag for torch."""

    def show(self, place: npt.NDArray[Any], env: int, final: int) -> None:
        super().show(place, env, final)
        place[env, :, TORCH] = os.getpid()


def process_ids(num_envs: int, buffers: Buffers, first_env: int) -> ProcessIdEnvs:
    return ProcessIdEnvs(num_envs, buffers, first_env)


def modules(num_envs: int, buffers: Buffers, first_env: int) -> ModuleEnvs:
    return ModuleEnvs(num_envs, buffers, first_env)


class CutOffEnvs(CountingEnvs):
    """Reports the episodes that a reset or a loaded state cut off, as some environments do."""

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        super().reset(seeds)
        self.ended.append(EpisodeStats(0, (-1.0, -1.0), -1))

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        super().load_state(state)
        self.ended.append(EpisodeStats(0, (-1.0, -1.0), -1))


def cut_off(num_envs: int, buffers: Buffers, first_env: int) -> CutOffEnvs:
    return CutOffEnvs(num_envs, buffers, first_env)


class SleepingEnvs(CountingEnvs):
    """A step takes 5 ms, whatever the number of envs."""

    def step(self, first: int, last: int) -> None:
        time.sleep(0.005)
        super().step(first, last)


def sleeping(num_envs: int, buffers: Buffers, first_env: int) -> SleepingEnvs:
    return SleepingEnvs(num_envs, buffers, first_env)


def unbuildable(num_envs: int, buffers: Buffers, first_env: int) -> CountingEnvs:
    raise RuntimeError(f"no map for env {first_env}")


class BurningEnvs(CountingEnvs):
    """Computes for 10 ms in every step of an env and holds the GIL."""

    def step_env(self, env: int) -> None:
        ends = time.perf_counter() + 0.01
        while time.perf_counter() < ends:
            pass
        super().step_env(env)


def burning(num_envs: int, buffers: Buffers, first_env: int) -> BurningEnvs:
    return BurningEnvs(num_envs, buffers, first_env)


class BurningWholeEnvs(BurningEnvs):
    """Burns, and can only step all its envs at once."""

    def step(self, first: int, last: int) -> None:
        assert (first, last) == (0, self.num_envs)
        super().step(first, last)


def burning_whole(num_envs: int, buffers: Buffers, first_env: int) -> BurningWholeEnvs:
    return BurningWholeEnvs(num_envs, buffers, first_env, counting_spec(partial_step=False))


class IdleEnvs(CountingEnvs):
    """Does nothing in a step."""

    def step(self, first: int, last: int) -> None:
        pass


def idle(num_envs: int, buffers: Buffers, first_env: int) -> IdleEnvs:
    return IdleEnvs(num_envs, buffers, first_env)


class FailingEnvs(CountingEnvs):
    """Fails in its third step, whatever the actions are."""

    def __init__(self, num_envs: int, buffers: Buffers, first_env: int, action: int) -> None:
        super().__init__(num_envs, buffers, first_env)
        self.action = action

    def step_env(self, env: int) -> None:
        if self.env_steps[env] == 2:
            fail(self.action)
        super().step_env(env)


def fail(action: int) -> None:
    if action == FaultyEnvs.RAISE:
        raise ValueError("no third step")
    if action == FaultyEnvs.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    sleep_for_a_long_time()


def raising(num_envs: int, buffers: Buffers, first_env: int) -> FailingEnvs:
    return FailingEnvs(num_envs, buffers, first_env, FaultyEnvs.RAISE)


def killing(num_envs: int, buffers: Buffers, first_env: int) -> FailingEnvs:
    return FailingEnvs(num_envs, buffers, first_env, FaultyEnvs.KILL)


def hanging(num_envs: int, buffers: Buffers, first_env: int) -> FailingEnvs:
    return FailingEnvs(num_envs, buffers, first_env, FaultyEnvs.HANG)


def unmakeable(num_envs: int, buffers: Buffers, first_env: int) -> CountingEnvs:
    raise ValueError("these envs cannot be made")


class SlowAtFirstEnvs(CountingEnvs):
    """Takes half a second for its first step, as an environment does that loads or compiles something, and none after."""

    def step(self, first: int, last: int) -> None:
        if not self.env_steps.any():
            time.sleep(0.5)
        self.env_steps[first:last] += 1


def slow_at_first(num_envs: int, buffers: Buffers, first_env: int) -> SlowAtFirstEnvs:
    return SlowAtFirstEnvs(num_envs, buffers, first_env)

"""`EnvBatch`, the protocol that every environment implements: N envs that step in place, in buffers of the caller.

Also here is what implementations share: random streams, saved states, and the tracking of episodes.

    N envs in the batch    A agents per env

Autoreset, one rule for all: the step that ends an episode resets the env at once. `observation` is then the first
observation of the next episode, and `final_observation` holds the last one of the old episode; `reward`, `terminated`
and `truncated` belong to the step that was taken. `final_observation` is meaningful only where an episode ended, and so is
`final_action_mask`: the actions that were allowed there, or none if that is not known.

Random numbers: one stream per env, splitmix64 (Steele, Lea and Flood, 2014), with eight bytes of state.

    state <- state + 0x9E3779B97F4A7C15 mod 2^64;   output = mix(state)

The state is a counter, so a stream is saved as one integer, and the numbers that an env draws depend on its own seed
alone: not on its index in the batch, nor on the number of other envs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError

# The buffers that a saved state holds. Actions are not among them: the caller writes them before every step.
SAVED_BUFFERS = ("observation", "final_observation", "reward", "terminated", "truncated", "alive", "action_mask")

# Constants of splitmix64.
GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
SHIFT_1, SHIFT_2, SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)

Aggregate = Literal["auto", "mean", "sum", "last", "max"]
BOOLEAN_TYPES = (bool, np.bool_)
NUMBER_TYPES = (float, np.floating, int, np.integer, *BOOLEAN_TYPES)
OUTCOMES = frozenset({"won", "win", "success", "is_success", "solved"})  # outcomes even if reported as 0.0 and 1.0


class EnvError(MillpondError):
    """An environment cannot be made or used as requested; the message says why and what to do."""


class NotInSpaceError(EnvError):
    """An observation is not a value of the env's space. `what` describes it, whoever passed it."""

    def __init__(self, env_id: str, what: str) -> None:
        super().__init__(
            f"env {env_id!r} returned {what}. "
            f"Return a value of the space, or change observation_space; `millpond envs check {env_id}` checks it"
        )
        self.what = what


@dataclass
class Buffers:
    """Arrays of one batch of envs. All are C-contiguous, first axis envs, so that a slice of envs is a view."""

    action: npt.NDArray[Any]  # [N, A, *action]       written by the caller
    observation: npt.NDArray[Any]  # [N, A, *observation]
    final_observation: npt.NDArray[Any]  # [N, A, *observation]
    reward: npt.NDArray[np.float32]  # [N, A]
    terminated: npt.NDArray[np.bool_]  # [N, A]
    truncated: npt.NDArray[np.bool_]  # [N, A]
    alive: npt.NDArray[np.bool_]  # [N, A]   the agent acts at the current observation
    action_mask: npt.NDArray[np.bool_]  # [N, A, action.mask_size]; size 0 if the environment has no masks
    final_action_mask: npt.NDArray[np.bool_]  # [N, A, action.mask_size]; of the final observation

    @staticmethod
    def layout(spec: EnvSpec, num_envs: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shape and dtype of each array."""
        agents = (num_envs, spec.num_agents)
        observation = (agents + spec.observation.shape, np.dtype(spec.observation.dtype))
        flags = (agents, np.dtype(np.bool_))
        mask = ((*agents, spec.action.mask_size if spec.action_masks else 0), np.dtype(np.bool_))
        return {
            "action": (agents + spec.action.shape, np.dtype(spec.action.dtype)),
            "observation": observation,
            "final_observation": observation,
            "reward": (agents, np.dtype(np.float32)),
            "terminated": flags,
            "truncated": flags,
            "alive": flags,
            "action_mask": mask,
            "final_action_mask": mask,
        }

    @staticmethod
    def allocate(spec: EnvSpec, num_envs: int) -> Buffers:
        return Buffers(
            **{name: np.zeros(shape, dtype) for name, (shape, dtype) in Buffers.layout(spec, num_envs).items()}
        )

    def envs(self, first: int, last: int) -> Buffers:
        """Return a view of the envs first..last-1."""
        return Buffers(**{f.name: getattr(self, f.name)[first:last] for f in fields(self)})


@dataclass(frozen=True)
class EpisodeStats:
    """Return, length and infos of an episode that ended."""

    env: int  # index in the batch
    returns: tuple[float, ...]  # undiscounted, one per agent
    length: int  # env steps
    info: dict[str, float] = field(default_factory=dict)  # numbers the environment reported


class EnvBatch(Protocol):
    """A batch of N envs of one kind."""

    spec: EnvSpec
    num_envs: int
    buffers: Buffers

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        """Start every env from its own seed [N] and write the first observations."""

    def step(self, first: int, last: int) -> None:
        """Step the envs first..last-1 with `buffers.action`, and write everything else in place."""

    def episodes(self) -> list[EpisodeStats]:
        """Return the episodes that ended since the last call."""

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state, if `spec.savable`; stepping from it repeats bit for bit."""

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Restore a state of `save_state`, observations included."""

    def close(self) -> None:
        """Free all resources."""


def unsavable(env_id: str, verb: str) -> EnvError:
    """Return the error of an environment whose state cannot be `saved` or `restored`."""
    return EnvError(f"the state of env {env_id!r} cannot be {verb}; see spec.savable")


def save_arrays(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Copy arrays under the keys `prefix.NAME`."""
    return {f"{prefix}.{name}": array.copy() for name, array in arrays.items()}


def load_arrays(
    prefix: str, arrays: Mapping[str, npt.NDArray[Any]], state: Mapping[str, npt.NDArray[Any]], *, env_id: str
) -> None:
    """Copy saved arrays into an environment's own; refuse missing keys and other shapes or dtypes."""
    for name, array in arrays.items():
        key = f"{prefix}.{name}"
        if key not in state:
            raise EnvError(f"the saved state has no {key!r}: it is not a state of env {env_id!r}; start a new run")
        saved = np.asarray(state[key])
        if saved.shape != array.shape or saved.dtype != array.dtype:
            raise EnvError(
                f"the saved state of env {env_id!r} has {key} of {saved.dtype} {saved.shape}, but the environment as "
                f"configured needs {array.dtype} {array.shape}; resume with the run's own env options and env count"
            )
        array[...] = saved


def buffer_arrays(buffers: Buffers) -> dict[str, npt.NDArray[Any]]:
    """Return the buffers that belong to a saved state, by name."""
    masks = {"final_action_mask": buffers.final_action_mask} if buffers.final_action_mask.size else {}
    return {name: getattr(buffers, name) for name in SAVED_BUFFERS} | masks


def draw(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Advance each stream of `state` in place and return one output per stream."""
    with np.errstate(over="ignore"):
        state += GAMMA
        mixed = (state ^ (state >> SHIFT_1)) * MIX_1
        mixed = (mixed ^ (mixed >> SHIFT_2)) * MIX_2
        return np.asarray(mixed ^ (mixed >> SHIFT_3), np.uint64)


def draw_below(state: npt.NDArray[np.uint64], bound: int) -> npt.NDArray[np.int64]:
    """Draw one integer in 0..bound-1 per stream, from the upper 32 bits: floor(u * bound / 2^32)."""
    return np.asarray(((draw(state) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32), np.int64)


def spawn_seeds(seed: int, num_envs: int) -> npt.NDArray[np.uint64]:
    """Derive the seeds of a batch from one number. The seeds of a smaller batch are a prefix of a larger one's."""
    return np.random.SeedSequence(seed).generate_state(num_envs, np.uint64).astype(np.uint64)


def check_seeds(seeds: npt.NDArray[Any], num_envs: int) -> npt.NDArray[np.uint64]:
    """Return a copy of the seeds of a batch as uint64 [num_envs]."""
    array = np.array(seeds)
    if array.shape != (num_envs,) or array.dtype.kind not in "ui" or (array.dtype.kind == "i" and (array < 0).any()):
        raise ValueError(
            f"seeds must be {num_envs} non-negative integers, one per env; got {array.dtype} {array.shape}"
        )
    return array.astype(np.uint64)


@dataclass(slots=True)
class InfoStatistics:
    """Statistics of the values reported under one name in the current episode."""

    total: float = 0.0
    count: int = 0
    largest: float = float("-inf")
    outcome: bool = True  # only booleans so far, or a name in OUTCOMES
    last: dict[int, float] = field(default_factory=dict)  # by agent

    def add(self, number: float, agent: int, outcome: bool) -> None:
        self.total += number
        self.count += 1
        if number > self.largest:
            self.largest = number
        if not outcome:
            self.outcome = False
        self.last[agent] = number

    def value(self, aggregate: Aggregate) -> float:
        """Return one number for the episode. `auto` is `last` for an outcome, else `mean`."""
        if aggregate == "auto":
            aggregate = "last" if self.outcome else "mean"
        if aggregate == "last":
            return sum(self.last.values()) / len(self.last)
        if aggregate == "max":
            return self.largest
        return self.total if aggregate == "sum" else self.total / self.count


class EpisodeTracker:
    """Accumulates rewards and reported numbers per env, and returns the statistics of episodes that ended.

    A number in the infos is aggregated over the steps and agents that reported it, so a number that is reported only
    at the end is returned unchanged. With several agents, `last` is the mean of each agent's last value.
    """

    def __init__(self, num_envs: int, num_agents: int, aggregate: Aggregate = "auto") -> None:
        self.aggregate = aggregate
        self.returns = np.zeros((num_envs, num_agents), np.float64)
        self.length = np.zeros(num_envs, np.int64)
        self._reported: list[dict[str, InfoStatistics]] = [{} for _ in range(num_envs)]
        self._ended: list[EpisodeStats] = []

    def reset(self) -> None:
        """Forget everything: all envs start a new episode."""
        self.returns[:] = 0.0
        self.length[:] = 0
        self._reported = [{} for _ in self._reported]
        self._ended = []

    def add_step(self, first: int, last: int, reward: npt.NDArray[np.float32]) -> None:
        """Count one step of the envs first..last-1; `reward` is their slice."""
        self.returns[first:last] += reward
        self.length[first:last] += 1

    def add_infos(self, env: int, infos: Mapping[str, Any], agent: int = 0) -> None:
        """Record the numbers in an agent's infos after a step, ignoring NaN and everything that is not a number."""
        reported = self._reported[env]
        for name, value in infos.items():
            kind, outcome = type(value), name in OUTCOMES
            if kind is not float and kind is not np.float64:  # the usual types need no further look
                if isinstance(value, np.ndarray) and value.ndim == 0:
                    value = value.item()
                if not isinstance(value, NUMBER_TYPES):
                    continue
                outcome = outcome or isinstance(value, BOOLEAN_TYPES)
            number = float(value)
            if number != number:
                continue
            statistics = reported.get(name)
            if statistics is None:
                statistics = reported[name] = InfoStatistics()
            statistics.add(number, agent, outcome)

    def end_episode(self, env: int, info: Mapping[str, float] | None = None) -> None:
        """End an env's episode; `info` is added to the reported numbers."""
        numbers = {name: reported.value(self.aggregate) for name, reported in self._reported[env].items()}
        self.add_ended(env, self.returns[env], int(self.length[env]), numbers | dict(info or {}))
        self.returns[env] = 0.0
        self.length[env] = 0
        self._reported[env] = {}

    def add_ended(self, env: int, returns: npt.NDArray[np.float64], length: int, info: dict[str, float]) -> None:
        """Record an ended episode that the environment tracked itself."""
        self._ended.append(EpisodeStats(env, tuple(float(value) for value in returns), length, info))

    def pop_ended(self) -> list[EpisodeStats]:
        """Return the episodes that ended since the last call, in the order in which they ended."""
        ended, self._ended = self._ended, []
        return ended

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything, including ended episodes not yet returned; infos are JSON in bytes."""
        ended = [[e.env, list(e.returns), e.length, e.info] for e in self._ended]
        reported = [{name: asdict(numbers) for name, numbers in one.items()} for one in self._reported]
        text = json.dumps({"reported": reported, "ended": ended}).encode()
        return {
            "book.returns": self.returns.copy(),
            "book.length": self.length.copy(),
            "book.text": np.frombuffer(text, np.uint8).copy(),
        }

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self.returns[:] = state["book.returns"]
        self.length[:] = state["book.length"]
        text = json.loads(state["book.text"].tobytes())
        self._reported = [{name: _reported(saved) for name, saved in one.items()} for one in text["reported"]]
        self._ended = [EpisodeStats(env, tuple(returns), length, info) for env, returns, length, info in text["ended"]]


def _reported(saved: Mapping[str, Any]) -> InfoStatistics:
    """Build from JSON, whose keys are strings."""
    return InfoStatistics(**{**saved, "last": {int(agent): number for agent, number in saved["last"].items()}})

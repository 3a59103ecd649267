"""Track episodes in progress: returns, lengths and the numbers that an environment reports in its infos."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import EpisodeStats

Aggregate = Literal["auto", "mean", "sum", "last", "max"]
OUTCOMES = frozenset({"won", "win", "success", "is_success", "solved"})  # outcomes even if reported as 0.0 and 1.0


@dataclass
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
        self.largest = max(self.largest, number)
        self.outcome = self.outcome and outcome
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
            if isinstance(value, np.ndarray) and value.ndim == 0:
                value = value.item()
            if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating) or value != value:
                continue
            if name not in reported:
                reported[name] = InfoStatistics()
            reported[name].add(float(value), agent, isinstance(value, bool | np.bool_) or name in OUTCOMES)

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

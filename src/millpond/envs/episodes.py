"""The books of episodes under way: returns, lengths and the numbers that an environment reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Episode

Aggregate = Literal["auto", "mean", "sum", "last", "max"]
OUTCOMES = frozenset({"won", "win", "success", "is_success", "solved"})  # outcomes, also where they are 0.0 and 1.0


@dataclass
class Reported:
    """Everything that was reported under one name in an episode so far."""

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
        """One number for the episode. `auto`: `last` for an outcome, else `mean`."""
        if aggregate == "auto":
            aggregate = "last" if self.outcome else "mean"
        if aggregate == "last":
            return sum(self.last.values()) / len(self.last)
        if aggregate == "max":
            return self.largest
        return self.total if aggregate == "sum" else self.total / self.count


class EpisodeBook:
    """Adds up rewards and reported numbers per env, and hands over whole episodes.

    A number that an environment reports in its infos is aggregated over the steps and agents that reported it, so one that is
    reported only at the end stays as it is. Of several agents, `last` is the mean of each one's last value.
    """

    def __init__(self, num_envs: int, num_agents: int, aggregate: Aggregate = "auto") -> None:
        self.aggregate = aggregate
        self.returns = np.zeros((num_envs, num_agents), np.float64)
        self.length = np.zeros(num_envs, np.int64)
        self._reported: list[dict[str, Reported]] = [{} for _ in range(num_envs)]
        self._ended: list[Episode] = []

    def begin_all(self) -> None:
        """Forget everything: all envs begin afresh."""
        self.returns[:] = 0.0
        self.length[:] = 0
        self._reported = [{} for _ in self._reported]
        self._ended = []

    def add(self, first: int, last: int, reward: npt.NDArray[np.float32]) -> None:
        """One step of the envs first..last-1; `reward` is their slice."""
        self.returns[first:last] += reward
        self.length[first:last] += 1

    def report(self, env: int, infos: Mapping[str, Any], agent: int = 0) -> None:
        """Take the numbers of an agent's infos after a step. What is not a number is left out, and so is NaN."""
        reported = self._reported[env]
        for name, value in infos.items():
            if isinstance(value, np.ndarray) and value.ndim == 0:
                value = value.item()
            if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating) or value != value:
                continue
            if name not in reported:
                reported[name] = Reported()
            reported[name].add(float(value), agent, isinstance(value, bool | np.bool_) or name in OUTCOMES)

    def end(self, env: int, info: Mapping[str, float] | None = None) -> None:
        """An env's episode is over; `info` adds to what was reported."""
        numbers = {name: reported.value(self.aggregate) for name, reported in self._reported[env].items()}
        self.append(env, self.returns[env], int(self.length[env]), numbers | dict(info or {}))
        self.returns[env] = 0.0
        self.length[env] = 0
        self._reported[env] = {}

    def append(self, env: int, returns: npt.NDArray[np.float64], length: int, info: dict[str, float]) -> None:
        """An episode whose books the environment kept itself."""
        self._ended.append(Episode(env, tuple(float(value) for value in returns), length, info))

    def drain(self) -> list[Episode]:
        """Episodes that ended since the last call, in the order of their ending."""
        ended, self._ended = self._ended, []
        return ended

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything, episodes not yet handed over included; the open texts are JSON in bytes."""
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
        self._ended = [Episode(env, tuple(returns), length, info) for env, returns, length, info in text["ended"]]


def _reported(saved: Mapping[str, Any]) -> Reported:
    """From JSON, whose keys are texts."""
    return Reported(**{**saved, "last": {int(agent): number for agent, number in saved["last"].items()}})

"""The books of episodes under way: returns, lengths and the numbers that a world reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from millpond.envs.world import Episode

Aggregate = Literal["mean", "sum", "last", "max"]


class EpisodeBook:
    """Adds up rewards and reported numbers per env, and hands over whole episodes.

    A number that a world reports in its infos is aggregated over the steps (and agents) that reported it: so one
    that comes only at the end is kept as it is, whatever the aggregate.
    """

    def __init__(self, num_envs: int, num_agents: int, aggregate: Aggregate = "mean") -> None:
        self.aggregate = aggregate
        self.returns = np.zeros((num_envs, num_agents), np.float64)
        self.length = np.zeros(num_envs, np.int64)
        self._reported: list[dict[str, tuple[float, int]]] = [{} for _ in range(num_envs)]
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

    def report(self, env: int, infos: Mapping[str, Any]) -> None:
        """Take the numbers of an infos mapping. What is not a number is left out, and so is NaN."""
        reported = self._reported[env]
        for name, value in infos.items():
            if isinstance(value, np.ndarray) and value.ndim == 0:
                value = value.item()
            if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating) or value != value:
                continue
            number = float(value)
            total, count = reported.get(name, (0.0, 0))
            if self.aggregate == "last" or count == 0:
                reported[name] = (number, 1)
            elif self.aggregate == "max":
                reported[name] = (max(total, number), 1)
            else:
                reported[name] = (total + number, count + 1)

    def end(self, env: int, info: Mapping[str, float] | None = None) -> None:
        """An env's episode is over; `info` adds to what was reported."""
        mean = self.aggregate == "mean"
        numbers = {name: total / count if mean else total for name, (total, count) in self._reported[env].items()}
        self.append(env, self.returns[env], int(self.length[env]), numbers | dict(info or {}))
        self.returns[env] = 0.0
        self.length[env] = 0
        self._reported[env] = {}

    def append(self, env: int, returns: npt.NDArray[np.float64], length: int, info: dict[str, float]) -> None:
        """An episode whose books the world kept itself."""
        self._ended.append(Episode(env, tuple(float(value) for value in returns), length, info))

    def drain(self) -> list[Episode]:
        """Episodes that ended since the last call, in the order of their ending."""
        ended, self._ended = self._ended, []
        return ended

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything, episodes not yet handed over included; the open texts are JSON in bytes."""
        ended = [[e.env, list(e.returns), e.length, e.info] for e in self._ended]
        text = json.dumps({"reported": self._reported, "ended": ended}).encode()
        return {
            "book.returns": self.returns.copy(),
            "book.length": self.length.copy(),
            "book.text": np.frombuffer(text, np.uint8).copy(),
        }

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self.returns[:] = state["book.returns"]
        self.length[:] = state["book.length"]
        text = json.loads(state["book.text"].tobytes())
        self._reported = [{name: (total, count) for name, (total, count) in one.items()} for one in text["reported"]]
        self._ended = [Episode(env, tuple(returns), length, info) for env, returns, length, info in text["ended"]]

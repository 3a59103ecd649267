"""What sampling gives."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Observation = Any  # an array, or a dict of arrays where the schema has several fields


@dataclass
class Batch:
    """Transitions. With n steps, R = sum of gamma^k r_k over `steps` of them, and the target is

        R + discount * max_a Q(next_observation, a)        discount = gamma^steps, 0 where terminated

    observation, next_observation  [n, (stack,) ...]   `next_observation` is zeros behind a terminated step whose
                                                       final observation was not stored: its discount is 0
    action [n, ...]   reward, discount float32 [n]   terminated, truncated bool [n]   steps int32 [n]
    stream int32 [n]  number of the stream, in the order of their names
    record [n]        the whole record of the first step: lane, episode, agent, round, epsilon, ... and extra fields
    row int64 [n]     where in the stream it was found
    """

    observation: Observation
    next_observation: Observation
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    discount: Array
    steps: Array
    stream: Array
    row: Array
    record: Array

    def __len__(self) -> int:
        return len(self.reward)

    def put(self, where: Array, other: Batch) -> None:
        """Replace transitions by others."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, dict):
                for name in mine:
                    mine[name][where] = theirs[name]
            else:
                mine[where] = theirs


@dataclass
class Sequences:
    """Contiguous steps of one episode each: `burn_in` of them before, `length` to train on.

    observation [n, burn_in + length, ...]   action, reward, terminated, truncated [n, burn_in + length, ...]
    mask        [n, burn_in + length]        False in front of the episode's beginning, where all is zeros
    next_observation [n, ...]                behind the last step
    """

    observation: Observation
    next_observation: Observation
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    mask: Array
    stream: Array
    row: Array
    record: Array


@dataclass
class Episode:
    """A whole episode of T steps: T + 1 observations where the final one was stored, else T.

    `record` [T] are the steps' records, with reward, flags, provenance and extra fields.
    """

    stream: str
    observation: Observation
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    record: Array

    @property
    def has_final(self) -> bool:
        first = next(iter(self.observation.values())) if isinstance(self.observation, dict) else self.observation
        return len(first) == len(self.reward) + 1

    @property
    def episode_return(self) -> float:
        return float(self.reward.sum(dtype=np.float64))

"""What `recv` gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EpisodeStats
from millpond.vector.layout import Task


@dataclass(eq=False)
class Batch:
    """The envs first..last-1, all arrays as views [envs, agents, ...] that are valid until `send`.

    The same object comes back at every turn of its group, with other contents. `reward`, `terminated`, `truncated`,
    `final_observation` and `episodes` tell of the step that the last `send` asked for; `stepped` is False, and they
    are zero and empty, where there was none: after `reset`, and when a round begins.

    Where `restarted`, the env crashed and was started anew: the action was not taken, the observation is the first of
    a new episode, and the open row holds a trajectory that goes nowhere.
    """

    group: int  # or the piece of a part
    first: int
    last: int
    action: npt.NDArray[Any]  # where `send` puts the actions; writable
    observation: npt.NDArray[Any]
    final_observation: npt.NDArray[Any]  # meaningful where terminated or truncated
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    alive: npt.NDArray[np.bool_]
    action_mask: npt.NDArray[np.bool_]
    restarted: npt.NDArray[np.bool_]  # [envs]
    stepped: bool = False
    episodes: list[EpisodeStats] = field(default_factory=list)  # `EpisodeStats.env` is the env's index in the vector

    @staticmethod
    def view(group: int, first: int, last: int, buffers: Buffers, restarted: npt.NDArray[np.bool_]) -> Batch:
        part = buffers.envs(first, last)
        return Batch(
            group,
            first,
            last,
            part.action,
            part.observation,
            part.final_observation,
            part.reward,
            part.terminated,
            part.truncated,
            part.alive,
            part.action_mask,
            restarted[first:last],
        )

    @property
    def num_envs(self) -> int:
        return self.last - self.first


# -- A run of envs that steps together: a group, or a piece of a part.

NO_TICKET = 0  # tickets begin at 1


class Status(IntEnum):
    REST = 0  # nothing asked for; its latest observation can be received
    HELD = 1  # received: the policy has it
    FLYING = 2  # sent: workers have it
    LANDED = 3  # stepped, and not yet received


@dataclass(eq=False)
class Stretch:
    batch: Batch
    tasks: tuple[Task, ...]
    tickets: list[int]
    status: Status = Status.REST
    ended: list[EpisodeStats] = field(default_factory=list)  # episodes, until they are received

    @property
    def first(self) -> int:
        return self.batch.first

    @property
    def last(self) -> int:
        return self.batch.last

"""`Batch`, the result of `recv`, and `EnvSlice`, the contiguous envs that step together to fill it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EpisodeStats
from millpond.vector.layout import Task

NO_TICKET = 0  # tickets start at 1


@dataclass(eq=False)
class Batch:
    """The envs first..last-1; all arrays are views [envs, agents, ...] that are valid until `send`.

    The same object is returned at every turn of its group, with new contents. `reward`, `terminated`, `truncated`,
    `final_observation` and `episodes` are results of the step that the last `send` started. If there was none (after
    `reset`, and at the start of a round), `stepped` is False and they are zero and empty.

    Where `restarted`, the env crashed and was restarted: the action was not taken, the observation is the first of a
    new episode, and the unfinished row holds a trajectory without an end.
    """

    group: int  # index of the group, or of the range within a slice
    first: int
    last: int
    action: npt.NDArray[Any]  # `send` writes the actions here; writable
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
        arrays = buffers.envs(first, last)
        return Batch(
            group,
            first,
            last,
            arrays.action,
            arrays.observation,
            arrays.final_observation,
            arrays.reward,
            arrays.terminated,
            arrays.truncated,
            arrays.alive,
            arrays.action_mask,
            restarted[first:last],
        )

    @property
    def num_envs(self) -> int:
        return self.last - self.first


class SliceStatus(IntEnum):
    """State of an `EnvSlice` between `send` and `recv`. The values are part of saved states."""

    IDLE = 0  # no step was requested; the latest observation can be received
    RECEIVED = 1  # the policy has the batch
    STEPPING = 2  # sent: the workers are stepping
    STEPPED = 3  # the step is done and not yet received


@dataclass(eq=False)
class EnvSlice:
    """Contiguous envs that step together: a group, or one range of a slice of the vector."""

    batch: Batch
    tasks: tuple[Task, ...]
    tickets: list[int]  # of the tasks' commands
    status: SliceStatus = SliceStatus.IDLE
    ended: list[EpisodeStats] = field(default_factory=list)  # episodes that were not yet received

    @property
    def first(self) -> int:
        return self.batch.first

    @property
    def last(self) -> int:
        return self.batch.last

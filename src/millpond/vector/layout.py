"""The layout of a vector: which envs belong to which group, which worker steps them, and the batches they fill.

    group 0 = A          group 1 = B                  8 envs, 2 groups, 2 workers
    0  1 | 2  3          4  5 | 6  7
    w0     w1            w0     w1

Groups are contiguous and of equal size. Every worker has a share of every group, so that all workers step whichever
group was sent. A share is a `Shard`: the envs of one env batch. The trainer may step the last envs of each group
itself: it counts as one more worker, after the others.

An `EnvSlice` is a group, or a contiguous range of envs, that steps together; `Batch` is what `recv` returns for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EpisodeStats
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.formatting import plural

NO_TICKET = 0  # tickets start at 1


class VectorError(MillpondError):
    """A vector cannot do what was requested."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The envs first..last-1, in one env batch, on one worker."""

    index: int
    worker: int
    group: int
    first: int
    last: int


class Task(NamedTuple):
    """The share of one env batch in a step: its envs first..last-1, counted within the batch."""

    shard: Shard
    first: int
    last: int

    @property
    def first_env(self) -> int:
        return self.shard.first + self.first

    @property
    def last_env(self) -> int:
        return self.shard.first + self.last


@dataclass(frozen=True)
class Layout:
    """All shards, in the order of their envs."""

    num_envs: int
    groups: int
    num_workers: int
    shards: tuple[Shard, ...]
    trainer_envs: int = 0  # envs of each group that the trainer steps itself

    @staticmethod
    def of(num_envs: int, groups: int, num_workers: int, trainer_envs: int = 0) -> Layout:
        for key, value in (("num_envs", num_envs), ("groups", groups), ("num_workers", num_workers)):
            if value < 1:
                raise VectorError(f"{key}={value} must be at least 1")
        if num_envs % groups:
            low, high = num_envs // groups * groups, -(-num_envs // groups) * groups
            near = f"{low:,} or {high:,}" if low else f"{high:,}"
            raise VectorError(f"num_envs={num_envs:,} is not a multiple of groups={groups}; try {near}")
        size = num_envs // groups
        if num_workers > size:
            raise VectorError(
                f"num_workers={num_workers} is more than the {size:,} envs of a group "
                f"(num_envs={num_envs:,}, groups={groups}); use at most {size:,} workers"
            )
        worker_envs = size - trainer_envs
        if trainer_envs and num_workers > worker_envs:
            raise VectorError(
                f"the trainer would step {trainer_envs:,} of the {size:,} envs of a group itself, which leaves "
                f"{worker_envs:,} for {plural(num_workers, 'worker')}; set vector.trainer_share=0, or use fewer workers"
            )
        edges = [worker_envs * worker // num_workers for worker in range(num_workers + 1)]
        if trainer_envs:
            edges.append(size)
        shards: list[Shard] = []
        for group in range(groups):
            for worker, (first, last) in enumerate(pairwise(edges)):
                shards.append(Shard(len(shards), worker, group, group * size + first, group * size + last))
        return Layout(num_envs, groups, num_workers, tuple(shards), trainer_envs)

    def group(self, index: int) -> tuple[int, int]:
        """Return first and last (exclusive) env of a group."""
        size = self.num_envs // self.groups
        return index * size, (index + 1) * size

    def ranges(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return the `count` envs from `first` on as contiguous ranges: two if they wrap around the end."""
        if not 0 <= first < self.num_envs or not 1 <= count <= self.num_envs:
            raise VectorError(
                f"slice(first={first}, count={count}): first must be in 0..{self.num_envs - 1:,} "
                f"and count in 1..{self.num_envs:,}"
            )
        last = first + count
        if last <= self.num_envs:
            return [(first, last)]
        return [(first, self.num_envs), (0, last - self.num_envs)]

    def tasks(self, first: int, last: int) -> tuple[Task, ...]:
        """Return the share of each env batch in a step of the envs first..last-1."""
        return tuple(
            Task(shard, max(first, shard.first) - shard.first, min(last, shard.last) - shard.first)
            for shard in self.shards
            if shard.first < last and first < shard.last
        )

    def require_whole_batches(self, spec: EnvSpec, first: int, count: int) -> None:
        """Refuse a slice that cuts through an env batch which can only be stepped as a whole."""
        if spec.partial_step:
            return
        for first_env, last_env in self.ranges(first, count):
            for task in self.tasks(first_env, last_env):
                shard = task.shard
                if task.first_env != shard.first or task.last_env != shard.last:
                    starts = [shard.first for shard in self.shards]
                    sizes = sorted({shard.last - shard.first for shard in self.shards})
                    shown = ", ".join(f"{start:,}" for start in starts[:6]) + (", ..." if len(starts) > 6 else "")
                    multiples = " or ".join(f"{size:,}" for size in sizes)
                    raise VectorError(
                        f"{spec.id} cannot step a slice of an env batch (spec.partial_step is false), and "
                        f"slice(first={first:,}, count={count:,}) cuts through the batch of the envs "
                        f"{shard.first:,} to {shard.last - 1:,}. Batches start at env {shown} and have {multiples} "
                        f"envs: use one of these starts, and a count that adds up whole batches"
                    )


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
    final_action_mask: npt.NDArray[np.bool_]  # of the final observation
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
            arrays.final_action_mask,
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
    commands: list[tuple[int, Any]]  # the worker and the command of each task's step
    env_steps: npt.NDArray[np.int64]  # of these envs, since they were seeded
    status: SliceStatus = SliceStatus.IDLE
    ended: list[EpisodeStats] = field(default_factory=list)  # episodes that were not yet received

    @property
    def first(self) -> int:
        return self.batch.first

    @property
    def last(self) -> int:
        return self.batch.last

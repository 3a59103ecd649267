"""What a worker does, wherever it runs: it holds the environments of its shards and obeys commands."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EnvBatch, Episode
from millpond.envs.spec import EnvSpec
from millpond.vector.crash import VectorError
from millpond.vector.layout import Layout
from millpond.vector.memory import Arena

EnvBatchFactory = Callable[[int, Buffers, int], EnvBatch]
"""make_env_batch(num_envs, buffers, first_env): the envs first_env.. of the vector, writing into `buffers`."""


@runtime_checkable
class Watched(Protocol):
    """An environment that tells which env it is busy with, so that a crash can name the env.

    It keeps the array that it is given and writes the env's index in the environment to `progress[0]` before it steps or
    resets that env. The array is in shared memory, so it is readable even after the worker was killed.
    """

    def watch(self, progress: npt.NDArray[np.int64]) -> None: ...


class Op(IntEnum):
    BUILD = 0  # make the environment of a shard, in place of the one there was
    RESET = 1  # start its envs from `Arena.seeds`
    STEP = 2
    SAVE = 3
    LOAD = 4
    CLOSE = 5


class Command(NamedTuple):
    op: Op
    shard: int
    first: int  # envs first..last-1, counted within the environment
    last: int


@dataclass(frozen=True)
class Job:
    """All that a worker has to know; it is pickled where workers are processes."""

    spec: EnvSpec
    layout: Layout
    make_env_batch: EnvBatchFactory
    awake_seconds: float = 0.0  # that a worker process looks for its next command before it sleeps


class Crew:
    """The environments of one worker."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self._job = job
        self._arena = arena
        self._envs: dict[int, EnvBatch] = {}

    def run(self, command: Command, payload: Any = None) -> Any:
        """Obey, and return what has to be told: episodes that ended, a state, or None."""
        op, shard, first, last = command
        progress = self._arena.progress
        progress[shard] = -1
        result: Any = None
        if op == Op.STEP:
            env_batch = self._envs[shard]
            env_batch.step(first, last)
            result = self._episodes(env_batch, shard)
        elif op == Op.BUILD:
            self._build(shard)
        elif op == Op.RESET:
            self._reset(shard)
        elif op == Op.SAVE:
            result = self._envs[shard].save_state()
        elif op == Op.LOAD:
            self._envs[shard].load_state(payload)
            self._envs[shard].episodes()  # those of another time
        else:
            self.close()
        progress[shard] = -1
        return result

    def close(self) -> None:
        while self._envs:
            self._envs.popitem()[1].close()

    def _episodes(self, env_batch: EnvBatch, shard: int) -> list[Episode] | None:
        ended = env_batch.episodes()
        if not ended:
            return None
        first = self._job.layout.shards[shard].first
        return [replace(episode, env=first + episode.env) for episode in ended]

    def _build(self, index: int) -> None:
        broken = self._envs.pop(index, None)
        if broken is not None:
            try:
                broken.close()
            except Exception as error:
                # The environment is being replaced because it failed; that it cannot close either must not stop that.
                warnings.warn(f"a failed environment could not be closed: {error!r}", stacklevel=1)
        shard = self._job.layout.shards[index]
        num_envs = shard.last - shard.first
        buffers = self._arena.buffers.envs(shard.first, shard.last)
        env_batch = self._job.make_env_batch(num_envs, buffers, shard.first)
        _require_in_place(env_batch, num_envs, buffers)
        if isinstance(env_batch, Watched):
            env_batch.watch(self._arena.progress[index : index + 1])
        self._envs[index] = env_batch

    def _reset(self, index: int) -> None:
        shard = self._job.layout.shards[index]
        env_batch = self._envs[index]
        env_batch.reset(self._arena.seeds[shard.first : shard.last].copy())
        env_batch.episodes()  # episodes that a reset cut off have not ended


def _require_in_place(env_batch: EnvBatch, num_envs: int, buffers: Buffers) -> None:
    """An environment that writes elsewhere would look alive and show nothing."""
    if env_batch.num_envs != num_envs:
        raise VectorError(
            f"make_env_batch was asked for {num_envs} envs and made an environment of {env_batch.num_envs}"
        )
    for field in fields(Buffers):
        given, used = getattr(buffers, field.name), getattr(env_batch.buffers, field.name)
        same = given.ctypes.data == used.ctypes.data and given.shape == used.shape and given.dtype == used.dtype
        if given.size and not same:
            raise VectorError(
                f"{env_batch.spec.id}: the environment's buffers.{field.name} is not the array that make_env_batch was given; "
                f"an environment must write into the buffers it gets"
            )

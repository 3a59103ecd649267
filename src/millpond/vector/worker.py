"""What a worker does, wherever it runs: it holds the environments of its shards and obeys commands."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import select
import signal
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EnvBatch, EpisodeStats
from millpond.envs.spec import EnvSpec
from millpond.vector.failures import Failure, VectorError
from millpond.vector.layout import Layout
from millpond.vector.shared_memory import Arena

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

    def _episodes(self, env_batch: EnvBatch, shard: int) -> list[EpisodeStats] | None:
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


# -- The life of a worker process: sleep until the bell rings, obey, tell, sleep.

COMMAND = struct.Struct("=6q")  # op, shard, first, last, ticket, bytes of payload that follow on the data socket
REPLY = struct.Struct("=2q")  # ticket, bytes of payload that follow on the data socket


def work(job: Job, memory: int, nursery: int, fds: list[int]) -> None:
    """Obey until the trainer closes the pipe of commands.

    `fds`: the pipe of commands and its bell, the pipe of replies (all workers write to one, in packets below PIPE_BUF
    and so never torn) and its bell, the socket for what does not fit in these, and the pipe for last words.
    """
    command_pipe, command_bell, reply_pipe, reply_bell, data_socket, last_words = fds
    end_with(nursery)
    # Written by the C handler even where Python is stuck: on a fatal signal, and when the trainer asks a silent worker.
    faulthandler.enable(last_words)
    faulthandler.register(signal.SIGUSR1, last_words)
    data = socket.socket(fileno=data_socket)
    arena = Arena.attach(memory, job.spec, job.layout)
    crew = Crew(job, arena)
    for order in orders(command_pipe, command_bell, job.awake_seconds):
        op, shard, first, last, ticket, nbytes = COMMAND.unpack(order)
        payload = pickle.loads(receive(data, nbytes)) if nbytes else None
        command = Command(Op(op), shard, first, last)
        try:
            result = crew.run(command, payload)
            blob = b"" if result is None else pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        except BaseException as error:  # SystemExit of an env, too: whatever it is, the trainer is waiting to hear it
            blob = pickle.dumps(replace(Failure.of(error, command.op.name.lower()), pid=os.getpid()))
        os.write(reply_pipe, REPLY.pack(ticket, len(blob)))
        ring(reply_bell)
        if blob:
            data.sendall(blob)


def orders(command_pipe: int, bell: int, awake_seconds: float) -> Iterator[bytes]:
    """Commands as they come, until the other end of the pipe is closed.

    Between two commands of a rollout it stays awake for a while: to be woken on a core that has gone to sleep takes
    about as long as a step of a quick environment.
    """
    os.set_blocking(command_pipe, False)
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    poll.register(command_pipe, 0)  # only its end: what is written to it must not wake anybody
    sleep_from = 0.0
    while True:
        hush(bell)
        try:
            while order := os.read(command_pipe, COMMAND.size):
                yield order
                sleep_from = time.monotonic() + awake_seconds
            return
        except BlockingIOError:
            if time.monotonic() >= sleep_from:
                poll.poll()


def receive(data: socket.socket, nbytes: int) -> bytearray:
    """Exactly `nbytes`; EOFError where the other side goes away, TimeoutError where it falls silent."""
    blob = bytearray(nbytes)
    view = memoryview(blob)
    while view:
        count = data.recv_into(view)
        if not count:
            raise EOFError(f"the other side ended with {len(view):,} of {nbytes:,} bytes to come")
        view = view[count:]
    return blob


# -- A bell between processes: who sleeps on it is woken on whichever core is free.
#
# A pipe will not do. When something is written to it, Linux takes the writer to be about to sleep, and puts the reader on
# the writer's own core; but the trainer goes on to act for the next group, and the worker would wait until it is done.


def make_bell() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def ring(bell: int) -> None:
    os.eventfd_write(bell, 1)


def hush(bell: int) -> None:
    """Take note of all that it rang for so far."""
    with suppress(BlockingIOError):
        os.eventfd_read(bell)


# -- Processes that end with the one that started them, however it ends (Linux).

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Be killed by the kernel when the thread that started this process ends."""
    _tell_kernel(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        raise SystemExit(1)


def outlive() -> None:
    """Undo `end_with`."""
    _tell_kernel(0)


def _tell_kernel(number: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")

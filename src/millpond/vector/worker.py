"""The worker: env batches and the commands on them, the main loop of a forked worker process, and reports of failures.

A worker holds the env batches of its shards and executes commands. A forked worker process sleeps on an eventfd until
there is a command, executes it, replies and sleeps again. A worker that raised, died or hung is reported as a `Failure`,
which the trainer raises as a `WorkerError`.
"""

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
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EnvBatch, EpisodeStats
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.formatting import plural
from millpond.vector.layout import Layout, VectorError
from millpond.vector.shared_memory import Arena

COMMAND = struct.Struct("=6q")  # op, shard, first, last, ticket, bytes of payload that follow on the data socket
REPLY = struct.Struct("=2q")  # ticket, bytes of payload that follow on the data socket
PR_SET_PDEATHSIG = 1
# Environment of worker processes: they are the parallelism, so libraries in them must not start one thread per core.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)

MakeEnvBatch = Callable[[int, Buffers, int], EnvBatch]
FailureKind = Literal["raised", "died", "hung"]
"""make_env_batch(num_envs, buffers, first_env): the envs first_env.. of the vector, writing into `buffers`."""


@runtime_checkable
class ReportsProgress(Protocol):
    """An env batch that reports which env it is stepping, so that the error of a crash can name the env.

    It keeps the array and writes the env's index in the batch to `progress[0]` before it steps or resets that env.
    The array is in shared memory, so the trainer can read it even after the worker was killed.
    """

    def watch(self, progress: npt.NDArray[np.int64]) -> None: ...


class Op(IntEnum):
    BUILD = 0  # make the env batch of a shard, replacing an existing one
    RESET = 1  # start its envs from `Arena.seeds`
    STEP = 2
    SAVE = 3
    LOAD = 4
    CLOSE = 5


class Command(NamedTuple):
    op: Op
    shard: int
    first: int  # envs first..last-1, counted within the env batch
    last: int


@dataclass(frozen=True)
class WorkerJob:
    """Everything that a worker has to know; pickled for worker processes."""

    spec: EnvSpec
    layout: Layout
    make_env_batch: MakeEnvBatch
    spin_seconds: float = 0.0  # how long a worker process polls for its next command before it sleeps


class EnvWorker:
    """Holds the env batches of one worker and executes commands on them."""

    def __init__(self, job: WorkerJob, arena: Arena) -> None:
        self._job = job
        self._arena = arena
        self._env_batches: dict[int, EnvBatch] = {}

    def execute(self, command: Command, payload: Any = None) -> Any:
        """Execute a command and return its result: episodes that ended, a state, or None."""
        op, shard, first, last = command
        progress = self._arena.progress
        progress[shard] = -1
        result: Any = None
        if op == Op.STEP:
            env_batch = self._env_batches[shard]
            env_batch.step(first, last)
            result = self._episodes(env_batch, shard)
        elif op == Op.BUILD:
            self._build(shard)
        elif op == Op.RESET:
            self._reset(shard)
        elif op == Op.SAVE:
            result = self._env_batches[shard].save_state()
        elif op == Op.LOAD:
            self._env_batches[shard].load_state(payload)
            self._env_batches[shard].episodes()  # drop episodes that ended before
        else:
            self.close()
        progress[shard] = -1
        return result

    def close(self) -> None:
        while self._env_batches:
            self._env_batches.popitem()[1].close()

    def _episodes(self, env_batch: EnvBatch, shard: int) -> list[EpisodeStats] | None:
        ended = env_batch.episodes()
        if not ended:
            return None
        first = self._job.layout.shards[shard].first
        return [replace(episode, env=first + episode.env) for episode in ended]

    def _build(self, index: int) -> None:
        broken = self._env_batches.pop(index, None)
        if broken is not None:
            try:
                broken.close()
            except Exception as error:
                # It is replaced because it failed; an error while it closes must not prevent that.
                warnings.warn(f"a failed environment could not be closed: {error!r}", stacklevel=1)
        shard = self._job.layout.shards[index]
        num_envs = shard.last - shard.first
        buffers = self._arena.buffers.envs(shard.first, shard.last)
        env_batch = self._job.make_env_batch(num_envs, buffers, shard.first)
        _require_in_place(env_batch, num_envs, buffers)
        if isinstance(env_batch, ReportsProgress):
            env_batch.watch(self._arena.progress[index : index + 1])
        self._env_batches[index] = env_batch

    def _reset(self, index: int) -> None:
        shard = self._job.layout.shards[index]
        env_batch = self._env_batches[index]
        env_batch.reset(self._arena.seeds[shard.first : shard.last].copy())
        env_batch.episodes()  # episodes that a reset cut off have not ended


def _require_in_place(env_batch: EnvBatch, num_envs: int, buffers: Buffers) -> None:
    """Refuse an env batch that writes elsewhere: its results would never be seen."""
    if env_batch.num_envs != num_envs:
        raise VectorError(f"make_env_batch was asked for {num_envs} envs and returned a batch of {env_batch.num_envs}")
    for name in (array.name for array in fields(Buffers)):
        ours, theirs = getattr(buffers, name), getattr(env_batch.buffers, name)
        same = ours.ctypes.data == theirs.ctypes.data and ours.shape == theirs.shape and ours.dtype == theirs.dtype
        if ours.size and not same:
            raise VectorError(
                f"{env_batch.spec.id}: buffers.{name} of the env batch is not the array that make_env_batch was "
                f"called with; an env batch must write into the buffers it gets"
            )


def run_worker_process(job: WorkerJob, memory: int, fork_server: int, fds: list[int]) -> None:
    """Execute commands until the trainer closes the command pipe.

    `memory`       file descriptor of the shared arrays
    `fork_server`  pid of the parent, with which this process ends
    `fds`          the command pipe and its eventfd; the reply pipe (all workers write to one, in packets below PIPE_BUF,
                   which are written atomically) and its eventfd; the socket for payloads; the pipe for the fault log
    """
    command_pipe, command_event, reply_pipe, reply_event, data_socket, fault_log = fds
    die_with_parent(fork_server)
    # The C handler writes even if Python is stuck: on a fatal signal, and when the trainer signals a worker that hangs.
    faulthandler.enable(fault_log)
    faulthandler.register(signal.SIGUSR1, fault_log)
    data = socket.socket(fileno=data_socket)
    worker = EnvWorker(job, Arena.attach(memory, job.spec, job.layout))
    for packet in _command_packets(command_pipe, command_event, job.spin_seconds):
        op, shard, first, last, ticket, nbytes = COMMAND.unpack(packet)
        payload = pickle.loads(receive(data, nbytes)) if nbytes else None
        command = Command(Op(op), shard, first, last)
        try:
            result = worker.execute(command, payload)
            blob = b"" if result is None else pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        except BaseException as error:  # also SystemExit of an env: the trainer is waiting for a reply
            blob = pickle.dumps(replace(Failure.of(error, command.op.name.lower()), pid=os.getpid()))
        os.write(reply_pipe, REPLY.pack(ticket, len(blob)))
        set_event(reply_event)
        if blob:
            data.sendall(blob)


def _command_packets(command_pipe: int, event: int, spin_seconds: float) -> Iterator[bytes]:
    """Yield commands as they arrive, until the other end of the pipe is closed.

    Between two commands of a rollout it polls for a while before it sleeps: waking a core that sleeps takes about as
    long as a step of a fast environment.
    """
    os.set_blocking(command_pipe, False)
    poll = select.poll()
    poll.register(event, select.POLLIN)
    poll.register(command_pipe, 0)  # only its closing: data in it must not wake the process
    sleep_after = 0.0
    while True:
        clear_event(event)
        try:
            while packet := os.read(command_pipe, COMMAND.size):
                yield packet
                sleep_after = time.monotonic() + spin_seconds
            return
        except BlockingIOError:
            if time.monotonic() >= sleep_after:
                poll.poll()


def receive(data: socket.socket, nbytes: int) -> bytearray:
    """Receive exactly `nbytes`; raise EOFError if the other side closes, TimeoutError if it stops sending."""
    blob = bytearray(nbytes)
    view = memoryview(blob)
    while view:
        count = data.recv_into(view)
        if not count:
            raise EOFError(f"the connection was closed with {len(view):,} of {nbytes:,} bytes missing")
        view = view[count:]
    return blob


# Eventfds wake a process on whichever core is free. Pipes do not: when something is written to a pipe, Linux assumes
# that the writer is about to sleep and wakes the reader on the writer's core. But the trainer goes on to act for the
# next group, and the worker would wait until that is done.


def make_event() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def set_event(event: int) -> None:
    os.eventfd_write(event, 1)


def clear_event(event: int) -> None:
    with suppress(BlockingIOError):
        os.eventfd_read(event)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends (Linux)."""
    _set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the signal was set
        raise SystemExit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _set_parent_death_signal(0)


def _set_parent_death_signal(number: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


@dataclass(frozen=True)
class Failure:
    """Report of a command that failed."""

    kind: FailureKind
    doing: str  # "step", "reset", ...
    what: str  # one line: the exception, the signal or the timeout
    traceback: str = ""  # of the worker
    pid: int | None = None
    cause: BaseException | None = field(default=None, compare=False)  # if the worker runs in this process
    refusal: str = ""  # message of a MillpondError, which is shown alone

    @staticmethod
    def of(error: BaseException, doing: str) -> Failure:
        """Report an exception that a worker raised."""
        what = "".join(traceback.format_exception_only(error)).strip()
        refusal = str(error) if isinstance(error, MillpondError) else ""
        return Failure("raised", doing, what, "".join(traceback.format_exception(error)), refusal=refusal)


class WorkerError(MillpondError):
    """A worker raised, died or hung. The message and the attributes hold everything that helps to find the reason.

    `env` is the index of the env, or None if the env batch does not report it (see `ReportsProgress`); it is then one
    of first_env..last_env-1. `seed` and `env_steps` belong to `env`, or to `first_env`: the seed from which the env was
    started, and the steps that it has taken since. If the worker raised a `MillpondError`, this error has the same
    message, without a traceback, and the exit code is 2.
    """

    exit_code = 1  # the input was valid: a worker failed

    def __init__(
        self,
        failure: Failure,
        *,
        worker: int,
        is_trainer: bool = False,
        env: int | None,
        first_env: int,
        last_env: int,
        seed: int,
        env_steps: int,
        advice: str,
    ) -> None:
        self.kind = failure.kind
        self.doing = failure.doing
        self.traceback = failure.traceback
        self.worker = worker
        self.pid = failure.pid
        self.env = env
        self.first_env = first_env
        self.last_env = last_env
        self.seed = seed
        self.env_steps = env_steps
        process = f" (pid {failure.pid})" if failure.pid else ""
        who = "the trainer, with its share of the envs," if is_trainer else f"worker {worker}{process}"
        where = f"env {env}" if env is not None else f"one of the envs {first_env} to {last_env - 1}; env {first_env}"
        steps = plural(env_steps, "env step")
        if failure.refusal:
            self.exit_code = MillpondError.exit_code
            at = "" if failure.doing == "build" else f" ({failure.doing} of {where}: seed {seed}, after {steps})"
            super().__init__(f"{failure.refusal}{at}")
            return
        lines = [
            f"{who} {failure.kind} during {failure.doing}: {failure.what}",
            f"  {where}: seed {seed}, after {steps}",
            f"  {advice}",
        ]
        if failure.traceback:
            lines += ["the worker's traceback:", failure.traceback.rstrip()]
        super().__init__("\n".join(lines))


def describe_exit(code: int) -> str:
    """Describe how a process ended: `code` is its exit status, or minus the signal that killed it."""
    if code >= 0:
        return f"exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    hint = "; out of memory is a common reason (see `dmesg`)" if name == "SIGKILL" else ""
    return f"killed by signal {-code} ({name}){hint}"

"""Worker processes with nothing but what every system has: subprocess, pipes and threads.

Taken where the calls are missing that `processes` is built on (memfd, eventfd, pidfd, fork: all but Linux). Each worker is
a fresh interpreter that imports what the environments need, so it starts more slowly, and a command passes two threads:

    trainer  --queue-->  writer thread  --stdin-->   worker
    trainer  <--queue--  reader thread  <--stdout--  worker

When the trainer ends, however it ends, its side of the pipes closes, and the workers exit.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, NoReturn

import numpy.random

from millpond.vector.backends.processes import pickle_job
from millpond.vector.failures import Failure, VectorError
from millpond.vector.fork_server import ONE_THREAD, describe_exit
from millpond.vector.shared_memory import Arena, NamedFile
from millpond.vector.worker import Command, Crew, Job, Op

BOOT = "import sys; sys.path[:] = sys.argv[1:]; from millpond.vector.backends.spawned import main; main()"
STARTED, FAILED = -1, -2  # in place of a ticket: the worker has loaded its job, or cannot
CLOSE_SECONDS = 2.0  # for environments to close
KILL_SECONDS = 10.0  # for the system to end a killed process
LAST_WORDS_SECONDS = 1.0  # for a hung worker to write its stack
QUIET_SECONDS = 0.05

Order = tuple[int, Command, Any]  # ticket, command, payload


@dataclass(eq=False)
class SpawnedWorker:
    """The trainer's side of one worker process."""

    worker: int
    process: subprocess.Popen[bytes]
    last_words: NamedFile  # written by the worker's fault handler
    orders: SimpleQueue[Order | None] = field(default_factory=SimpleQueue)  # None: no more of them
    started: bool = False
    ended: str = ""  # how, once it has
    open: dict[int, Command] = field(default_factory=dict)  # tickets without a reply, oldest first


class SpawnPool:
    """Worker processes of a vector, each started on its own; see `Pool`."""

    def __init__(self, job: Job, arena: Arena, *, start_seconds: float) -> None:
        assert arena.file is not None
        self._memory = arena.file.path
        self._job_bytes = pickle_job(job)
        self._owner = os.getpid()
        self._start_seconds = start_seconds
        self._events: SimpleQueue[tuple[SpawnedWorker, int, Any]] = SimpleQueue()  # worker, ticket, reply
        self._replies: dict[int, Any] = {}
        self._submitted = 0
        self._num_workers = job.layout.num_workers
        self._closed = False
        self._processes: list[subprocess.Popen[bytes]] = []
        # Also when this object is forgotten, and at the end of the interpreter.
        self._end = weakref.finalize(self, _end, self._processes, self._owner)
        self._workers: list[SpawnedWorker] = []
        try:
            for worker in range(self._num_workers):
                self._workers.append(self._spawn(worker))
            self._await_start(self._workers)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.process.pid for worker in self._workers if worker.process.poll() is None)

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        handle = self._workers[worker]
        self._submitted += 1
        ticket = self._submitted * self._num_workers + worker  # so that a ticket tells whose it is
        handle.open[ticket] = command
        if handle.ended:
            self._fail_open(handle)
        else:
            handle.orders.put((ticket, command, payload))
        return ticket

    def wait(self, ticket: int, deadline: float) -> Any:
        while ticket not in self._replies:
            if not self._take_event(deadline):
                return self._hung(ticket)
        return self._replies.pop(ticket)

    def discard(self, ticket: int) -> Any:
        self._workers[ticket % self._num_workers].open.pop(ticket, None)
        return self._replies.pop(ticket, None)

    def revive(self, worker: int) -> bool:
        old = self._workers[worker]
        old.process.kill()
        deadline = time.monotonic() + KILL_SECONDS
        while not old.ended and self._take_event(deadline):
            pass
        if not old.ended:  # it sits in the kernel, where no signal reaches it
            return False
        self._release(old)
        self._workers[worker] = self._spawn(worker)
        self._await_start([self._workers[worker]])
        return True

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner:  # a forked copy of the trainer owns nothing
            return
        self._closed = True
        # A worker that still owes an answer may never give it, and is ended without being asked.
        idle = [handle for handle in self._workers if handle.started and not handle.ended and not handle.open]
        for handle in idle:
            self.submit(handle.worker, Command(Op.CLOSE, handle.worker, 0, 0))
        deadline = time.monotonic() + CLOSE_SECONDS
        while any(handle.open for handle in idle) and self._take_event(deadline):
            pass
        self._end()
        for handle in self._workers:
            self._release(handle)
        self._workers.clear()
        self._replies.clear()

    def _spawn(self, worker: int) -> SpawnedWorker:
        last_words = NamedFile()
        process = subprocess.Popen(
            [sys.executable, "-c", BOOT, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD,
        )
        self._processes[:] = [other for other in self._processes if other.poll() is None] + [process]
        handle = SpawnedWorker(worker, process, last_words)
        first = pickle.dumps((worker, self._memory, last_words.path)) + self._job_bytes
        threading.Thread(target=_write, args=(process, first, handle.orders), daemon=True).start()
        threading.Thread(target=_read, args=(handle, self._events), daemon=True).start()
        return handle

    def _await_start(self, handles: list[SpawnedWorker]) -> None:
        deadline = time.monotonic() + self._start_seconds
        while not all(handle.started or handle.ended for handle in handles):
            if not self._take_event(deadline):
                raise VectorError.starts_too_slowly(self._start_seconds)
        for handle in handles:
            if not handle.started:
                raise VectorError.did_not_start(handle.worker, handle.ended)

    def _take_event(self, deadline: float) -> bool:
        """Wait for the next reply, start or end of a worker; False if there is none before `deadline`."""
        try:
            handle, ticket, reply = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return False
        if handle not in self._workers:  # replaced by a new process
            return True
        if ticket == FAILED:
            raise VectorError.cannot_load(reply)
        if ticket == STARTED:
            handle.started = True
        elif isinstance(reply, Ended):
            handle.ended = describe_exit(reply.code)
            self._fail_open(handle)
        elif handle.open.pop(ticket, None) is not None:  # None: discarded
            self._replies[ticket] = reply
        return True

    def _fail_open(self, handle: SpawnedWorker) -> None:
        words = handle.last_words.read_text() if handle.open else ""
        for ticket, command in handle.open.items():
            self._replies[ticket] = Failure("died", command.op.name.lower(), handle.ended, words, handle.process.pid)
        handle.open.clear()

    def _hung(self, ticket: int) -> Failure:
        handle = self._workers[ticket % self._num_workers]
        command = handle.open[ticket]  # it stays open: the worker still owes the answer
        words = ""
        if hasattr(signal, "SIGUSR1"):
            handle.process.send_signal(signal.SIGUSR1)
            deadline = time.monotonic() + LAST_WORDS_SECONDS
            while not (words := handle.last_words.read_text()) and time.monotonic() < deadline:
                time.sleep(QUIET_SECONDS)
        what = "nothing was heard of it within the timeout"
        return Failure("hung", command.op.name.lower(), what, words, handle.process.pid)

    def _release(self, handle: SpawnedWorker) -> None:
        handle.orders.put(None)
        handle.last_words.close()


@dataclass(frozen=True)
class Ended:
    """A worker's last event: its exit code, negative for a signal."""

    code: int


def _write(process: subprocess.Popen[bytes], first: bytes, orders: SimpleQueue[Order | None]) -> None:
    """Send the job, then commands, to a worker. In a thread, since one that hangs does not read."""
    assert process.stdin is not None
    with suppress(OSError), process.stdin as pipe:  # it died: the reader reports that
        pipe.write(first)
        pipe.flush()
        while (order := orders.get()) is not None:
            pickle.dump(order, pipe, pickle.HIGHEST_PROTOCOL)
            pipe.flush()


def _read(handle: SpawnedWorker, events: SimpleQueue[tuple[SpawnedWorker, int, Any]]) -> None:
    assert handle.process.stdout is not None
    with handle.process.stdout as pipe, suppress(EOFError, OSError, pickle.UnpicklingError):  # its end, or a torn reply
        while True:
            events.put((handle, *pickle.load(pipe)))
    events.put((handle, 0, Ended(handle.process.wait())))


def _end(processes: list[subprocess.Popen[bytes]], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer: the processes are not its own to end
        return
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def main() -> None:
    """Run a worker: read the job, then obey commands until stdin ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to a whole group, they are the trainer's to answer
        signal.signal(number, signal.SIG_IGN)
    commands = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints must not get among the replies
    worker, memory, last_words = pickle.load(commands)
    words = NamedFile.open(last_words)
    faulthandler.enable(words)
    if hasattr(faulthandler, "register") and hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, words)
    try:
        job: Job = pickle.load(commands)
    except BaseException:  # whatever an import may raise: the trainer is waiting to hear it
        _reply(replies, FAILED, traceback.format_exc())
        return
    numpy.random.seed(worker)  # noqa: NPY002  for an env that uses the global generator
    orders: SimpleQueue[Order] = SimpleQueue()
    files = (memory, last_words)
    threading.Thread(target=_listen, args=(commands, orders, files), daemon=True).start()
    crew = Crew(job, Arena.attach(NamedFile.open(memory), job.spec, job.layout))
    try:
        _reply(replies, STARTED, None)
        while True:
            ticket, command, payload = orders.get()
            try:
                reply = crew.run(command, payload)
            except (
                BaseException
            ) as error:  # SystemExit of an env, too: whatever it is, the trainer is waiting to hear it
                reply = replace(Failure.of(error, command.op.name.lower()), pid=os.getpid())
            _reply(replies, ticket, reply)
    except BrokenPipeError:  # nobody reads replies any more
        _leave(files)


def _listen(commands: BinaryIO, orders: SimpleQueue[Order], files: tuple[Path, ...]) -> NoReturn:
    """Queue commands until the trainer is gone."""
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            orders.put(pickle.load(commands))
    _leave(files)


def _leave(files: tuple[Path, ...]) -> NoReturn:
    """Remove the files of a trainer that is gone and exit at once, even while an environment is stepping."""
    for path in files:
        with suppress(OSError):
            path.unlink()
    os._exit(0)


def _reply(replies: BinaryIO, ticket: int, reply: Any) -> None:
    pickle.dump((ticket, reply), replies, pickle.HIGHEST_PROTOCOL)
    replies.flush()

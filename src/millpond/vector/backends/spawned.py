"""Workers as spawned processes, with nothing but what every system has: subprocess, pipes and threads.

Used on systems without the calls that `processes` needs (memfd, eventfd, pidfd, fork: all but Linux). Each worker is a
fresh interpreter that imports the environment's modules, so it starts more slowly, and a command passes two threads:

    trainer  --queue-->  writer thread  --stdin-->   worker
    trainer  <--queue--  reader thread  <--stdout--  worker

When the trainer ends, for whatever reason, its side of the pipes closes, and the workers exit.
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

from millpond.vector.backends.pool import (
    CLOSE_SECONDS,
    Request,
    Tickets,
    await_start,
    cannot_load,
    hung_failure,
    pickle_job,
)
from millpond.vector.shared_memory import Arena, NamedFile
from millpond.vector.worker import ONE_THREAD, Command, EnvWorker, Failure, Op, WorkerJob, describe_exit

BOOT = "import sys; sys.path[:] = sys.argv[1:]; from millpond.vector.backends.spawned import main; main()"
STARTED, FAILED = -1, -2  # instead of a ticket: the worker has loaded its job, or cannot load it
KILL_SECONDS = 10.0  # for the system to end a killed process
FAULT_LOG_SECONDS = 1.0  # for a hung worker to write its stack
POLL_SECONDS = 0.05


@dataclass(eq=False)
class SpawnedWorker:
    """The trainer's side of one spawned worker."""

    worker: int
    process: subprocess.Popen[bytes]
    fault_log: NamedFile  # written by the worker's fault handler
    requests: SimpleQueue[Request | None] = field(default_factory=SimpleQueue)  # None ends the writer thread
    started: bool = False
    exit_reason: str = ""  # set once it has ended
    pending: dict[int, Command] = field(default_factory=dict)  # tickets without a reply, oldest first

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_fault_log(self, seconds: float) -> str:
        """Return what its fault handler wrote, waiting up to `seconds` for the first bytes."""
        deadline = time.monotonic() + seconds
        while not (text := self.fault_log.read_text()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return text


class SpawnPool:
    """Spawned worker processes of a vector; see `Pool`."""

    def __init__(self, job: WorkerJob, arena: Arena, *, start_seconds: float) -> None:
        assert arena.file is not None
        self._memory = arena.file.path
        self._job_bytes = pickle_job(job)
        self._owner = os.getpid()
        self._start_seconds = start_seconds
        self._events: SimpleQueue[tuple[SpawnedWorker, int, Any]] = SimpleQueue()  # worker, ticket, reply
        self._num_workers = job.layout.num_workers
        self._tickets = Tickets(self._num_workers)
        self._closed = False
        self._processes: list[subprocess.Popen[bytes]] = []
        # Also when this object is garbage-collected, and at the end of the interpreter.
        self._end = weakref.finalize(self, _end_processes, self._processes, self._owner)
        self._workers: list[SpawnedWorker] = []
        try:
            for worker in range(self._num_workers):
                self._workers.append(self._spawn(worker))
            await_start(self._workers, self._handle_event, start_seconds=start_seconds)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for worker in self._workers if worker.process.poll() is None)

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        handle = self._workers[worker]
        ticket = self._tickets.issue(handle, command)
        if handle.exit_reason:
            self._tickets.fail_pending(handle)
        else:
            handle.requests.put((ticket, command, payload))
        return ticket

    def wait(self, ticket: int, deadline: float) -> Any:
        while ticket not in self._tickets.replies:
            if not self._handle_event(deadline):
                return self._hung(ticket)
        return self._tickets.replies.pop(ticket)

    def discard(self, ticket: int) -> Any:
        return self._tickets.discard(self._handle_of(ticket), ticket)

    def replace_worker(self, worker: int) -> bool:
        old = self._workers[worker]
        old.process.kill()
        deadline = time.monotonic() + KILL_SECONDS
        while not old.exit_reason and self._handle_event(deadline):
            pass
        if not old.exit_reason:  # it is in an uninterruptible system call
            return False
        _release(old)
        self._workers[worker] = self._spawn(worker)
        await_start([self._workers[worker]], self._handle_event, start_seconds=self._start_seconds)
        return True

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner:  # a forked copy of the trainer owns nothing
            return
        self._closed = True
        # A worker with a pending command may never reply, and is ended without being asked.
        idle = [handle for handle in self._workers if handle.started and not handle.exit_reason and not handle.pending]
        for handle in idle:
            self.submit(handle.worker, Command(Op.CLOSE, handle.worker, 0, 0))
        deadline = time.monotonic() + CLOSE_SECONDS
        while any(handle.pending for handle in idle) and self._handle_event(deadline):
            pass
        self._end()
        for handle in self._workers:
            _release(handle)
        self._workers.clear()
        self._tickets.replies.clear()

    def _handle_of(self, ticket: int) -> SpawnedWorker:
        return self._workers[self._tickets.worker_of(ticket)]

    def _spawn(self, worker: int) -> SpawnedWorker:
        fault_log = NamedFile()
        process = subprocess.Popen(
            [sys.executable, "-c", BOOT, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD,
        )
        self._processes[:] = [other for other in self._processes if other.poll() is None] + [process]
        handle = SpawnedWorker(worker, process, fault_log)
        setup = pickle.dumps((worker, self._memory, fault_log.path)) + self._job_bytes
        threading.Thread(target=_write, args=(process, setup, handle.requests), daemon=True).start()
        threading.Thread(target=_read, args=(handle, self._events), daemon=True).start()
        return handle

    def _handle_event(self, deadline: float) -> bool:
        """Wait for the next reply, start or exit of a worker; return False if there is none before `deadline`."""
        try:
            handle, ticket, reply = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return False
        if handle not in self._workers:  # replaced by a new process
            return True
        if ticket == FAILED:
            raise cannot_load(reply)
        if ticket == STARTED:
            handle.started = True
        elif isinstance(reply, ProcessExit):
            handle.exit_reason = describe_exit(reply.code)
            self._tickets.fail_pending(handle)
        else:
            self._tickets.store_reply(handle, ticket, reply)
        return True

    def _hung(self, ticket: int) -> Failure:
        handle = self._handle_of(ticket)
        fault_log = ""
        if hasattr(signal, "SIGUSR1"):
            handle.process.send_signal(signal.SIGUSR1)
            fault_log = handle.read_fault_log(FAULT_LOG_SECONDS)
        return hung_failure(handle, ticket, fault_log)


def _release(handle: SpawnedWorker) -> None:
    handle.requests.put(None)
    handle.fault_log.close()


@dataclass(frozen=True)
class ProcessExit:
    """The last event of a worker: its exit code, negative for a signal."""

    code: int


def _write(process: subprocess.Popen[bytes], setup: bytes, requests: SimpleQueue[Request | None]) -> None:
    """Send the job, then commands, to a worker. In a thread, since a worker that hangs does not read."""
    assert process.stdin is not None
    with suppress(OSError), process.stdin as pipe:  # it died, which the reader reports
        pipe.write(setup)
        pipe.flush()
        while (request := requests.get()) is not None:
            pickle.dump(request, pipe, pickle.HIGHEST_PROTOCOL)
            pipe.flush()


def _read(handle: SpawnedWorker, events: SimpleQueue[tuple[SpawnedWorker, int, Any]]) -> None:
    assert handle.process.stdout is not None
    with handle.process.stdout as pipe, suppress(EOFError, OSError, pickle.UnpicklingError):  # its end, or a torn reply
        while True:
            events.put((handle, *pickle.load(pipe)))
    events.put((handle, 0, ProcessExit(handle.process.wait())))


def _end_processes(processes: list[subprocess.Popen[bytes]], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer, which does not own the processes
        return
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def main() -> None:
    """Run a worker: read the job, then execute commands until stdin ends."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # sent to the whole process group, but for the trainer to handle
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    stdin = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of an environment must not get among the replies
    worker_index, memory, fault_log_path = pickle.load(stdin)
    fault_log = NamedFile.open(fault_log_path)
    faulthandler.enable(fault_log)
    if hasattr(faulthandler, "register") and hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, fault_log)
    try:
        job: WorkerJob = pickle.load(stdin)
    except BaseException:  # whatever an import may raise: the trainer is waiting for a reply
        _reply(replies, FAILED, traceback.format_exc())
        return
    numpy.random.seed(worker_index)  # noqa: NPY002  for an env that uses the global generator
    requests: SimpleQueue[Request] = SimpleQueue()
    files = (memory, fault_log_path)
    threading.Thread(target=_read_requests, args=(stdin, requests, files), daemon=True).start()
    worker = EnvWorker(job, Arena.attach(NamedFile.open(memory), job.spec, job.layout))
    try:
        _reply(replies, STARTED, None)
        while True:
            ticket, command, payload = requests.get()
            try:
                reply = worker.execute(command, payload)
            except BaseException as error:  # also SystemExit of an env: the trainer is waiting for a reply
                reply = replace(Failure.of(error, command.op.name.lower()), pid=os.getpid())
            _reply(replies, ticket, reply)
    except BrokenPipeError:  # the trainer has ended
        _exit(files)


def _read_requests(stdin: BinaryIO, requests: SimpleQueue[Request], files: tuple[Path, ...]) -> NoReturn:
    """Queue commands until the trainer ends."""
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            requests.put(pickle.load(stdin))
    _exit(files)


def _exit(files: tuple[Path, ...]) -> NoReturn:
    """Remove the files of a trainer that has ended and exit at once, even while an env is stepping."""
    for path in files:
        with suppress(OSError):
            path.unlink()
    os._exit(0)


def _reply(replies: BinaryIO, ticket: int, reply: Any) -> None:
    pickle.dump((ticket, reply), replies, pickle.HIGHEST_PROTOCOL)
    replies.flush()

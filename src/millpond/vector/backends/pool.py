"""`Pool`, the interface between a vector and its workers; the pools without processes; and what process pools share.

A command is submitted with a ticket, and its reply is collected by that ticket. `InlinePool` steps envs when a command is
submitted. `ThreadPool` is for environments that release the GIL; idle threads sleep on a queue. `TrainerSharePool` adds the
trainer as one more worker.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from millpond.vector.layout import VectorError
from millpond.vector.shared_memory import Arena
from millpond.vector.worker import Command, EnvWorker, Failure, Op, WorkerJob

CLOSE_SECONDS = 2.0  # for workers to close their envs
Request = tuple[int, Command, Any]  # ticket, command, payload
Reply = tuple[int, Any]  # ticket, result


class Pool(Protocol):
    """Workers that execute commands. A worker executes its commands in the order in which they were submitted."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Running processes that this pool started."""

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        """Send a command to a worker and return its ticket without waiting."""

    def wait(self, ticket: int, deadline: float) -> Any:
        """Return the reply: a result, None or a `Failure`. After `deadline` (time.monotonic) the worker counts as hung."""

    def discard(self, ticket: int) -> Any:
        """Forget a ticket, and return its reply if it has arrived."""

    def replace_worker(self, worker: int) -> bool:
        """Replace a worker that died or hung by a new one without envs; return False if that is impossible."""

    def close(self) -> None:
        """End all workers and free all resources; may be called twice."""


class InlinePool:
    """One worker, which is the caller. A hanging env hangs the caller, and nothing can detect it."""

    def __init__(self, job: WorkerJob, arena: Arena) -> None:
        self._worker = EnvWorker(job, arena)
        self._replies: dict[int, Any] = {}
        self._ticket = 0

    @property
    def pids(self) -> tuple[int, ...]:
        return ()

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        self._ticket += 1
        try:
            reply = self._worker.execute(command, payload)
        except (Exception, SystemExit) as error:  # an env that calls sys.exit must not end the caller
            reply = replace(Failure.of(error, command.op.name.lower()), cause=error)
        self._replies[self._ticket] = reply
        return self._ticket

    def wait(self, ticket: int, deadline: float) -> Any:
        return self._replies.pop(ticket)

    def discard(self, ticket: int) -> Any:
        return self._replies.pop(ticket, None)

    def replace_worker(self, worker: int) -> bool:
        return False

    def close(self) -> None:
        self._replies.clear()
        self._worker.close()


class TrainerSharePool:
    """Workers, and the trainer as one more: it steps its share of a group while it would wait for theirs.

    Commands for worker number `num_workers` go to `trainer`; its tickets are negative. The trainer's envs are the last
    ones of a group, so the workers get their commands before the trainer starts to step.
    """

    def __init__(self, workers: Pool, trainer: InlinePool, num_workers: int) -> None:
        self._workers, self._trainer, self._num_workers = workers, trainer, num_workers

    @property
    def pids(self) -> tuple[int, ...]:
        return self._workers.pids

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        if worker < self._num_workers:
            return self._workers.submit(worker, command, payload)
        return -self._trainer.submit(worker, command, payload)

    def wait(self, ticket: int, deadline: float) -> Any:
        return self._workers.wait(ticket, deadline) if ticket > 0 else self._trainer.wait(-ticket, deadline)

    def discard(self, ticket: int) -> Any:
        return self._workers.discard(ticket) if ticket > 0 else self._trainer.discard(-ticket)

    def replace_worker(self, worker: int) -> bool:
        return worker < self._num_workers and self._workers.replace_worker(worker)

    def close(self) -> None:
        try:
            self._trainer.close()
        finally:
            self._workers.close()


class ThreadPool:
    """One thread per worker. A thread cannot be ended from outside, so one that hangs is reported and left running."""

    def __init__(self, job: WorkerJob, arena: Arena) -> None:
        self._requests: list[SimpleQueue[Request | None]] = [SimpleQueue() for _ in range(job.layout.num_workers)]
        self._arrived: SimpleQueue[Reply] = SimpleQueue()
        self._replies: dict[int, Any] = {}
        self._pending: dict[int, tuple[int, Command]] = {}  # ticket -> worker, command
        self._ticket = 0
        self._closed = False
        self._threads = [
            threading.Thread(
                target=_work,
                args=(EnvWorker(job, arena), requests, self._arrived),
                name=f"vector-{worker}",
                daemon=True,
            )
            for worker, requests in enumerate(self._requests)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pids(self) -> tuple[int, ...]:
        return ()

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        self._ticket += 1
        self._pending[self._ticket] = worker, command
        self._requests[worker].put((self._ticket, command, payload))
        return self._ticket

    def wait(self, ticket: int, deadline: float) -> Any:
        while ticket not in self._replies:
            try:
                answered, reply = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return self._hung(ticket)
            if self._pending.pop(answered, None) is not None:
                self._replies[answered] = reply
        return self._replies.pop(ticket)

    def discard(self, ticket: int) -> Any:
        self._pending.pop(ticket, None)
        return self._replies.pop(ticket, None)

    def replace_worker(self, worker: int) -> bool:
        return False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Env batches belong to their threads, and close there. A thread that hangs is a daemon and is left running.
        for worker, requests in enumerate(self._requests):
            requests.put((0, Command(Op.CLOSE, worker, 0, 0), None))
            requests.put(None)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _hung(self, ticket: int) -> Failure:
        worker, command = self._pending.pop(ticket)
        frame = sys._current_frames().get(self._threads[worker].ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        what = "no reply within the timeout; a thread cannot be ended, so its envs cannot be restarted"
        return Failure("hung", command.op.name.lower(), what, stack)


def _work(worker: EnvWorker, requests: SimpleQueue[Request | None], arrived: SimpleQueue[Reply]) -> None:
    while (request := requests.get()) is not None:
        ticket, command, payload = request
        try:
            reply = worker.execute(command, payload)
        except BaseException as error:  # also SystemExit of an env: the caller is waiting for a reply
            reply = replace(Failure.of(error, command.op.name.lower()), cause=error)
        arrived.put((ticket, reply))


class WorkerHandle(Protocol):
    """The trainer's side of one worker process."""

    worker: int
    exit_reason: str  # set once it has ended
    pending: dict[int, Command]  # tickets without a reply, oldest first

    @property
    def started(self) -> bool: ...

    @property
    def pid(self) -> int: ...

    def read_fault_log(self, seconds: float) -> str:
        """Return what its fault handler wrote, waiting up to `seconds` for the first bytes."""


class Tickets:
    """Tickets of the commands that were sent to worker processes, and the replies that have arrived."""

    def __init__(self, num_workers: int) -> None:
        self.replies: dict[int, Any] = {}
        self._num_workers = num_workers
        self._issued = 0

    def issue(self, handle: WorkerHandle, command: Command) -> int:
        """Return a new ticket; it encodes the worker."""
        self._issued += 1
        ticket = self._issued * self._num_workers + handle.worker
        handle.pending[ticket] = command
        return ticket

    def worker_of(self, ticket: int) -> int:
        return ticket % self._num_workers

    def store_reply(self, handle: WorkerHandle, ticket: int, reply: Any) -> None:
        """Store a reply, unless its ticket was discarded."""
        if handle.pending.pop(ticket, None) is not None:
            self.replies[ticket] = reply

    def discard(self, handle: WorkerHandle, ticket: int) -> Any:
        handle.pending.pop(ticket, None)
        return self.replies.pop(ticket, None)

    def fail_pending(self, handle: WorkerHandle) -> None:
        """Answer all pending commands of a worker that has ended with a failure."""
        fault_log = handle.read_fault_log(0.0) if handle.pending else ""
        for ticket, command in handle.pending.items():
            self.replies[ticket] = Failure("died", command.op.name.lower(), handle.exit_reason, fault_log, handle.pid)
        handle.pending.clear()


def hung_failure(handle: WorkerHandle, ticket: int, fault_log: str) -> Failure:
    """Report a worker that did not reply in time. Its command stays pending: the reply may still arrive."""
    command = handle.pending[ticket]
    return Failure("hung", command.op.name.lower(), "no reply within the timeout", fault_log, handle.pid)


def await_start(
    handles: Sequence[WorkerHandle], wait_for_event: Callable[[float], object], *, start_seconds: float
) -> None:
    """Wait until all workers have started; `wait_for_event(deadline)` handles whatever arrives next."""
    deadline = time.monotonic() + start_seconds
    while True:
        wait_for_event(deadline)
        if all(handle.started or handle.exit_reason for handle in handles):
            break
        if time.monotonic() >= deadline:
            raise VectorError(
                f"workers did not start within {start_seconds:g} s: an import that make_env_batch needs hangs"
            )
    for handle in handles:
        if not handle.started:
            raise VectorError(f"worker {handle.worker} did not start: it {handle.exit_reason}")


def cannot_load(reason: str) -> VectorError:
    """Return the error of a worker process that cannot unpickle its job."""
    return VectorError(
        f"a worker process cannot load make_env_batch; it must be importable from a fresh interpreter:\n{reason}"
    )


def pickle_job(job: WorkerJob) -> bytes:
    """Pickle a job so that another interpreter can load it, or raise an error that says why that is impossible."""
    try:
        job_bytes = pickle.dumps(job)
    except Exception as error:  # pickle raises whatever the object's own code raises
        raise VectorError(
            f"vector.backend=processes sends make_env_batch to other processes, and it cannot be pickled ({error}); "
            f"use a function of a module, or functools.partial of one, or another backend"
        ) from error
    if b"__main__" in job_bytes:
        raise VectorError(
            "vector.backend=processes needs a make_env_batch that workers can import, and this one is defined in the "
            "script itself (__main__); move it into a module, or use another backend"
        )
    return job_bytes

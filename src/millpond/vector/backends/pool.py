"""`Pool`, the interface between a vector and its workers, and what pools of worker processes have in common.

A command is submitted with a ticket, and its reply is collected by that ticket.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from millpond.vector.failures import Failure, VectorError
from millpond.vector.worker import Command, WorkerJob


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

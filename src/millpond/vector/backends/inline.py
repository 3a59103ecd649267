"""No workers: envs step in the caller's thread when a command is submitted. Also the trainer's share next to workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millpond.vector.backends.pool import Pool
from millpond.vector.failures import Failure
from millpond.vector.shared_memory import Arena
from millpond.vector.worker import Command, EnvWorker, WorkerJob


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

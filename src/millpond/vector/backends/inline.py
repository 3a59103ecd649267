"""No workers: environments step in the caller's own thread, at the moment a command is submitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millpond.vector.backends.pool import Pool
from millpond.vector.failures import Failure
from millpond.vector.shared_memory import Arena
from millpond.vector.worker import Command, Crew, Job


class InlinePool:
    """One worker, which is the caller. An environment that hangs hangs the caller: nothing here can notice it."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self._crew = Crew(job, arena)
        self._replies: dict[int, Any] = {}
        self._ticket = 0

    @property
    def pids(self) -> tuple[int, ...]:
        return ()

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        self._ticket += 1
        try:
            reply = self._crew.run(command, payload)
        except (Exception, SystemExit) as error:  # an env that gives up must not end the caller
            reply = replace(Failure.of(error, command.op.name.lower()), cause=error)
        self._replies[self._ticket] = reply
        return self._ticket

    def wait(self, ticket: int, deadline: float) -> Any:
        return self._replies.pop(ticket)

    def discard(self, ticket: int) -> Any:
        return self._replies.pop(ticket, None)

    def revive(self, worker: int) -> bool:
        return False

    def close(self) -> None:
        self._replies.clear()
        self._crew.close()


# -- Workers, and the trainer itself as one more: it steps its own share of a group while it would wait for theirs.


class TrainerSharePool:
    """Commands for the worker behind the last go to `own`. Tickets of `own` are negative, so that they tell whose they are.

    The trainer's envs are the last of a group, so the workers have theirs before it begins with its own.
    """

    def __init__(self, workers: Pool, own: InlinePool, num_workers: int) -> None:
        self._workers, self._own, self._num_workers = workers, own, num_workers

    @property
    def pids(self) -> tuple[int, ...]:
        return self._workers.pids

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        if worker < self._num_workers:
            return self._workers.submit(worker, command, payload)
        return -self._own.submit(worker, command, payload)

    def wait(self, ticket: int, deadline: float) -> Any:
        return self._workers.wait(ticket, deadline) if ticket > 0 else self._own.wait(-ticket, deadline)

    def discard(self, ticket: int) -> Any:
        return self._workers.discard(ticket) if ticket > 0 else self._own.discard(-ticket)

    def revive(self, worker: int) -> bool:
        return worker < self._num_workers and self._workers.revive(worker)

    def close(self) -> None:
        try:
            self._own.close()
        finally:
            self._workers.close()

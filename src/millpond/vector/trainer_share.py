"""Workers, and the trainer itself as one more: it steps its own share of a group while it would wait for theirs."""

from __future__ import annotations

from typing import Any

from millpond.vector.crew import Command
from millpond.vector.inline import InlinePool
from millpond.vector.pool import Pool


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

"""The seam between a vector and its workers: commands go in, each with a ticket, and replies come out."""

from __future__ import annotations

from typing import Any, Protocol

from millpond.vector.worker import Command


class Pool(Protocol):
    """Workers that obey commands. A worker obeys its own commands in the order in which they were submitted."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes that this pool started and that still run."""

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        """Hand a command to a worker and return its ticket, without waiting for anything."""

    def wait(self, ticket: int, deadline: float) -> Any:
        """The reply: a result, or None, or a `Failure`. Past `deadline` (time.monotonic) the worker counts as hung."""

    def discard(self, ticket: int) -> Any:
        """Forget a ticket, and return its reply where there is one already."""

    def revive(self, worker: int) -> bool:
        """Put a new worker, without environments, in the place of one that died or hung; False where that cannot be done."""

    def close(self) -> None:
        """End all workers and free everything; harmless when repeated."""

"""No workers: environments step in the caller's own thread, at the moment a command is submitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millpond.vector.crash import Failure
from millpond.vector.crew import Command, Crew, Job
from millpond.vector.memory import Arena


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

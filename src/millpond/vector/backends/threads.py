"""Workers as threads, for environments that step without Python's lock. They sleep on a semaphore while idle."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from millpond.vector.failures import Failure
from millpond.vector.shared_memory import Arena
from millpond.vector.worker import Command, Crew, Job, Op

CLOSE_SECONDS = 2.0

Order = tuple[int, Command, Any]  # ticket, command, payload
Answer = tuple[int, Any]  # ticket, reply


class ThreadPool:
    """One thread a worker. A thread cannot be ended from outside, so one that hangs is reported and left behind."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self._orders: list[SimpleQueue[Order | None]] = [SimpleQueue() for _ in range(job.layout.num_workers)]
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._replies: dict[int, Any] = {}
        self._open: dict[int, tuple[int, Command]] = {}  # ticket -> worker and what it was told
        self._ticket = 0
        self._closed = False
        self._threads = [
            threading.Thread(
                target=_work, args=(Crew(job, arena), orders, self._answers), name=f"vector-{worker}", daemon=True
            )
            for worker, orders in enumerate(self._orders)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pids(self) -> tuple[int, ...]:
        return ()

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        self._ticket += 1
        self._open[self._ticket] = worker, command
        self._orders[worker].put((self._ticket, command, payload))
        return self._ticket

    def wait(self, ticket: int, deadline: float) -> Any:
        while ticket not in self._replies:
            try:
                done, reply = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return self._hung(ticket)
            if self._open.pop(done, None) is not None:
                self._replies[done] = reply
        return self._replies.pop(ticket)

    def discard(self, ticket: int) -> Any:
        self._open.pop(ticket, None)
        return self._replies.pop(ticket, None)

    def revive(self, worker: int) -> bool:
        return False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Environments belong to their threads, and close there. A thread that hangs is a daemon and is left to itself.
        for worker, orders in enumerate(self._orders):
            orders.put((0, Command(Op.CLOSE, worker, 0, 0), None))
            orders.put(None)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _hung(self, ticket: int) -> Failure:
        worker, command = self._open.pop(ticket)
        frame = sys._current_frames().get(self._threads[worker].ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        what = "nothing was heard of it within the timeout; a thread cannot be ended, so its envs cannot restart"
        return Failure("hung", command.op.name.lower(), what, stack)


def _work(crew: Crew, orders: SimpleQueue[Order | None], answers: SimpleQueue[Answer]) -> None:
    while (order := orders.get()) is not None:
        ticket, command, payload = order
        try:
            reply = crew.run(command, payload)
        except BaseException as error:  # SystemExit of an env, too: whatever it is, the caller is waiting to hear it
            reply = replace(Failure.of(error, command.op.name.lower()), cause=error)
        answers.put((ticket, reply))

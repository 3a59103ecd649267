"""Backends without worker processes: inline in the caller's thread, in threads, and the trainer's own share.

Inline, envs step when a command is submitted. Threads are for environments that release the GIL; idle ones sleep on a queue.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from millpond.vector.backends.pool import Pool
from millpond.vector.failures import Failure
from millpond.vector.shared_memory import Arena
from millpond.vector.worker import Command, EnvWorker, Op, WorkerJob

CLOSE_SECONDS = 2.0
Request = tuple[int, Command, Any]  # ticket, command, payload
Reply = tuple[int, Any]  # ticket, result


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

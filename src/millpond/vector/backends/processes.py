"""Workers as processes, which step environments in shared memory.

    commands   one pipe and one bell a worker: a worker sleeps until its bell rings
    replies    one pipe and one bell for all: the trainer sleeps on the bell, and on the nursery, which tells of deaths
    payloads   one socket a worker, for what has no fixed size: episodes, tracebacks, states

Workers are forked from a nursery, not from this process, which has torch and threads in it.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from dataclasses import replace
from typing import Any

from millpond.cores import Helpers, usable_cores
from millpond.vector.failures import Failure, VectorError
from millpond.vector.fork_server import ENDED, FAILED, QUIT, STARTED, NurseryLink, WorkerHandle, describe_exit
from millpond.vector.shared_memory import Arena
from millpond.vector.worker import COMMAND, REPLY, Command, Job, Op, hush, make_bell, receive, ring

CLOSE_SECONDS = 2.0  # for environments to close by themselves
KILL_SECONDS = 10.0  # for the kernel to end a killed process
LAST_WORDS_SECONDS = 1.0
REPLIES_AT_ONCE = 256
AWAKE_SECONDS = 0.0005  # longer than one side usually goes on when the other is done with the other group


def available() -> bool:
    """True if this system has all the calls that `ProcessPool` is built on (Linux)."""
    return all(hasattr(os, name) for name in ("memfd_create", "eventfd", "pidfd_open", "fork"))


class ProcessPool:
    """`timeout` is for payloads on their way, `start_seconds` for workers to start.

    Where there are more cores than workers, the trainer has one to itself: workers keep off it, and both look again and
    again for a while before they sleep, since that would only leave a core idle, and waking it takes time.
    """

    def __init__(self, job: Job, arena: Arena, *, timeout: float, start_seconds: float) -> None:
        self._spare_core = usable_cores() > job.layout.num_workers
        self._awake_seconds = AWAKE_SECONDS if self._spare_core else 0.0
        self._job_bytes = pickle_job(replace(job, awake_seconds=self._awake_seconds))
        self._owner = os.getpid()
        self._memory = arena.fd
        self._timeout = timeout
        self._start_seconds = start_seconds
        self._replies: dict[int, Any] = {}
        self._submitted = 0
        self._num_workers = job.layout.num_workers
        self._helpers = Helpers()
        self._reply_pipe, self._reply_end = os.pipe()
        os.set_blocking(self._reply_pipe, False)
        self._reply_bell = make_bell()
        self._poll = select.poll()
        self._poll.register(self._reply_bell, select.POLLIN)
        self._nursery = self._start_nursery()
        self._workers: list[WorkerHandle] = []
        try:
            self._workers += [self._spawn(worker, generation=0) for worker in range(self._num_workers)]
            self._await_start(self._workers)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the workers that run, then of the nursery."""
        self._pump(0.0)
        running = [handle.pid for handle in self._workers if not handle.ended]
        return (*running, self._nursery.pid) if self._nursery.alive else tuple(running)

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        handle = self._workers[worker]
        self._submitted += 1
        ticket = self._submitted * self._num_workers + worker  # so that a ticket tells whose it is
        handle.open[ticket] = command
        if handle.ended:
            self._fail_open(handle)
            return ticket
        blob = b"" if payload is None else pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
        try:
            os.write(handle.commands, COMMAND.pack(*command, ticket, len(blob)))
            if self._spare_core:
                self._helpers.make_way()
            ring(handle.bell)
            if blob:
                handle.data.sendall(blob)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass  # it is dead or does not read: `wait` will hear how it died, or find it silent
        return ticket

    def wait(self, ticket: int, deadline: float) -> Any:
        awake_until = time.monotonic() + self._awake_seconds
        while ticket not in self._replies and time.monotonic() < awake_until:
            self._take_replies()
        while ticket not in self._replies:
            left = deadline - time.monotonic()
            if left <= 0:
                return self._hung(ticket)
            self._pump(left)
        return self._replies.pop(ticket)

    def discard(self, ticket: int) -> Any:
        self._holder(ticket).open.pop(ticket, None)
        return self._replies.pop(ticket, None)

    def revive(self, worker: int) -> bool:
        old = self._workers[worker]
        if not old.ended:
            self._nursery.signal(old, signal.SIGKILL)
            deadline = time.monotonic() + KILL_SECONDS
            while not old.ended and (left := deadline - time.monotonic()) > 0:
                self._pump(left)
            if not old.ended:  # it sits in the kernel, where no signal reaches it
                return False
        old.close()
        if not self._nursery.alive:
            self._pump(0.0)  # hears its end, which is the end of all its workers
            self._nursery.close()
            self._nursery = self._start_nursery()
        self._workers[worker] = self._spawn(worker, old.generation + 1)
        self._await_start([self._workers[worker]])
        return True

    def close(self) -> None:
        if self._reply_pipe < 0 or os.getpid() != self._owner:  # closed, or a forked copy, which owns nothing
            return
        # A worker that still owes an answer may never give it, and is ended without being asked.
        idle = [handle for handle in self._workers if not handle.ended and not handle.open]
        for handle in idle:
            self.submit(handle.worker, Command(Op.CLOSE, handle.worker, 0, 0))
        deadline = time.monotonic() + CLOSE_SECONDS
        while any(handle.open for handle in idle) and (left := deadline - time.monotonic()) > 0:
            self._pump(left)
        self._nursery.close()
        for handle in self._workers:
            handle.close()
        os.close(self._reply_pipe)
        os.close(self._reply_end)
        os.close(self._reply_bell)
        self._reply_pipe = -1
        self._workers.clear()
        self._replies.clear()

    def _holder(self, ticket: int) -> WorkerHandle:
        return self._workers[ticket % self._num_workers]

    def _start_nursery(self) -> NurseryLink:
        nursery = NurseryLink(self._job_bytes, self._memory)
        self._poll.register(nursery.control, select.POLLIN)
        return nursery

    def _spawn(self, worker: int, generation: int) -> WorkerHandle:
        return self._nursery.spawn(worker, generation, self._reply_end, self._reply_bell, self._timeout)

    def _await_start(self, handles: list[WorkerHandle]) -> None:
        deadline = time.monotonic() + self._start_seconds
        while True:
            self._pump(deadline - time.monotonic())
            if all(handle.pid or handle.ended for handle in handles):
                break
            if time.monotonic() >= deadline:
                raise VectorError.starts_too_slowly(self._start_seconds)
        for handle in handles:
            if not handle.pid:
                raise VectorError.did_not_start(handle.worker, handle.ended)

    def _pump(self, seconds: float) -> None:
        """Sleep until something comes, at most so long, and take it in."""
        if self._reply_pipe < 0:
            return
        ready = self._poll.poll(max(0, int(seconds * 1000) + 1))
        hush(self._reply_bell)
        self._take_replies()
        if any(fd != self._reply_bell for fd, _ in ready):
            self._take_messages()

    def _take_replies(self) -> None:
        try:
            packets = os.read(self._reply_pipe, REPLY.size * REPLIES_AT_ONCE)
        except BlockingIOError:
            return
        for ticket, nbytes in REPLY.iter_unpack(packets):
            handle = self._holder(ticket)
            reply = None
            if nbytes:
                try:
                    reply = pickle.loads(receive(handle.data, nbytes))
                except (EOFError, ConnectionResetError, TimeoutError):
                    continue  # it died or stopped while it spoke: the nursery will say so, or the deadline
            if handle.open.pop(ticket, None) is not None:  # None: discarded
                self._replies[ticket] = reply

    def _take_messages(self) -> None:
        for kind, worker, generation, value, text in self._nursery.messages():
            if kind == FAILED:
                raise VectorError.cannot_load(text)
            if kind == QUIT:
                self._poll.unregister(self._nursery.control)
                for handle in self._workers:
                    self._mark_ended(handle, "ended with the nursery that it was forked from, which died")
                return
            handle = self._workers[worker]
            if handle.generation != generation:
                continue
            if kind == STARTED:
                handle.pid = value
                if self._spare_core:
                    self._helpers.join(value)
            elif kind == ENDED:
                self._mark_ended(handle, describe_exit(os.waitstatus_to_exitcode(value)))

    def _mark_ended(self, handle: WorkerHandle, how: str) -> None:
        if handle.ended:
            return
        self._take_replies()  # what it said before it died counts, and must not be taken for its successor's
        handle.ended = how
        self._helpers.leave(handle.pid)
        self._fail_open(handle)

    def _fail_open(self, handle: WorkerHandle) -> None:
        words = handle.last_words(0.0) if handle.open else ""
        for ticket, command in handle.open.items():
            self._replies[ticket] = Failure("died", command.op.name.lower(), handle.ended, words, handle.pid)
        handle.open.clear()

    def _hung(self, ticket: int) -> Failure:
        handle = self._holder(ticket)
        command = handle.open[ticket]  # it stays open: the worker still owes the answer
        self._nursery.signal(handle, signal.SIGUSR1)
        words = handle.last_words(LAST_WORDS_SECONDS)
        what = "nothing was heard of it within the timeout"
        return Failure("hung", command.op.name.lower(), what, words, handle.pid)


def pickle_job(job: Job) -> bytes:
    """The job as bytes that another interpreter can load, or the reason why not."""
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

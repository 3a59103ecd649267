"""Workers as forked processes, which step envs in shared memory (Linux).

    commands   one pipe and one eventfd per worker: a worker sleeps until its eventfd is set
    replies    one pipe and one eventfd for all: the trainer sleeps on the eventfd, and on the fork server's socket, which
               reports workers that ended
    payloads   one socket per worker, for data of variable size: episodes, tracebacks, states

Workers are forked from a fork server, not from this process, which has loaded torch and runs threads.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from dataclasses import replace
from typing import Any

from millpond.cpu import HelperAffinity, usable_cores
from millpond.vector.backends.pool import CLOSE_SECONDS, Tickets, await_start, cannot_load, hung_failure, pickle_job
from millpond.vector.fork_server import ENDED, FAILED, QUIT, STARTED, ForkedWorker, ForkServerClient
from millpond.vector.shared_memory import Arena
from millpond.vector.worker import (
    COMMAND,
    REPLY,
    Command,
    Failure,
    Op,
    WorkerJob,
    clear_event,
    describe_exit,
    make_event,
    receive,
    set_event,
)

KILL_SECONDS = 10.0  # for the kernel to end a killed process
FAULT_LOG_SECONDS = 1.0  # for a hung worker to write its stack
REPLIES_PER_READ = 256
SPIN_SECONDS = 0.0005  # longer than one side usually works after the other has finished the other group


def available() -> bool:
    """True if this system has all the calls that `ProcessPool` needs (Linux)."""
    return all(hasattr(os, name) for name in ("memfd_create", "eventfd", "pidfd_open", "fork"))


class ProcessPool:
    """Forked worker processes of a vector; see `Pool`.

    `timeout`        seconds that sending or receiving a payload may take
    `start_seconds`  seconds that workers may take to start

    If there are more cores than workers, the trainer has one to itself: workers avoid it, and both sides poll for a
    while before they sleep, since sleeping would only leave a core idle, and waking it takes time.
    """

    def __init__(self, job: WorkerJob, arena: Arena, *, timeout: float, start_seconds: float) -> None:
        self._num_workers = job.layout.num_workers
        self._spare_core = usable_cores() > self._num_workers
        self._spin_seconds = SPIN_SECONDS if self._spare_core else 0.0
        self._job_bytes = pickle_job(replace(job, spin_seconds=self._spin_seconds))
        self._owner = os.getpid()
        self._memory = arena.fd
        self._timeout = timeout
        self._start_seconds = start_seconds
        self._tickets = Tickets(self._num_workers)
        self._affinity = HelperAffinity()
        self._reply_pipe, self._reply_end = os.pipe()
        os.set_blocking(self._reply_pipe, False)
        self._reply_event = make_event()
        self._poll = select.poll()
        self._poll.register(self._reply_event, select.POLLIN)
        self._fork_server = self._start_fork_server()
        self._workers: list[ForkedWorker] = []
        try:
            self._workers += [self._spawn(worker, generation=0) for worker in range(self._num_workers)]
            await_start(self._workers, self._wait_until, start_seconds=start_seconds)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the running workers, then of the fork server."""
        self._handle_events(0.0)
        running = [handle.pid for handle in self._workers if not handle.exit_reason]
        return (*running, self._fork_server.pid) if self._fork_server.alive else tuple(running)

    def submit(self, worker: int, command: Command, payload: Any = None) -> int:
        handle = self._workers[worker]
        ticket = self._tickets.issue(handle, command)
        if handle.exit_reason:
            self._tickets.fail_pending(handle)
            return ticket
        blob = b"" if payload is None else pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
        try:
            os.write(handle.commands, COMMAND.pack(*command, ticket, len(blob)))
            if self._spare_core:
                self._affinity.avoid_callers_core()
            set_event(handle.event)
            if blob:
                handle.data.sendall(blob)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass  # it is dead or does not read: `wait` will learn how it ended, or time out
        return ticket

    def wait(self, ticket: int, deadline: float) -> Any:
        replies = self._tickets.replies
        spin_until = time.monotonic() + self._spin_seconds
        while ticket not in replies and time.monotonic() < spin_until:
            self._read_replies()
        while ticket not in replies:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                return self._hung(ticket)
            self._handle_events(seconds_left)
        return replies.pop(ticket)

    def discard(self, ticket: int) -> Any:
        return self._tickets.discard(self._handle_of(ticket), ticket)

    def replace_worker(self, worker: int) -> bool:
        old = self._workers[worker]
        if not old.exit_reason:
            self._fork_server.signal(old, signal.SIGKILL)
            deadline = time.monotonic() + KILL_SECONDS
            while not old.exit_reason and time.monotonic() < deadline:
                self._wait_until(deadline)
            if not old.exit_reason:  # it is in an uninterruptible system call
                return False
        old.close()
        if not self._fork_server.alive:
            self._handle_events(0.0)  # reads that it ended, and so all its workers
            self._fork_server.close()
            self._fork_server = self._start_fork_server()
        self._workers[worker] = self._spawn(worker, old.generation + 1)
        await_start([self._workers[worker]], self._wait_until, start_seconds=self._start_seconds)
        return True

    def close(self) -> None:
        if self._reply_pipe < 0 or os.getpid() != self._owner:  # closed, or a forked copy, which owns nothing
            return
        # A worker with a pending command may never reply, and is ended without being asked.
        idle = [handle for handle in self._workers if not handle.exit_reason and not handle.pending]
        for handle in idle:
            self.submit(handle.worker, Command(Op.CLOSE, handle.worker, 0, 0))
        deadline = time.monotonic() + CLOSE_SECONDS
        while any(handle.pending for handle in idle) and time.monotonic() < deadline:
            self._wait_until(deadline)
        self._fork_server.close()
        for handle in self._workers:
            handle.close()
        os.close(self._reply_pipe)
        os.close(self._reply_end)
        os.close(self._reply_event)
        self._reply_pipe = -1
        self._workers.clear()
        self._tickets.replies.clear()

    def _handle_of(self, ticket: int) -> ForkedWorker:
        return self._workers[self._tickets.worker_of(ticket)]

    def _start_fork_server(self) -> ForkServerClient:
        fork_server = ForkServerClient(self._job_bytes, self._memory)
        self._poll.register(fork_server.control, select.POLLIN)
        return fork_server

    def _spawn(self, worker: int, generation: int) -> ForkedWorker:
        return self._fork_server.spawn(worker, generation, self._reply_end, self._reply_event, self._timeout)

    def _wait_until(self, deadline: float) -> None:
        self._handle_events(deadline - time.monotonic())

    def _handle_events(self, seconds: float) -> None:
        """Sleep until something arrives, at most `seconds`, and handle it."""
        if self._reply_pipe < 0:
            return
        ready = self._poll.poll(max(0, int(seconds * 1000) + 1))
        clear_event(self._reply_event)
        self._read_replies()
        if any(fd != self._reply_event for fd, _ in ready):
            self._read_messages()

    def _read_replies(self) -> None:
        try:
            packets = os.read(self._reply_pipe, REPLY.size * REPLIES_PER_READ)
        except BlockingIOError:
            return
        for ticket, nbytes in REPLY.iter_unpack(packets):
            handle = self._handle_of(ticket)
            reply = None
            if nbytes:
                try:
                    reply = pickle.loads(receive(handle.data, nbytes))
                except (EOFError, ConnectionResetError, TimeoutError):
                    continue  # it died or stopped while it replied: the fork server reports it, or the deadline passes
            self._tickets.store_reply(handle, ticket, reply)

    def _read_messages(self) -> None:
        for kind, worker, generation, value, text in self._fork_server.messages():
            if kind == FAILED:
                raise cannot_load(text)
            if kind == QUIT:
                self._poll.unregister(self._fork_server.control)
                for handle in self._workers:
                    self._mark_ended(handle, "ended with the fork server that it was forked from, which died")
                return
            handle = self._workers[worker]
            if handle.generation != generation:
                continue
            if kind == STARTED:
                handle.pid = value
                if self._spare_core:
                    self._affinity.add(value)
            elif kind == ENDED:
                self._mark_ended(handle, describe_exit(os.waitstatus_to_exitcode(value)))

    def _mark_ended(self, handle: ForkedWorker, exit_reason: str) -> None:
        if handle.exit_reason:
            return
        self._read_replies()  # replies that it sent before it died count, and must not be taken for its successor's
        handle.exit_reason = exit_reason
        self._affinity.remove(handle.pid)
        self._tickets.fail_pending(handle)

    def _hung(self, ticket: int) -> Failure:
        handle = self._handle_of(ticket)
        self._fork_server.signal(handle, signal.SIGUSR1)
        return hung_failure(handle, ticket, handle.read_fault_log(FAULT_LOG_SECONDS))

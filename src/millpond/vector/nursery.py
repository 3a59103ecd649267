"""The process that workers are forked from.

It imports what the environments need once, and never torch, so that sixteen workers start as fast as one. It has no threads,
so that forking it is safe whatever the trainer's process has loaded. And it ends its workers when the trainer ends:

    trainer  --socket-->  nursery  --fork-->  worker 0, worker 1, ...
                             |                    ^
                             |  trainer is gone   |  nursery is gone: the kernel kills them (PR_SET_PDEATHSIG)
                             +--------------------+

Messages are packets of one socket. The trainer asks for workers and signals; the nursery tells when a worker has
started or ended, and how.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
import traceback

import numpy.random  # by name: numpy would load it later, and so in each worker anew

from millpond.vector.lifeline import end_with, outlive
from millpond.vector.worker import work

# kind, worker, generation of that worker, a value: signal number (SIGNAL), pid (STARTED), wait status (ENDED)
MESSAGE = struct.Struct("=4q")
SPAWN, SIGNAL, QUIT, STARTED, ENDED, FAILED = range(6)
MOST_TEXT = 60_000  # of a traceback: what fits in a packet


class Nursery:
    def __init__(self, control: socket.socket, memory: int, parent: int) -> None:
        self._control = control
        self._memory = memory
        self._parent = os.pidfd_open(parent)
        self._poll = select.poll()
        for fd in (control.fileno(), self._parent):
            self._poll.register(fd, select.POLLIN)
        self._pids: dict[tuple[int, int], int] = {}  # worker, generation -> pid
        self._watched: dict[int, tuple[int, int]] = {}  # pidfd -> worker, generation

    def run(self, job_bytes: bytes) -> None:
        try:
            job = pickle.loads(job_bytes)  # imports whatever the environment needs
        except BaseException:  # whatever an import may raise: the trainer is waiting to hear it
            text = traceback.format_exc()[-MOST_TEXT:].encode()
            self._control.send(MESSAGE.pack(FAILED, 0, 0, 0) + text)
            return
        self._job = job
        outlive()  # from now on the trainer's process is watched, and its thread may end
        gc.collect()
        gc.freeze()  # keeps the collector from touching, and so copying, the pages that workers share
        try:
            while self._turn():
                pass
        finally:
            for pid in self._pids.values():
                os.kill(pid, signal.SIGKILL)
            for pid in self._pids.values():
                os.waitpid(pid, 0)

    def _turn(self) -> bool:
        """Sleep until something happens and see to it; False when the trainer is gone."""
        for fd, _ in self._poll.poll():
            if fd == self._parent:
                return False
            elif fd == self._control.fileno():
                message, fds, _, _ = socket.recv_fds(self._control, 4096, 6)
                if not message:
                    return False
                kind, worker, generation, value = MESSAGE.unpack(message)
                if kind == QUIT:
                    return False
                elif kind == SPAWN:
                    self._spawn(worker, generation, fds)
                elif (worker, generation) in self._pids:  # not yet reaped, so the pid cannot be anybody else's
                    os.kill(self._pids[worker, generation], value)
            else:
                self._reap(fd)
        return True

    def _spawn(self, worker: int, generation: int, fds: list[int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        nursery = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(nursery, worker, fds)
        for fd in fds:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._pids[worker, generation] = pid
        self._watched[pidfd] = worker, generation
        self._poll.register(pidfd, select.POLLIN)
        self._control.send(MESSAGE.pack(STARTED, worker, generation, pid))

    def _become_worker(self, nursery: int, worker: int, fds: list[int]) -> None:
        """The child's whole life: it never returns into the nursery's code."""
        status = 1
        try:
            # Ends of pipes that others wait on must not stay open here.
            self._control.close()
            os.close(self._parent)
            for pidfd in self._watched:
                os.close(pidfd)
            # A fork copies the global generator; environments have seeds of their own, but an env that uses it all the same
            # should not do in each worker exactly what it does in the others.
            numpy.random.seed(worker)  # noqa: NPY002
            work(self._job, self._memory, nursery, fds)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self, pidfd: int) -> None:
        worker, generation = self._watched.pop(pidfd)
        _, status = os.waitpid(self._pids.pop((worker, generation)), 0)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        self._control.send(MESSAGE.pack(ENDED, worker, generation, status))


def main(control: int, memory: int, parent: int) -> None:
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # sent to a whole group of processes, they are the trainer's to answer
        signal.signal(number, signal.SIG_IGN)
    end_with(parent)  # imports may hang; meanwhile the thread that started us waits, and ends only with the trainer
    job_bytes = sys.stdin.buffer.read()
    try:
        Nursery(socket.socket(fileno=control), memory, parent).run(job_bytes)
    except (BrokenPipeError, ConnectionResetError):
        raise SystemExit(1) from None  # the trainer went away while it was being told something

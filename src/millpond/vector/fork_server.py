"""The fork server: the process that workers are forked from, and the trainer's connection to it (Linux).

It imports the environment's modules once, and never torch, so that sixteen workers start as fast as one. It has no
threads, so forking is safe whatever the trainer's process has loaded. And it ends its workers when the trainer ends:

    trainer  --socket-->  fork server  --fork-->  worker 0, worker 1, ...
                               |                      ^
                               |  trainer has ended   |  fork server has ended: the kernel kills them
                               +----------------------+  (PR_SET_PDEATHSIG)

Messages are packets on one socket. The trainer requests workers and signals; the fork server reports when a worker has
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
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy.random  # explicitly: numpy loads it lazily, which would happen again in each worker

from millpond.vector.worker import ONE_THREAD, Command, die_with_parent, make_event, outlive_parent, run_worker_process

BOOT = (
    "import sys; control, memory, parent = map(int, sys.argv[1:4]); sys.path[:] = sys.argv[4:]; "
    "from millpond.vector.fork_server import main; main(control, memory, parent)"
)
# kind, worker, generation of that worker, a value: signal number (SIGNAL), pid (STARTED), wait status (ENDED)
MESSAGE = struct.Struct("=4q")
SPAWN, SIGNAL, QUIT, STARTED, ENDED, FAILED = range(6)
MAX_TEXT = 60_000  # bytes of a traceback that fit in a packet
QUIT_SECONDS = 5.0
POLL_SECONDS = 0.05


class ForkServer:
    """Runs in the fork server's process: forks workers, sends them signals, reports how they ended."""

    def __init__(self, control: socket.socket, memory: int, parent: int) -> None:
        self._control = control
        self._memory = memory
        self._parent = os.pidfd_open(parent)
        self._poll = select.poll()
        for fd in (control.fileno(), self._parent):
            self._poll.register(fd, select.POLLIN)
        self._pids: dict[tuple[int, int], int] = {}  # worker, generation -> pid
        self._pidfds: dict[int, tuple[int, int]] = {}  # pidfd -> worker, generation

    def run(self, job_bytes: bytes) -> None:
        try:
            job = pickle.loads(job_bytes)  # imports the environment's modules
        except BaseException:  # whatever an import may raise: the trainer is waiting for a message
            text = traceback.format_exc()[-MAX_TEXT:].encode()
            self._control.send(MESSAGE.pack(FAILED, 0, 0, 0) + text)
            return
        self._job = job
        outlive_parent()  # from now on the trainer's process is watched, and the thread that started this one may end
        gc.collect()
        gc.freeze()  # keeps the garbage collector from touching, and so copying, the pages that workers share
        try:
            while self._handle_events():
                pass
        finally:
            for pid in self._pids.values():
                os.kill(pid, signal.SIGKILL)
            for pid in self._pids.values():
                os.waitpid(pid, 0)

    def _handle_events(self) -> bool:
        """Sleep until something happens and handle it; return False when the trainer has ended."""
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
                elif (worker, generation) in self._pids:  # not yet reaped, so the pid was not reused
                    os.kill(self._pids[worker, generation], value)
            else:
                self._reap(fd)
        return True

    def _spawn(self, worker: int, generation: int, fds: list[int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        own_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(own_pid, worker, fds)
        for fd in fds:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._pids[worker, generation] = pid
        self._pidfds[pidfd] = worker, generation
        self._poll.register(pidfd, select.POLLIN)
        self._control.send(MESSAGE.pack(STARTED, worker, generation, pid))

    def _become_worker(self, fork_server: int, worker: int, fds: list[int]) -> None:
        """Run a worker in the forked child; never return into the fork server's code."""
        status = 1
        try:
            # Ends of pipes that others wait on must not stay open here.
            self._control.close()
            os.close(self._parent)
            for pidfd in self._pidfds:
                os.close(pidfd)
            # A fork copies numpy's global generator. Envs are seeded on their own, but one that uses the global generator
            # anyway should not draw the same numbers in every worker.
            numpy.random.seed(worker)  # noqa: NPY002
            run_worker_process(self._job, self._memory, fork_server, fds)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self, pidfd: int) -> None:
        worker, generation = self._pidfds.pop(pidfd)
        _, status = os.waitpid(self._pids.pop((worker, generation)), 0)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        self._control.send(MESSAGE.pack(ENDED, worker, generation, status))


def main(control: int, memory: int, parent: int) -> None:
    """Run the fork server; it reads the pickled job from stdin."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # sent to the whole group, for the trainer to handle
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent)  # an import may hang; until then the thread that started this process waits for it
    job_bytes = sys.stdin.buffer.read()
    try:
        ForkServer(socket.socket(fileno=control), memory, parent).run(job_bytes)
    except (BrokenPipeError, ConnectionResetError):
        raise SystemExit(1) from None  # the trainer ended while a message was being sent


@dataclass(eq=False)
class ForkedWorker:
    """The trainer's side of one forked worker."""

    worker: int
    generation: int
    commands: int  # write end of its command pipe
    event: int  # eventfd to be set after writing
    data: socket.socket
    fault_log: int  # read end of the pipe that its fault handler writes to
    pid: int = 0  # known once it has started
    exit_reason: str = ""  # set once it has ended
    pending: dict[int, Command] = field(default_factory=dict)  # tickets without a reply, oldest first

    @property
    def started(self) -> bool:
        return self.pid != 0

    def read_fault_log(self, seconds: float) -> str:
        """Return what its fault handler wrote, waiting up to `seconds` for the first bytes."""
        text, deadline = b"", time.monotonic() + seconds
        while True:
            try:
                chunk = os.read(self.fault_log, 65536)
            except BlockingIOError:
                if text or time.monotonic() >= deadline:
                    break
                time.sleep(POLL_SECONDS)
                continue
            if not chunk:
                break
            text += chunk
        return text.decode(errors="replace")

    def close(self) -> None:
        os.close(self.commands)
        os.close(self.event)
        os.close(self.fault_log)
        self.data.close()


class ForkServerClient:
    """The trainer's connection to one fork server, which it starts."""

    def __init__(self, job_bytes: bytes, memory: int) -> None:
        self.control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            arguments = [str(server_end.fileno()), str(memory), str(os.getpid()), *sys.path]
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, *arguments],
                stdin=subprocess.PIPE,
                pass_fds=(server_end.fileno(), memory),
                env=os.environ | ONE_THREAD,
            )
        # Also when this object is garbage-collected, and at the end of the interpreter.
        self._end = weakref.finalize(self, _end_process, self._process, self.control, os.getpid())
        assert self._process.stdin is not None
        try:
            with self._process.stdin as stdin:
                stdin.write(job_bytes)
        except BrokenPipeError:
            pass  # it has already ended, which `messages` reports
        self.control.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._end.alive and self._process.poll() is None

    def spawn(self, worker: int, generation: int, replies: int, reply_event: int, seconds: float) -> ForkedWorker:
        """Request a worker. A STARTED message follows when it has started, but commands may be written at once."""
        commands_end, commands = os.pipe()
        event = make_event()
        fault_log, fault_log_end = os.pipe()
        data, data_end = socket.socketpair()
        data.settimeout(seconds)
        os.set_blocking(fault_log, False)
        handle = ForkedWorker(worker, generation, commands, event, data, fault_log)
        try:
            message = MESSAGE.pack(SPAWN, worker, generation, 0)
            fds = [commands_end, event, replies, reply_event, data_end.fileno(), fault_log_end]
            socket.send_fds(self.control, [message], fds)
        except (BrokenPipeError, ConnectionResetError):
            handle.exit_reason = "could not be started: the fork server is dead"
        finally:
            os.close(commands_end)
            os.close(fault_log_end)
            data_end.close()
        return handle

    def signal(self, handle: ForkedWorker, number: signal.Signals) -> None:
        # If fork server and workers have already ended, `messages` reports it.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.control.send(MESSAGE.pack(SIGNAL, handle.worker, handle.generation, number))

    def messages(self) -> Iterator[tuple[int, int, int, int, str]]:
        """Yield kind, worker, generation, value and text of messages that have arrived; QUIT if the server has ended."""
        while True:
            try:
                message = self.control.recv(MESSAGE.size + MAX_TEXT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # raised once, before the packets that are still there
            if not message:
                yield QUIT, 0, 0, 0, ""
                return
            yield (*MESSAGE.unpack_from(message), message[MESSAGE.size :].decode(errors="replace"))

    def close(self) -> None:
        self._end()


def _end_process(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer, which does not own the process
        return
    try:
        control.setblocking(True)
        control.settimeout(QUIT_SECONDS)
        # An explicit message: closing is not enough if a forked copy of the trainer holds the socket open.
        control.send(MESSAGE.pack(QUIT, 0, 0, 0))
    except OSError:
        pass  # it has already ended
    control.close()
    try:
        process.wait(QUIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

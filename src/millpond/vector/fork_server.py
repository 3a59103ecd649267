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
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy.random  # by name: numpy would load it later, and so in each worker anew

from millpond.vector.worker import Command, end_with, make_bell, outlive, work

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


# -- The trainer's side of the nursery: start it, ask it for workers, hear how they ended.

BOOT = (
    "import sys; control, memory, parent = map(int, sys.argv[1:4]); sys.path[:] = sys.argv[4:]; "
    "from millpond.vector.fork_server import main; main(control, memory, parent)"
)
# Workers are the parallelism: libraries inside of them must not each start a thread a core.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
QUIT_SECONDS = 5.0
QUIET_SECONDS = 0.05


@dataclass(eq=False)
class WorkerHandle:
    """What the trainer holds of one worker."""

    worker: int
    generation: int
    commands: int  # write end of its pipe
    bell: int  # to be rung after writing
    data: socket.socket
    words: int  # read end of its last words
    pid: int = 0  # known once it has started
    ended: str = ""  # how, once it has
    open: dict[int, Command] = field(default_factory=dict)  # tickets it has not answered, oldest first

    def last_words(self, seconds: float) -> str:
        """What its fault handler wrote, waiting for the first of it at most so long."""
        text, deadline = b"", time.monotonic() + seconds
        while True:
            try:
                piece = os.read(self.words, 65536)
            except BlockingIOError:
                if text or time.monotonic() >= deadline:
                    break
                time.sleep(QUIET_SECONDS)
                continue
            if not piece:
                break
            text += piece
        return text.decode(errors="replace")

    def close(self) -> None:
        os.close(self.commands)
        os.close(self.bell)
        os.close(self.words)
        self.data.close()


class NurseryLink:
    """One nursery process."""

    def __init__(self, job_bytes: bytes, memory: int) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = [str(theirs.fileno()), str(memory), str(os.getpid()), *sys.path]
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, *arguments],
                stdin=subprocess.PIPE,
                pass_fds=(theirs.fileno(), memory),
                env=os.environ | ONE_THREAD,
            )
        # Also when this object is forgotten, and at the end of the interpreter.
        self._end = weakref.finalize(self, _end, self._process, self.control, os.getpid())
        assert self._process.stdin is not None
        try:
            with self._process.stdin as stdin:
                stdin.write(job_bytes)
        except BrokenPipeError:
            pass  # it is dead already, which `messages` will say
        self.control.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._end.alive and self._process.poll() is None

    def spawn(self, worker: int, generation: int, replies: int, reply_bell: int, seconds: float) -> WorkerHandle:
        """Ask for a worker. It has started when a STARTED message says so, but commands may be written at once."""
        commands_end, commands = os.pipe()
        bell = make_bell()
        words, words_end = os.pipe()
        data, data_end = socket.socketpair()
        data.settimeout(seconds)
        os.set_blocking(words, False)
        handle = WorkerHandle(worker, generation, commands, bell, data, words)
        try:
            message = MESSAGE.pack(SPAWN, worker, generation, 0)
            fds = [commands_end, bell, replies, reply_bell, data_end.fileno(), words_end]
            socket.send_fds(self.control, [message], fds)
        except (BrokenPipeError, ConnectionResetError):
            handle.ended = "could not be started: the nursery is dead"
        finally:
            os.close(commands_end)
            os.close(words_end)
            data_end.close()
        return handle

    def signal(self, handle: WorkerHandle, number: signal.Signals) -> None:
        # Where nursery and workers are dead already, `messages` will say so.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.control.send(MESSAGE.pack(SIGNAL, handle.worker, handle.generation, number))

    def messages(self) -> Iterator[tuple[int, int, int, int, str]]:
        """kind, worker, generation, value and text of what has come; at the end of the nursery a last QUIT."""
        while True:
            try:
                message = self.control.recv(MESSAGE.size + MOST_TEXT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # told once, before the packets that are still there
            if not message:
                yield QUIT, 0, 0, 0, ""
                return
            yield (*MESSAGE.unpack_from(message), message[MESSAGE.size :].decode(errors="replace"))

    def close(self) -> None:
        self._end()


def describe_exit(code: int) -> str:
    """Describe how a process ended: `code` is its exit status, or minus the signal that killed it."""
    if code >= 0:
        return f"exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    hint = "; out of memory is a common reason (see `dmesg`)" if name == "SIGKILL" else ""
    return f"killed by signal {-code} ({name}){hint}"


def _end(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer: the processes are not its own to end
        return
    try:
        control.setblocking(True)
        control.settimeout(QUIT_SECONDS)
        # Said, not only shown by closing: a forked copy of the trainer may hold the socket open.
        control.send(MESSAGE.pack(QUIT, 0, 0, 0))
    except OSError:
        pass  # it is dead
    control.close()
    try:
        process.wait(QUIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

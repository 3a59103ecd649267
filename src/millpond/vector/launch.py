"""The trainer's side of the nursery: start it, ask it for workers, hear how they ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from millpond.vector.bell import make_bell
from millpond.vector.crew import Command
from millpond.vector.nursery import MESSAGE, MOST_TEXT, QUIT, SIGNAL, SPAWN

BOOT = (
    "import sys; control, memory, parent = map(int, sys.argv[1:4]); sys.path[:] = sys.argv[4:]; "
    "from millpond.vector.nursery import main; main(control, memory, parent)"
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

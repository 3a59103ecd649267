"""Work that the board does in processes of its own, one at a time: playing an episode, reading a lake.

They are started with low priority and one thread, so that trainings on this machine are hardly slower, and end with the board.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from millpond.errors import MillpondError

SECONDS = 300.0  # that a task may take
MAX_OUTPUT = 1 << 25  # bytes
MAX_WAITING, MAX_KEPT = 4, 12
NICE = 10  # priority on POSIX
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}


class BusyError(MillpondError):
    """Too many tasks wait."""

    one_line = True


@dataclass
class BoardTask:
    """A command, and what became of it: `result` is the JSON that it printed."""

    key: str
    command: list[str]
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: Literal["waiting", "working", "done", "failed"] = "waiting"
    result: Any = None
    error: str = ""


class BoardTasks:
    """Tasks by id. The newest ones are kept; an equal one that waits or has succeeded is not started again."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, BoardTask] = OrderedDict()
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self, arguments: Sequence[str], *, key: str) -> BoardTask:
        """Run `python -m ARGUMENTS`. Tasks with the same key have the same result."""
        with self._lock:
            for task in self._tasks.values():
                if task.key == key and task.state != "failed":
                    return task
            if sum(task.state in ("waiting", "working") for task in self._tasks.values()) >= MAX_WAITING:
                raise BusyError(f"{MAX_WAITING} tasks are waiting already; try again when one has ended")
            task = BoardTask(key, [sys.executable, "-m", *arguments])
            self._tasks[task.id] = task
            while len(self._tasks) > MAX_KEPT:
                done = next((each.id for each in self._tasks.values() if each.state in ("done", "failed")), None)
                if done is None:
                    break
                del self._tasks[done]
        threading.Thread(target=self._run, args=(task,), daemon=True, name="board-task").start()
        return task

    def get(self, task: str) -> BoardTask | None:
        with self._lock:
            return self._tasks.get(task)

    def close(self) -> None:
        """End the process of the current task, if there is one."""
        self._closed = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _run(self, task: BoardTask) -> None:
        with self._turn:
            if self._closed:
                return
            task.state = "working"
            try:
                task.result = self._output(task)
                task.state = "done"
            except (MillpondError, OSError, ValueError, RecursionError, subprocess.SubprocessError) as error:
                task.error = str(error)
                task.state = "failed"

    def _output(self, task: BoardTask) -> Any:
        environment = {**os.environ, **ONE_THREAD}
        with tempfile.TemporaryDirectory() as scratch:
            out, errors = Path(scratch) / "out", Path(scratch) / "errors"
            with out.open("wb") as stdout, errors.open("wb") as stderr:
                self._process = subprocess.Popen(
                    task.command,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=environment,
                )
                if hasattr(os, "setpriority"):
                    os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)
            try:
                code = self._process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise BusyError(f"it took longer than {SECONDS:.0f} seconds and was ended") from None
            if code:
                text = errors.read_bytes()[-2000:].decode("utf-8", "replace").strip()
                raise BusyError(text or f"the process ended with code {code}")
            if out.stat().st_size > MAX_OUTPUT:
                raise BusyError(f"its result is larger than {MAX_OUTPUT:,} bytes")
            return json.loads(out.read_bytes())

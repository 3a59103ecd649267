"""The request to stop a run from outside: a file `stop` in its folder, which the run looks for after each record it writes.

Unlike a signal it reaches a run on another machine that shares the folder. The run saves, so that it can be resumed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from millpond.durable import write_file
from millpond.loop import Loop
from millpond.record import Record

STOP = "stop"
REASON = "requested by the file `stop`"


def request_stop(folder: Path) -> None:
    """Request that the run saves and stops when its iteration (portion, cycle) has ended."""
    if not os.path.lexists(folder / STOP):
        write_file(folder / STOP, b"")


def stop_requested(folder: Path) -> bool:
    return os.path.lexists(folder / STOP)


def withdraw_stop(folder: Path) -> None:
    """Remove the request."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder / STOP)


class StopRequests:
    """A sink that stops the loop after the record during which the file appeared, and removes the file."""

    remote = False

    def __init__(self, folder: Path, loop: Loop) -> None:
        self._folder, self._loop = folder, loop

    def open(self, previous: Iterable[Record]) -> None:
        """Forget a request that came before: it was for the session that has ended."""
        withdraw_stop(self._folder)

    def write(self, record: Record, number: int) -> None:
        if stop_requested(self._folder):
            withdraw_stop(self._folder)
            self._loop.stop(REASON)

    def close(self) -> None:
        """Remove a request that came after the last record."""
        withdraw_stop(self._folder)

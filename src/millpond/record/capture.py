"""Output of this process and its workers, passed through one thread, so that it does not destroy a live display.

What environments, policies and libraries print, also in worker processes and in C, appears above the display.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console as Terminal
from rich.console import ConsoleDimensions

CHUNK = 1 << 16
PARTIAL_LINE_SECONDS = 0.2  # after which a line without an end, such as a prompt, is shown

_active: list[OutputCapture] = []


class CapturedTerminal(Terminal):
    """The terminal behind captured output, with the size that it has now."""

    @property  # type: ignore[misc]  # rich's can be set, too
    def size(self) -> ConsoleDimensions:
        try:
            return ConsoleDimensions(*os.get_terminal_size(self.file.fileno()))
        except OSError:  # it has been closed
            return ConsoleDimensions(80, 24)


class OutputCapture:
    """Redirects the file descriptors 1 and 2, which workers inherit, to a pipe, and passes on what arrives there.

    `show` is called with complete lines, in another thread. Without it they go to the terminal unchanged.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = {fd: os.dup(fd) for fd in (1, 2) if os.isatty(fd)}
        self.file: TextIO = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        for fd in self._saved:
            os.dup2(write, fd)
        os.close(write)
        self._wake, self._waker = os.pipe()
        self.show: Callable[[str], None] | None = None
        self._thread = threading.Thread(target=self._pass_on, name="output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Restore the descriptors, and pass on the rest."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for fd, saved in self._saved.items():
            if os.isatty(saved):
                os.dup2(saved, fd)
            else:  # closed meanwhile: writing to it would fail
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, fd)
                os.close(null)
        os.close(self._waker)
        self._thread.join()
        for fd in (*self._saved.values(), self._read, self._wake):
            os.close(fd)
        with contextlib.suppress(OSError):
            self.file.close()

    def _pass_on(self) -> None:
        pending, ended = b"", False
        while not ended:
            ready, _, _ = select.select([self._read, self._wake], [], [], PARTIAL_LINE_SECONDS if pending else None)
            ended = self._wake in ready
            pending += self._read_all()
            complete = len(pending) if ended or not ready else pending.rfind(b"\n") + 1
            if complete:
                self._emit(pending[:complete])
                pending = pending[complete:]

    def _read_all(self) -> bytes:
        data = b""
        while len(data) < CHUNK:
            try:
                part = os.read(self._read, CHUNK)
            except BlockingIOError:
                break
            if not part:
                break
            data += part
        return data

    def _emit(self, data: bytes) -> None:
        show = self.show
        with contextlib.suppress(OSError, ValueError):  # the terminal has gone; the run goes on
            if show is not None:
                show(data.decode(self.file.encoding, errors="replace").removesuffix("\n"))
            else:
                self.file.flush()
                while data:
                    data = data[os.write(self.file.fileno(), data) :]


@contextmanager
def captured_output(*, enabled: bool = True) -> Iterator[None]:
    """Within this context output is captured, if stdout is a terminal. Begin it before worker processes are started."""
    if not (enabled and not _active and can_capture()):
        yield
        return
    capture = OutputCapture()
    _active.append(capture)
    try:
        yield
    finally:
        _active.remove(capture)
        capture.close()


def can_capture() -> bool:
    """Return True if stdout is a terminal that can show a display, and is that of the process."""
    try:
        own = sys.stdout.fileno() == 1 and os.isatty(1)
    except (OSError, ValueError, AttributeError):  # replaced by something that is not a file
        return False
    return own and os.name == "posix" and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def active_capture() -> OutputCapture | None:
    """Return the capture that is on, if any."""
    return _active[0] if _active else None

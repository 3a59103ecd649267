"""Stop a loop early: on SIGINT, SIGTERM and SIGHUP, and before a time limit is over."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.loop.loop import Loop

RECENT_ITEMS = 3  # items whose durations predict the next one's


class TimeLimit:
    """Decide, wherever a loop may stop, if the next item would still end in time.

    An item is everything between two places where the loop may stop, without the saves there. The next one is assumed to
    take as long as the longest of the last three. The first one is not counted: it compiles and warms up.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._item_began = clock()
        self._deadline = self._item_began + seconds
        self._durations: deque[float] | None = None

    def item_begins(self) -> None:
        """Measure the next item from here."""
        self._item_began = self._clock()

    def item_ended(self, save_seconds: float) -> bool:
        """Return True if the loop should stop here; `save_seconds` is the time for saves until the next item ends."""
        now = self._clock()
        if self._durations is None:
            self._durations = deque(maxlen=RECENT_ITEMS)
        else:
            self._durations.append(now - self._item_began)
        left = self._deadline - now - save_seconds
        return left <= 0.0 or max(self._durations, default=0.0) > left


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run: SIGINT, SIGTERM, and SIGHUP unless it is ignored, as `nohup` does."""
    signals = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return tuple(signals)


@contextmanager
def stop_on_signals(loop: Loop, signals: Sequence[signal.Signals] | None = None) -> Iterator[None]:
    """Within this context signals stop the loop; a second SIGINT raises KeyboardInterrupt at once.

    `signals` is by default `stop_signals()`. Only the main thread can handle signals; in other threads the context does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        name = signal.Signals(number).name
        if number == signal.SIGINT and interrupted:
            raise KeyboardInterrupt
        interrupted = interrupted or number == signal.SIGINT
        loop.stop(name)
        _discard_output_to_closed(terminals)
        # os.write, because a handler may interrupt a print, and buffered streams are not reentrant.
        os.write(2, f"\n{name}: finishing this step, then saving. Ctrl-C (again) stops at once.\n".encode())

    before = {number: signal.signal(number, handle) for number in signals or stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _discard_output_to_closed(terminals: Sequence[int]) -> None:
    """Send the output to terminals that were closed to the null device: writing to them would fail before the save."""
    for stream in terminals:
        if not os.isatty(stream):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream)
            os.close(null)

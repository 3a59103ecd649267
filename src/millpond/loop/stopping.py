"""Stop a loop early: on SIGINT and SIGTERM, and before a time limit is over."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
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


@contextmanager
def stop_on_signals(loop: Loop) -> Iterator[None]:
    """Within this context SIGINT and SIGTERM stop the loop; a second SIGINT raises KeyboardInterrupt at once.

    Only the main thread can handle signals; in other threads the context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        name = signal.Signals(number).name
        if number == signal.SIGINT and interrupted:
            raise KeyboardInterrupt
        interrupted = interrupted or number == signal.SIGINT
        loop.stop(name)
        # os.write, because a handler may interrupt a print, and buffered streams are not reentrant.
        os.write(2, f"\n{name}: finishing this step, then saving. Ctrl-C (again) stops at once.\n".encode())

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

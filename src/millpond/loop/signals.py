"""Stopping on SIGINT and SIGTERM: the step is finished first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from millpond.loop.loop import Loop


@contextmanager
def stop_on_signals(loop: Loop) -> Iterator[None]:
    """Within this context SIGINT and SIGTERM ask the loop to stop; a second SIGINT raises KeyboardInterrupt at once.

    Handlers belong to the main thread; in any other the context does nothing.
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
        # os.write, because a handler may interrupt a print, and buffered streams cannot be entered twice.
        os.write(2, f"\n{name}: finishing this step, then saving. Ctrl-C (again) stops at once.\n".encode())

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

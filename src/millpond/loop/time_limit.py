"""Stopping a loop before its time is over, not after."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

REMEMBERED = 3  # items whose lengths predict the next one's


class TimeLimit:
    """Decides where a loop may stop whether the next item would still end in time.

    An item is what lies between two places where the loop may stop, without the saves there. The next one is taken to
    be as long as the longest of the last three. The first one is not counted: it compiles and warms up.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._item_began = clock()
        self._deadline = self._item_began + seconds
        self._lengths: deque[float] | None = None

    def item_begins(self) -> None:
        """Count the next item from here."""
        self._item_began = self._clock()

    def item_ended(self, save_seconds: float) -> bool:
        """True if the loop should stop here. `save_seconds` is the time of the saves until the end of the next item."""
        now = self._clock()
        if self._lengths is None:
            self._lengths = deque(maxlen=REMEMBERED)
        else:
            self._lengths.append(now - self._item_began)
        left = self._deadline - now - save_seconds
        return left <= 0.0 or max(self._lengths, default=0.0) > left

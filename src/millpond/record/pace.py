"""Progress of a run: share that is done, time left, and speed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from millpond.loop import Loop

SPEED_SECONDS = 60.0  # that a speed is the mean of


class Pace:
    """Estimate the remaining time: the mean time per item of a level in this process, times the items left."""

    def __init__(self, loop: Loop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._began = clock()
        self._totals = list(loop.totals.values())

    def seconds_left(self) -> dict[str, float | None]:
        """Return the time until the current parent of each level ends; None if it is unknown."""
        indices, sizes = self._loop.address.indices, tuple(self._loop.sizes.values())
        seconds_per_item = self._seconds_per_item(sizes)
        left: float | None = 0.0
        result: dict[str, float | None] = {}
        for depth in reversed(range(len(sizes))):
            size, seconds, below = sizes[depth], seconds_per_item[depth], left
            if size is None or seconds is None:
                left = None
            elif depth == len(sizes) - 1 or below is None:
                left = max(0, size - indices[depth]) * seconds
            else:
                left = max(0, size - indices[depth] - 1) * seconds + below
            result[self._loop.names[depth]] = left
        return dict(reversed(result.items()))

    def _seconds_per_item(self, sizes: tuple[int | None, ...]) -> list[float | None]:
        elapsed = self._clock() - self._began
        each: list[float | None] = [None] * len(sizes)
        totals = list(self._loop.totals.values())
        for depth in reversed(range(len(sizes))):
            ended = totals[depth] - self._totals[depth]
            if ended:
                each[depth] = elapsed / ended
            elif depth + 1 < len(sizes):
                below, size = each[depth + 1], sizes[depth + 1]
                each[depth] = None if below is None or size is None else below * size
        return each

    def progress(self, limit_left: float | None = None) -> tuple[float | None, float | None]:
        """Return the share of the run that is done, and the time left; None if unknown.

        `limit_left` is the rest of a time limit, if there is one: a run that it will end is measured by it.
        """
        if self._loop.done:
            return 1.0, 0.0
        left, share = next(iter(self.seconds_left().values())), share_done(self._loop)
        if limit_left is None or (left is not None and left <= limit_left):
            return share, left
        limit_left, elapsed = max(0.0, limit_left), self._clock() - self._began
        return max(share or 0.0, elapsed / max(elapsed + limit_left, 1e-9)), limit_left


def share_done(loop: Loop) -> float | None:
    """Return the share of a loop's steps that are done, all items of a level counted alike; None if its end is open."""
    share = 0.0
    for index, size in zip(reversed(loop.address.indices), reversed(loop.sizes.values()), strict=True):
        share = 0.0 if size is None else min(1.0, (index + share) / max(1, size))
    return None if next(iter(loop.sizes.values())) is None else share


class Speed:
    """Increase of a count per second of wall time, from record to record over the last minute.

    Everything between them counts: collecting, learning, evaluating, saving.
    """

    def __init__(self, count: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, float]] = deque([(clock(), count)])

    def add(self, count: float) -> None:
        """Note the count at a record."""
        now = self._clock()
        self._samples.append((now, count))
        while len(self._samples) > 2 and self._samples[1][0] <= now - SPEED_SECONDS:
            self._samples.popleft()

    def per_second(self) -> float | None:
        """Return the speed; None before the first record."""
        (began, before), (now, count) = self._samples[0], self._samples[-1]
        return None if now <= began else (count - before) / (now - began)


def show_seconds(seconds: float | None) -> str:
    """Format a time: "8s", "4m05s", "2h30m", "3d04h", and "?" for unknown."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    for unit, lower, size, part in (("d", "h", 86400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{lower}"
    return f"{whole}s"

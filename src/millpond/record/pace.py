"""How long the rest will take, at each level."""

from __future__ import annotations

import time
from collections.abc import Callable

from millpond.loop import Loop


class Pace:
    """Estimates from what this process has done so far: the mean time of a level's items, times those left."""

    def __init__(self, loop: Loop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._began = clock()
        self._totals = list(loop.totals.values())

    def seconds_left(self) -> dict[str, float | None]:
        """For each level, the time until its current parent ends; None where that cannot be known."""
        indices, sizes = self._loop.address.indices, tuple(self._loop.sizes.values())
        each = self._seconds_each(sizes)
        left: float | None = 0.0
        result: dict[str, float | None] = {}
        for depth in reversed(range(len(sizes))):
            size, seconds, below = sizes[depth], each[depth], left
            if size is None or seconds is None:
                left = None
            elif depth == len(sizes) - 1 or below is None:
                left = max(0, size - indices[depth]) * seconds
            else:
                left = max(0, size - indices[depth] - 1) * seconds + below
            result[self._loop.names[depth]] = left
        return dict(reversed(result.items()))

    def _seconds_each(self, sizes: tuple[int | None, ...]) -> list[float | None]:
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


def show_seconds(seconds: float | None) -> str:
    """A time that can be read at a glance: "8s", "4m05s", "2h30m", "3d04h", and "?" for unknown."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    for unit, lower, size, part in (("d", "h", 86400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{lower}"
    return f"{whole}s"

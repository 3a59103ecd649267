"""Curves of all metrics in bounded memory, and sparklines of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

MAX_POINTS = 256  # of a curve; twice as many are merged in pairs
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-:=+*#"


class Curve:
    """All values of a metric, as at most 2 * MAX_POINTS means of equally many neighbours; newest, lowest and highest."""

    __slots__ = ("_merged", "_pending", "_points", "before", "highest", "lowest", "newest")

    def __init__(self, value: float) -> None:
        self.newest = self.before = self.lowest = self.highest = value
        self._points: list[float] = [value]
        self._pending: list[float] = []  # of the next point
        self._merged = 1  # values in a point

    def add(self, value: float) -> None:
        """Append a value."""
        self.before, self.newest = self.newest, value
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)
        self._pending.append(value)
        if len(self._pending) < self._merged:
            return
        self._points.append(_mean(self._pending))
        self._pending = []
        if len(self._points) == 2 * MAX_POINTS:
            self._points = [(a + b) / 2 for a, b in zip(self._points[::2], self._points[1::2], strict=True)]
            self._merged *= 2

    def points(self) -> list[float]:
        """Return the curve, oldest first."""
        return [*self._points, _mean(self._pending)] if self._pending else list(self._points)


class History:
    """The curve of every metric of a run."""

    def __init__(self) -> None:
        self._curves: dict[str, Curve] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Append the values of a record; a record need not have every metric."""
        for name, value in metrics.items():
            curve = self._curves.get(name)
            if curve is None:
                self._curves[name] = Curve(value)
            else:
                curve.add(value)

    def names(self) -> list[str]:
        """Return the names of all metrics, in the order in which they appeared."""
        return list(self._curves)  # a copy: a display iterates over it in another thread

    def get(self, name: str) -> Curve | None:
        return self._curves.get(name)


def sparkline(points: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """Draw a curve with one character per point, from its minimum to its maximum; neighbours are merged to fit."""
    if width < 1 or not points:
        return ""
    if len(points) > width:
        edges = [k * len(points) // width for k in range(width + 1)]
        points = [_mean(points[begin:end]) for begin, end in pairwise(edges)]
    low, high = min(points), max(points)
    if high <= low:
        return blocks[0] * len(points)
    scale = (len(blocks) - 1) / (high - low)
    return "".join(blocks[round((point - low) * scale)] for point in points)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

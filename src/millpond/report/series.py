"""Curves of any length, drawn with few points: means of neighbours, and how far these reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from millpond.record import Record

POINTS = 120


@dataclass(frozen=True)
class Point:
    """One or several neighbouring values: their mean, lowest and highest, at the mean of their places."""

    x: float
    y: float
    low: float
    high: float
    values: int = 1


@dataclass(frozen=True)
class Series:
    """A curve with a name. `told`: low and high are an interval that the records give, not a spread of neighbours."""

    name: str
    points: tuple[Point, ...]
    told: bool = False

    @property
    def has_band(self) -> bool:
        return any(point.high > point.low for point in self.points)


def series(
    records: Iterable[Record], axis: str, metric: str, *, name: str = "", band: tuple[str, str] | None = None
) -> Series:
    """A metric over an axis; records without it, and values that are not finite, are left out."""
    found = []
    for record in records:
        x, y = record.get(axis), record.get(metric)
        if x is None or y is None or not math.isfinite(x) or not math.isfinite(y):
            continue
        low, high = (record.get(band[0], y), record.get(band[1], y)) if band else (y, y)
        found.append(Point(float(x), float(y), float(low), float(high)))
    return Series(name or metric, tuple(found) if band else thinned(found), told=band is not None)


def thinned(points: Sequence[Point], at_most: int = POINTS) -> tuple[Point, ...]:
    """At most so many points, each of as many neighbours as any other, give or take one. No extreme is lost."""
    if len(points) <= at_most:
        return tuple(points)
    edges = [k * len(points) // at_most for k in range(at_most + 1)]
    return tuple(_joined(points[begin:end]) for begin, end in pairwise(edges))


def smoothed(points: Sequence[Point]) -> list[tuple[float, float]]:
    """A centred running mean over a tenth of the curve: what a person sees in a noisy one."""
    reach = max(1, len(points) // 20)
    windows = (points[max(0, k - reach) : k + reach + 1] for k in range(len(points)))
    return [(point.x, sum(p.y for p in near) / len(near)) for point, near in zip(points, windows, strict=True)]


def _joined(points: Sequence[Point]) -> Point:
    count = len(points)
    return Point(
        sum(point.x for point in points) / count,
        sum(point.y for point in points) / count,
        min(point.low for point in points),
        max(point.high for point in points),
        count,
    )

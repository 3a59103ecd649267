"""Axes that can be read: round tick values and short labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from millpond.record import Record
from millpond.report.markup import Markup, join, tag

SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def ticks(low: float, high: float, at_most: int = 5) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) that lie between low and high."""
    if not high > low:
        return [low]
    rough = (high - low) / at_most
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9)
    return [k * apart for k in range(first, last + 1)]


def widened(low: float, high: float) -> tuple[float, float]:
    """Limits a little beyond the values, and apart from each other where all values are the same."""
    if high > low:
        margin = (high - low) * 0.05
        return low - margin, high + margin
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def label(value: float, apart: float) -> str:
    """A tick's label, with the digits that tell it from its neighbours: 1.5M, 20k, 0.05, 3e-07."""
    if value == 0 or abs(value) < apart * 1e-9:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.2g}"
    for size, suffix in SUFFIXES:
        if abs(value) >= size:
            return _plain(value / size, apart / size) + suffix
    return _plain(value, apart)


def _plain(value: float, apart: float) -> str:
    digits = max(0, -math.floor(math.log10(apart) + 1e-9)) if apart > 0 else 3
    return f"{value:.{min(digits, 6)}f}"


def figure(value: float) -> str:
    """A value as it is told in words: whole numbers with separators, others with four significant digits."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


# -- Curves of any length, drawn with few points: means of neighbours, and how far these reach.

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


# -- One chart: curves with bands, ticks, axis labels, and values that show where the mouse is. Plain SVG, no script.

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 30, 40
COLOURS = 6
HOVERS = 60
DOTS_TO = 30  # more points than this are a line without dots
SMOOTH_FROM = 50  # and more than this have a running mean, the values behind it in a lighter tone


@dataclass(frozen=True)
class Frame:
    """Where values lie in the picture."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)


def chart(
    curves: Sequence[Series], *, x_label: str, y_label: str, marks: Mapping[str, float] | None = None
) -> Markup | None:
    """Curves over one axis; `marks` are levels to compare with, drawn as dashed lines. None where there is no point."""
    curves = [curve for curve in curves if curve.points]  # from the seventh on, colours are used again
    if not curves:
        return None
    marks = dict(marks or {})
    frame = _frame(curves, list(marks.values()))
    return tag(
        "svg",
        tag("title", f"{y_label} over {x_label}"),
        _axes(frame, x_label, y_label),
        *(_level(frame, level) for level in marks.values()),
        *(_band(frame, curve, k) for k, curve in enumerate(curves) if curve.has_band),
        *(_line(frame, curve, k) for k, curve in enumerate(curves)),
        *(_mark(frame, name, level) for name, level in marks.items()),
        *(_hovers(frame, curve, k, x_label, len(curves) > 1) for k, curve in enumerate(curves)),
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
    )


def legend(names: Sequence[str]) -> Markup | None:
    """Which colour is which curve; nothing to tell for a single one."""
    if len(names) < 2:
        return None
    entries = (tag("li", tag("i", class_=f"key k{k % COLOURS}"), name) for k, name in enumerate(names))
    return tag("ul", *entries, class_="legend")


def _frame(curves: Sequence[Series], levels: list[float]) -> Frame:
    points = [point for curve in curves for point in curve.points]
    xs = [point.x for point in points]
    low, high = widened(
        min([*(point.low for point in points), *levels]), max([*(point.high for point in points), *levels])
    )
    x_low, x_high = (min(xs), max(xs)) if max(xs) > min(xs) else widened(xs[0], xs[0])
    return Frame(x_low, x_high, low, high)


def _axes(frame: Frame, x_label: str, y_label: str) -> Markup:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    y_ticks, x_ticks = ticks(frame.y_low, frame.y_high), ticks(frame.x_low, frame.x_high)
    for value in y_ticks:
        y = frame.y(value)
        parts.append(tag("line", x1=LEFT, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", label(value, _apart(y_ticks)), x=LEFT - 6, y=y + 3.5, class_="tick end"))
    for value in x_ticks:
        x = frame.x(value)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", label(value, _apart(x_ticks)), x=x, y=bottom + 15, class_="tick middle"))
    parts.append(tag("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(tag("text", x_label, x=(LEFT + right) / 2, y=HEIGHT - 6, class_="axis-label middle"))
    parts.append(tag("text", y_label, x=2, y=12, class_="axis-label"))
    return join(*parts)


def _apart(values: list[float]) -> float:
    return values[1] - values[0] if len(values) > 1 else abs(values[0]) if values else 1.0


def _level(frame: Frame, level: float) -> Markup:
    return tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=frame.y(level), y2=frame.y(level), class_="mark")


def _mark(frame: Frame, name: str, level: float) -> Markup:
    """The name of a level, above it and in front of the curves."""
    return tag("text", f"{name} {figure(level)}", x=WIDTH - RIGHT, y=frame.y(level) - 4, class_="end named")


def _path(frame: Frame, places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in places)


def _band(frame: Frame, curve: Series, k: int) -> Markup:
    there = [(point.x, point.high) for point in curve.points]
    back = [(point.x, point.low) for point in reversed(curve.points)]
    return tag("polygon", points=_path(frame, [*there, *back]), class_=f"band f{k % COLOURS}")


def _line(frame: Frame, curve: Series, k: int) -> Markup:
    colour = f"s{k % COLOURS}"
    line = tag("polyline", points=_path(frame, [(p.x, p.y) for p in curve.points]), class_=f"line {colour}")
    if len(curve.points) > SMOOTH_FROM and not curve.told:
        raw = tag("polyline", points=_path(frame, [(p.x, p.y) for p in curve.points]), class_=f"line raw {colour}")
        return join(raw, tag("polyline", points=_path(frame, smoothed(curve.points)), class_=f"line {colour}"))
    if len(curve.points) > DOTS_TO:
        return line
    dots = (tag("circle", cx=frame.x(p.x), cy=frame.y(p.y), r=2.2, class_=f"f{k % COLOURS}") for p in curve.points)
    return join(line, *dots)


def _hovers(frame: Frame, curve: Series, k: int, x_label: str, named: bool) -> Markup:
    """Invisible strips (one curve) or dots (several) that show a value under the mouse."""
    every = -(-len(curve.points) // HOVERS)
    points = curve.points[::every]
    parts = []
    for place, point in enumerate(points):
        x, y = frame.x(point.x), frame.y(point.y)
        title = tag("title", _words(curve, point, x_label, named))
        dot = tag("circle", cx=x, cy=y, r=3.5, class_=f"dot f{k % COLOURS}")
        if named:
            parts.append(tag("g", tag("circle", cx=x, cy=y, r=6, class_="hit"), dot, title, class_="point"))
            continue
        left = (frame.x(points[place - 1].x) + x) / 2 if place else LEFT
        right = (frame.x(points[place + 1].x) + x) / 2 if place + 1 < len(points) else WIDTH - RIGHT
        strip = tag("rect", x=left, y=TOP, width=max(0.5, right - left), height=HEIGHT - TOP - BOTTOM, class_="hit")
        parts.append(tag("g", strip, dot, title, class_="point"))
    return join(*parts)


def _words(curve: Series, point: Point, x_label: str, named: bool) -> str:
    text = f"{curve.name}: {figure(point.y)}" if named else figure(point.y)
    if point.high > point.low:
        spread = "95% interval" if curve.told else f"mean of {point.values}; lowest and highest"
        text += f" ({spread} {figure(point.low)} to {figure(point.high)})"
    return f"{text}\nat {figure(round(point.x))} {x_label}"

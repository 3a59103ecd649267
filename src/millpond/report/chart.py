"""Line charts as plain SVG without scripts: ticks, labels, bands, a moving average, and tooltips.

Curves of any length are downsampled to `MAX_POINTS` points, each the mean of its neighbours with their minimum and maximum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from millpond.record import Record
from millpond.report.markup import Markup, join, tag

WIDTH, HEIGHT = (
    360,
    225,
)  # of a chart among others; its labels are as large as the captions where it is shown at this size
WIDE = (720, 390)  # of a chart with another thing beside it
FULL = (1150, 320)  # of a chart alone
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 32, 48  # margins
COLOURS = 6
MAX_POINTS = 120
MAX_TOOLTIPS = 60
MAX_DOTS = 30  # a curve with more points is a line without dots
SMOOTH_FROM = 50  # a curve with more points has a moving average in front of its values
SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Point:
    """Mean, minimum and maximum of `count` neighbouring values, at the mean of their x."""

    x: float
    y: float
    low: float
    high: float
    count: int = 1


@dataclass(frozen=True)
class Series:
    """A named curve. `is_interval`: low and high are a confidence interval, not the range of neighbouring values."""

    name: str
    points: tuple[Point, ...]
    is_interval: bool = False

    @property
    def has_band(self) -> bool:
        return any(point.high > point.low for point in self.points)


def series(
    records: Iterable[Record], axis: str, metric: str, *, name: str = "", band: tuple[str, str] | None = None
) -> Series:
    """Return a metric over an axis. Records without it, and values that are not finite, are skipped.

    `band` names the metrics of a confidence interval; such a curve is not downsampled.
    """
    points = []
    for record in records:
        x, y = record.get(axis), record.get(metric)
        if x is None or y is None or not math.isfinite(x) or not math.isfinite(y):
            continue
        low, high = (record.get(band[0], y), record.get(band[1], y)) if band else (y, y)
        points.append(Point(float(x), float(y), float(low), float(high)))
    return Series(name or metric, tuple(points) if band else downsample(points), is_interval=band is not None)


def downsample(points: Sequence[Point], max_points: int = MAX_POINTS) -> tuple[Point, ...]:
    """Merge neighbours into at most `max_points` points of equal size, give or take one. Extremes are preserved."""
    if len(points) <= max_points:
        return tuple(points)
    edges = [k * len(points) // max_points for k in range(max_points + 1)]
    return tuple(_merge(points[begin:end]) for begin, end in pairwise(edges))


def moving_average(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return a centred moving average over a tenth of the curve."""
    reach = max(1, len(points) // 20)
    windows = (points[max(0, k - reach) : k + reach + 1] for k in range(len(points)))
    return [(point.x, sum(p.y for p in near) / len(near)) for point, near in zip(points, windows, strict=True)]


def _merge(points: Sequence[Point]) -> Point:
    count = len(points)
    return Point(
        sum(point.x for point in points) / count,
        sum(point.y for point in points) / count,
        min(point.low for point in points),
        max(point.high for point in points),
        count,
    )


def ticks(low: float, high: float, max_ticks: int = 5) -> list[float]:
    """Return round values between low and high, spaced by 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / max_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    spacing = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / spacing - 1e-9), math.floor(high / spacing + 1e-9)
    return [k * spacing for k in range(first, last + 1)]


def padded_limits(low: float, high: float) -> tuple[float, float]:
    """Return limits slightly beyond the values, and different from each other where all values are equal."""
    if high > low:
        margin = (high - low) * 0.05
        return low - margin, high + margin
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def tick_label(value: float, spacing: float) -> str:
    """Return a label with the digits that distinguish ticks of this spacing: 1.5M, 20k, 0.05, 3e-07."""
    if value == 0 or abs(value) < spacing * 1e-9:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.2g}"
    for size, suffix in SUFFIXES:
        if abs(value) >= size:
            return _with_digits(value / size, spacing / size) + suffix
    return _with_digits(value, spacing)


def _with_digits(value: float, spacing: float) -> str:
    digits = max(0, -math.floor(math.log10(spacing) + 1e-9)) if spacing > 0 else 3
    return f"{value:.{min(digits, 6)}f}"


def format_number(value: float) -> str:
    """Return a number for text: integers with separators, others with four significant digits."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class PlotArea:
    """Limits of both axes, the size of the picture, and the pixel of a value."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    width: int = WIDTH
    height: int = HEIGHT

    @staticmethod
    def around(curves: Sequence[Series], levels: Sequence[float], size: tuple[int, int] = (WIDTH, HEIGHT)) -> PlotArea:
        """Return limits that hold all points, bands and levels, in a picture of this size."""
        points = [point for curve in curves for point in curve.points]
        xs = [point.x for point in points]
        low, high = padded_limits(
            min([*(point.low for point in points), *levels]), max([*(point.high for point in points), *levels])
        )
        x_low, x_high = (min(xs), max(xs)) if max(xs) > min(xs) else padded_limits(xs[0], xs[0])
        return PlotArea(x_low, x_high, low, high, *size)

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.height - BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (self.height - TOP - BOTTOM)

    def path(self, values: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in values)


def chart(
    curves: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    levels: Mapping[str, float] | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> Markup | None:
    """Draw curves over one axis. `levels` are named values to compare with, drawn as dashed lines.

    None where no curve has a point. There are six colours, so the seventh curve has the first one's.
    """
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return None
    levels = dict(levels or {})
    area = PlotArea.around(curves, list(levels.values()), size)
    return tag(
        "svg",
        tag("title", f"{y_label} over {x_label}"),
        _axes(area, x_label, y_label),
        *(_level_line(area, level) for level in levels.values()),
        *(_band(area, curve, k) for k, curve in enumerate(curves) if curve.has_band),
        *(_line(area, curve, k) for k, curve in enumerate(curves)),
        *(_level_name(area, name, level) for name, level in levels.items()),
        *(_tooltips(area, curve, k, x_label, len(curves) > 1) for k, curve in enumerate(curves)),
        class_="chart",
        viewBox=f"0 0 {area.width} {area.height}",
        role="img",
    )


def legend(names: Sequence[str]) -> Markup | None:
    """Return the names of the curves with their colours; None for a single curve."""
    if len(names) < 2:
        return None
    entries = (tag("li", tag("i", class_=f"key k{k % COLOURS}"), name) for k, name in enumerate(names))
    return tag("ul", *entries, class_="legend")


def _axes(area: PlotArea, x_label: str, y_label: str) -> Markup:
    bottom, right = area.height - BOTTOM, area.width - RIGHT
    parts = []
    y_ticks, x_ticks = ticks(area.y_low, area.y_high), ticks(area.x_low, area.x_high, max(3, area.width // 110))
    for value in y_ticks:
        y = area.y(value)
        parts.append(tag("line", x1=LEFT, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", tick_label(value, _spacing(y_ticks)), x=LEFT - 6, y=y + 5, class_="tick end"))
    for value in x_ticks:
        x = area.x(value)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", tick_label(value, _spacing(x_ticks)), x=x, y=bottom + 18, class_="tick middle"))
    parts.append(tag("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(tag("text", x_label, x=(LEFT + right) / 2, y=area.height - 7, class_="axis-label middle"))
    parts.append(tag("text", y_label, x=2, y=15, class_="axis-label"))
    return join(*parts)


def _spacing(values: list[float]) -> float:
    return values[1] - values[0] if len(values) > 1 else abs(values[0]) if values else 1.0


def _level_line(area: PlotArea, level: float) -> Markup:
    return tag("line", x1=LEFT, x2=area.width - RIGHT, y1=area.y(level), y2=area.y(level), class_="mark")


def _level_name(area: PlotArea, name: str, level: float) -> Markup:
    """Return the name of a level, above its line and in front of the curves."""
    return tag("text", f"{name} {format_number(level)}", x=area.width - RIGHT, y=area.y(level) - 4, class_="end named")


def _band(area: PlotArea, curve: Series, k: int) -> Markup:
    upper = [(point.x, point.high) for point in curve.points]
    lower = [(point.x, point.low) for point in reversed(curve.points)]
    return tag("polygon", points=area.path([*upper, *lower]), class_=f"band f{k % COLOURS}")


def _line(area: PlotArea, curve: Series, k: int) -> Markup:
    colour = f"s{k % COLOURS}"
    line = tag("polyline", points=area.path([(p.x, p.y) for p in curve.points]), class_=f"line {colour}")
    if len(curve.points) > SMOOTH_FROM and not curve.is_interval:
        raw = tag("polyline", points=area.path([(p.x, p.y) for p in curve.points]), class_=f"line raw {colour}")
        return join(raw, tag("polyline", points=area.path(moving_average(curve.points)), class_=f"line {colour}"))
    if len(curve.points) > MAX_DOTS:
        return line
    dots = (tag("circle", cx=area.x(p.x), cy=area.y(p.y), r=2.2, class_=f"f{k % COLOURS}") for p in curve.points)
    return join(line, *dots)


def _tooltips(area: PlotArea, curve: Series, k: int, x_label: str, named: bool) -> Markup:
    """Return invisible strips (one curve) or dots (several) that show a value under the mouse pointer."""
    every = -(-len(curve.points) // MAX_TOOLTIPS)
    points = curve.points[::every]
    parts = []
    for index, point in enumerate(points):
        x, y = area.x(point.x), area.y(point.y)
        title = tag("title", _tooltip(curve, point, x_label, named))
        dot = tag("circle", cx=x, cy=y, r=3.5, class_=f"dot f{k % COLOURS}")
        if named:
            parts.append(tag("g", tag("circle", cx=x, cy=y, r=6, class_="hit"), dot, title, class_="point"))
            continue
        left = (area.x(points[index - 1].x) + x) / 2 if index else LEFT
        right = (area.x(points[index + 1].x) + x) / 2 if index + 1 < len(points) else area.width - RIGHT
        strip = tag(
            "rect", x=left, y=TOP, width=max(0.5, right - left), height=area.height - TOP - BOTTOM, class_="hit"
        )
        parts.append(tag("g", strip, dot, title, class_="point"))
    return join(*parts)


def _tooltip(curve: Series, point: Point, x_label: str, named: bool) -> str:
    text = f"{curve.name}: {format_number(point.y)}" if named else format_number(point.y)
    if point.high > point.low:
        spread = "95% interval" if curve.is_interval else f"mean of {point.count}; lowest and highest"
        text += f" ({spread} {format_number(point.low)} to {format_number(point.high)})"
    return f"{text}\nat {format_number(round(point.x))} {x_label}"

"""One chart: curves with bands, ticks, axis labels, and values that show where the mouse is. Plain SVG, no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millpond.report.markup import Markup, join, tag
from millpond.report.series import Point, Series, smoothed
from millpond.report.ticks import figure, label, ticks, widened

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

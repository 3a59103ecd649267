"""The curves of several runs in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.errors import MillpondError
from millpond.report.chart import Point, moving_average
from millpond.report.comparison import RunComparison, RunGroup

Array = npt.NDArray[np.float64]
# Distinguishable without colour vision (Okabe and Ito); repeated with other line styles.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
SMOOTH_FROM = 30  # a curve with more points is smoothed, with its values behind it
GRID = 100  # points of the mean of several runs


def draw_curves(comparison: RunComparison, path: Path) -> bool:
    """Draw one line per group of runs, with the range of its runs; return False if no run has a curve."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    if not any(run.curve.points for group in comparison.groups for run in group.runs):
        return False
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    for number, group in enumerate(comparison.groups):
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        _draw(axes, group, colour, style)
    axes.set_xlabel(comparison.axis.replace("_", " "))
    axes.set_ylabel(comparison.metric)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # a folder that cannot be written, or a suffix that is no format
        raise MillpondError(f"--picture {path} cannot be written: {error}") from error
    return True


def _draw(axes: Any, group: RunGroup, colour: str, style: str) -> None:
    curves = [run.curve.points for run in group.runs if run.curve.points]
    if not curves:
        return
    if len(curves) == 1:
        (points,) = curves
        x, y = zip(*_line(points), strict=True)
        if len(points) >= SMOOTH_FROM:
            axes.plot([p.x for p in points], [p.y for p in points], color=colour, alpha=0.25, linewidth=0.8)
        marker = "o" if len(points) < SMOOTH_FROM else ""
        axes.plot(x, y, color=colour, linestyle=style, linewidth=1.8, label=group.label, marker=marker, markersize=3)
        return
    grid, values = on_one_grid(curves)
    axes.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.plot(grid, values.mean(axis=0), color=colour, linestyle=style, linewidth=1.8, label=group.label)


def on_one_grid(curves: Sequence[Sequence[Point]]) -> tuple[Array, Array]:
    """Return the x that all curves have, and the values of each curve there [curves, GRID]."""
    ends = max(points[0].x for points in curves), min(points[-1].x for points in curves)
    grid = np.linspace(ends[0], max(ends), GRID)
    lines = [_line(points) for points in curves]
    return grid, np.array([np.interp(grid, [x for x, _ in line], [y for _, y in line]) for line in lines])


def _line(points: Sequence[Point]) -> list[tuple[float, float]]:
    return moving_average(points) if len(points) >= SMOOTH_FROM else [(point.x, point.y) for point in points]

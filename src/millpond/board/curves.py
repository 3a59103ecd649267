"""Curves of several runs for one chart, with intervals over seeds; and how a run progresses.

Runs of a group, which differ in nothing but their seed, become one curve: the mean of their curves at common places, and the
95 % interval of that mean by Student's t.

    P points of a curve    S seeds
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from millpond.board.records import RunRecords, overview
from millpond.record import RETURNS
from millpond.report.comparison import mean_interval

Floats = npt.NDArray[np.float64]
Trend = Literal["new", "improving", "flat", "worse"]

AXES = {
    "agent_steps": "agent steps",
    "updates": "updates",
    "frames": "frames",
    "env_steps": "env steps",
    "seconds": "hours",
}
MAX_POINTS = 400  # of a curve that is sent
GROUP_POINTS = 150  # places at which the curves of a group are averaged
SPARKS = 24  # points of the small curve in the list
SAMPLES = 64  # records that it is made from
MIN_TREND = 8  # points that a trend needs
DIGITS = 6  # significant, of numbers that are sent


@dataclass(frozen=True)
class Overview:
    """A small curve of a run and its trend: the last quarter against the one before.

    `gain`: by how much the mean of the last quarter is better, in units of the metric.
    """

    metric: str
    points: tuple[float, ...]
    trend: Trend
    gain: float

    def to_json(self) -> dict[str, Any]:
        return {"spark": list(self.points), "spark_metric": self.metric, "trend": self.trend, "gain": self.gain}


def describe_progress(path: Path, headline: str | None) -> Overview | None:
    """Return the overview of a `metrics.jsonl`, from a few records: of the training return, or else of the headline metric."""
    records = overview(path, SAMPLES)
    for metric in (RETURNS[1], headline):
        values = [record[metric] for record in records if metric is not None and metric in record]
        if metric is not None and len(values) > 1:
            trend, gain = trend_of(values, lower_is_better="loss" in metric)
            return Overview(metric, tuple(map(_rounded, _thin(np.array(values), SPARKS))), trend, _rounded(gain))
    return None


def trend_of(values: Sequence[float], *, lower_is_better: bool = False) -> tuple[Trend, float]:
    """Compare the last quarter of a curve with the quarter before it.

    It improves or gets worse if the means differ by more than twice the standard error of their difference, and by more than
    1 % of the range of the curve.
    """
    if len(values) < MIN_TREND:
        return "new", 0.0
    quarter = len(values) // 4
    before, last = np.array(values[-2 * quarter : -quarter]), np.array(values[-quarter:])
    gain = float(last.mean() - before.mean()) * (-1.0 if lower_is_better else 1.0)
    error = math.sqrt((before.var(ddof=1) + last.var(ddof=1)) / quarter) if quarter > 1 else 0.0
    if abs(gain) <= max(2 * error, 0.01 * (max(values) - min(values)), 1e-12):
        return "flat", gain
    return ("improving" if gain > 0 else "worse"), gain


def run_curve(records: RunRecords, axis: str, metric: str) -> dict[str, Any]:
    """Return one run's metric over an axis, thinned: x, mean, and lowest and highest where several records are one point."""
    x, y, low, high = records.curve(axis, metric)
    every = -(-len(x) // MAX_POINTS) if len(x) else 1
    if every > 1:
        pad = -len(x) % every
        x, y = (_blocks(values, every, pad).mean(axis=1) for values in (x, y))
        low, high = _blocks(low, every, pad).min(axis=1), _blocks(high, every, pad).max(axis=1)
    banded = bool(np.any(high > low))
    return {
        "x": _list(_shown(x, axis)),
        "y": _list(y),
        "low": _list(low) if banded else None,
        "high": _list(high) if banded else None,
        "last": _rounded(float(y[-1])) if len(y) else None,
        "sampled": records.sampled,
        "problem": records.problem,
    }


def group_curve(runs: Sequence[RunRecords], axis: str, metric: str) -> dict[str, Any]:
    """Return the mean of the runs of a group [P], and its 95 % interval, where every one of them has values."""
    curves = [(x, y) for x, y, _, _ in (records.curve(axis, metric) for records in runs) if len(x)]
    if len(curves) < 2:
        one = next((records for records in runs if len(records.curve(axis, metric)[0])), runs[0])
        return run_curve(one, axis, metric)
    begin, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.linspace(begin, max(begin, end), GROUP_POINTS if end > begin else 1)
    values = np.array([_averaged(grid, x, y) for x, y in curves])  # [S, P]
    intervals = [mean_interval(column.tolist()) for column in values.T]
    return {
        "x": _list(_shown(grid, axis)),
        "y": [_rounded(each.value) for each in intervals],
        "low": [_rounded(each.value if each.low is None else each.low) for each in intervals],
        "high": [_rounded(each.value if each.high is None else each.high) for each in intervals],
        "last": _rounded(intervals[-1].value),
        "seeds": len(curves),
        "interval": True,
        "sampled": any(records.sampled for records in runs),
        "problem": next((records.problem for records in runs if records.problem), ""),
    }


def _averaged(grid: Floats, x: Floats, y: Floats) -> Floats:
    """Return a curve at the places of a grid: the mean of its values around each place, or between two where there are none."""
    values = np.interp(grid, x, y)
    if len(x) > 2 * len(grid) and len(grid) > 1:
        edges = np.concatenate([[-np.inf], (grid[1:] + grid[:-1]) / 2, [np.inf]])
        place = np.clip(np.searchsorted(edges, x) - 1, 0, len(grid) - 1)
        counts = np.bincount(place, minlength=len(grid))
        sums = np.bincount(place, y, len(grid))
        values = np.where(counts > 0, sums / np.maximum(counts, 1), values)
    return values


def _shown(x: Floats, axis: str) -> Floats:
    return x / 3600 if axis == "seconds" else x


def _blocks(values: Floats, every: int, pad: int) -> Floats:
    return np.pad(values, (0, pad), mode="edge").reshape(-1, every)


def _thin(values: Floats, count: int) -> list[float]:
    """Return at most `count` means of neighbours."""
    return [float(part.mean()) for part in np.array_split(values, min(count, len(values)))]


def _list(values: Floats) -> list[float]:
    return [_rounded(value) for value in values.tolist()]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

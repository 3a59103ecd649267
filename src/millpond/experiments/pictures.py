"""Pictures of an experiment: learning curves with intervals, over frames and time, and performance profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from millpond.experiments.analysis import Answer
from millpond.experiments.file import Experiment
from millpond.experiments.results import Results, RunResult
from millpond.experiments.statistics import RESAMPLES, Array

COLOURS = ("#0b6e99", "#d1495b", "#edae49", "#66a182", "#6a4c93", "#2e4057", "#8d96a3", "#c06e52")
GRID = 60  # points of a mean curve


def mean_curve(runs: Mapping[int, RunResult], axis: str = "frames") -> dict[str, list[float]]:
    """Return the mean over the seeds with its 95 % bootstrap interval, as far as every seed's curve goes.

    Curves are evaluated at the points of the first one, or at `GRID` points if the others have different ones; between its
    points a curve is a straight line.
    """
    curves = []
    for run in runs.values():
        at = [frames for frames, _ in run.curve] if axis == "frames" else run.curve_seconds
        if len(at) == len(run.curve) and at:
            curves.append((np.array(at), np.array([value for _, value in run.curve])))
    if not curves or len(curves) < len(runs):
        return {axis: [], "mean": [], "low": [], "high": []}
    begin, end = max(at[0] for at, _ in curves), min(at[-1] for at, _ in curves)
    points = curves[0][0]
    if any(len(at) != len(points) or (at != points).any() for at, _ in curves):
        points = np.linspace(begin, end, GRID) if end > begin else np.array([end])
    values = np.array([np.interp(points, at, value) for at, value in curves])
    low, high = _interval(values)
    return {axis: points.tolist(), "mean": values.mean(axis=0).tolist(), "low": low.tolist(), "high": high.tolist()}


def _interval(values: Array) -> tuple[Array, Array]:
    """values [runs, points] -> ends of the interval of the mean over runs, each [points]"""
    picks = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[picks].mean(axis=1), [0.025, 0.975], axis=0)
    return low, high


def all_curves(results: Results) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return the mean curve of every method in every world."""
    return {world: {method: mean_curve(runs) for method, runs in methods.items()} for world, methods in results.items()}


def draw_curves(results: Results, answer: Answer, experiment: Experiment, paths: Sequence[Path]) -> None:
    """Draw one column per world: the return over frames, and below it over seconds, with one line per method."""
    worlds = [world for world in experiment.worlds if world in results]
    timed = all(run.curve_seconds for world in worlds for runs in results[world].values() for run in runs.values())
    axes_of = ("frames", "seconds") if timed else ("frames",)
    figure, axes = _figure(len(axes_of), len(worlds))
    colours = colours_of(experiment)
    for column, world in enumerate(worlds):
        for row, name in enumerate(axes_of):
            axis = axes[row][column]
            for method, runs in results[world].items():
                curve = mean_curve(runs, name)
                style = {"color": colours[method]}
                axis.plot(curve[name], curve["mean"], label=method, marker="o", markersize=2.5, **style)
                axis.fill_between(curve[name], curve["low"], curve["high"], alpha=0.15, linewidth=0, **style)
            if world in answer.random:
                axis.axhline(answer.random[world], color="#777777", linestyle=":", linewidth=1, label="random player")
            axis.set_xlabel("frames of all agents" if name == "frames" else "seconds of training")
            axis.set_xlim(left=0)
        axes[0][column].set_title(world)
    for row in axes:
        row[0].set_ylabel("return")
    axes[0][0].legend(frameon=False, fontsize=8)
    _save(figure, paths)


def draw_profiles(answer: Answer, experiment: Experiment, paths: Sequence[Path]) -> None:
    """Draw the performance profiles of all methods."""
    figure, ((axis,),) = _figure(1, 1)
    colours = colours_of(experiment)
    for method, profile in answer.profiles.items():
        values = [[one.value, one.low, one.high] for one in profile.fractions]
        fraction, low, high = np.array(values).T
        axis.plot(profile.thresholds, fraction, color=colours[method], label=method)
        axis.fill_between(profile.thresholds, low, high, color=colours[method], alpha=0.15, linewidth=0)
    scale = f"score (random player 0, mean of {answer.baseline} 1)" if answer.random else "score"
    axis.set_xlabel(scale if answer.random or len(experiment.worlds) > 1 else "score")
    axis.set_ylabel("runs above it")
    axis.set_ylim(0, 1.02)
    axis.legend(frameon=False, fontsize=8)
    _save(figure, paths)


def colours_of(experiment: Experiment) -> dict[str, str]:
    """Return a colour per method of the file, so that a subset of them keeps its colours."""
    return {method: COLOURS[index % len(COLOURS)] for index, method in enumerate(experiment.file.methods)}


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, 3.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, paths: Sequence[Path]) -> None:
    for path in paths:
        figure.savefig(path, dpi=140, metadata={"Date": None} if path.suffix == ".svg" else None)

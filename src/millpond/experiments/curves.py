"""Curves of an experiment: a panel a game, a line a method, mean over seeds between the worst and the best."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from millpond.experiments.mixture_vs_single import Settings
from millpond.experiments.results import Results, RunResult

COLOURS = {
    "mixture": "#0b6e99",
    "single": "#d1495b",
    "single-resets": "#edae49",
    "no-resets": "#66a182",
    "live": "#6a4c93",
}


def curve_of(runs: Mapping[int, RunResult]) -> dict[str, list[float]]:
    """Frames at which every seed was evaluated, with mean, worst and best over the seeds."""
    tables = [{frames: value for frames, value in run.curve} for run in runs.values()]  # noqa: C416
    frames = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    values = np.array([[table[frame] for frame in frames] for table in tables]).reshape(len(tables), len(frames))
    return {
        "frames": [float(frame) for frame in frames],
        "mean": values.mean(axis=0).tolist(),
        "low": values.min(axis=0).tolist(),
        "high": values.max(axis=0).tolist(),
    }


def all_curves(results: Results) -> dict[str, dict[str, dict[str, list[float]]]]:
    return {game: {method: curve_of(runs) for method, runs in methods.items()} for game, methods in results.items()}


def draw_curves(results: Results, random: Mapping[str, float], settings: Settings, paths: list[Path]) -> None:
    """One picture, in each of the formats that the paths' endings name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    games = [game for game in settings.games if game in results]
    figure = Figure(figsize=(5.2 * len(games), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(1, len(games), squeeze=False)[0]
    for axis, game in zip(axes, games, strict=True):
        for method, runs in results[game].items():
            curve, colour = curve_of(runs), COLOURS[method]
            axis.plot(curve["frames"], curve["mean"], color=colour, label=method, marker="o", markersize=3)
            axis.fill_between(curve["frames"], curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0)
        axis.axhline(random[game], color="#777777", linestyle=":", linewidth=1, label="random player")
        axis.set_title(game)
        axis.set_xlabel("frames of all agents")
        axis.set_xlim(left=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("return of greedy episodes")
    axes[0].legend(frameon=False, fontsize=8)
    for path in paths:
        figure.savefig(path, dpi=140, metadata={"Date": None} if path.suffix == ".svg" else None)

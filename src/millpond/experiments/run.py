"""Run an experiment in a folder, and write its results; the same command resumes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from millpond.config import load
from millpond.durable import replace_file, replace_json
from millpond.errors import MillpondError
from millpond.experiments.analysis import Answer, analyse, show
from millpond.experiments.jobs import run_jobs
from millpond.experiments.mixture_vs_single import ExperimentSettings, all_jobs, check_settings
from millpond.experiments.results import Results, RunResult, collect_results, random_scores
from millpond.trainers.common.session import require_machine

MAY_CHANGE = {"seeds", "games", "methods", "episodes"}  # settings that an existing folder accepts
COLOURS = {
    "mixture": "#0b6e99",
    "single": "#d1495b",
    "single-resets": "#edae49",
    "no-resets": "#66a182",
    "live": "#6a4c93",
}


def run_experiment(
    folder: Path, settings: ExperimentSettings, *, at_once: int, say: Callable[[str], None] = lambda line: None
) -> Answer:
    """Run the missing runs, then write `results.json`, `table.txt`, `curves.json`, `curves.png` and `curves.svg`."""
    check_settings(settings)
    for game in settings.games:
        require_machine(load(settings.recipe, (*settings.overrides, f"env.id={game}")).recipe)
    _save_settings(folder, settings)
    run_jobs(all_jobs(settings), folder, at_once=at_once, say=say)
    return report(folder, settings)


def report(folder: Path, settings: ExperimentSettings) -> Answer:
    """Analyse the finished runs, and write all results."""
    results, random = collect_results(folder, settings), random_scores(folder, settings)
    if not results:
        raise MillpondError(f"{folder} has no finished run yet")
    answer = analyse(results, random, settings)
    replace_json(
        folder / "results.json", {"settings": settings.to_json(), **answer.to_json(), "runs": _run_summaries(results)}
    )
    replace_file(folder / "table.txt", ("\n".join(show(answer)) + "\n").encode())
    replace_json(folder / "curves.json", all_curves(results))
    draw_curves(results, random, settings, [folder / "curves.png", folder / "curves.svg"])
    return answer


def _run_summaries(results: Results) -> dict[str, Any]:
    return {
        game: {
            method: {seed: {"score": r.score, "frames": r.frames, "seconds": r.seconds} for seed, r in runs.items()}
            for method, runs in methods.items()
        }
        for game, methods in results.items()
    }


def _save_settings(folder: Path, settings: ExperimentSettings) -> None:
    """Save the settings; refuse others than those of the runs in the folder, which could not be compared."""
    folder.mkdir(parents=True, exist_ok=True)
    path, requested = folder / "experiment.json", json.loads(json.dumps(settings.to_json()))
    if path.exists():
        saved = json.loads(path.read_text())
        changed = [key for key in requested if key not in MAY_CHANGE and saved.get(key) != requested[key]]
        if changed:
            before = ", ".join(f"{key}={saved.get(key)}" for key in changed)
            now = ", ".join(f"{key}={requested[key]}" for key in changed)
            raise MillpondError(
                f"{folder} has runs with {before}, which cannot be compared with {now}; use another --folder, or the same "
                f"settings"
            )
    replace_json(path, requested)


def mean_curve(runs: Mapping[int, RunResult]) -> dict[str, list[float]]:
    """Mean, minimum and maximum over the seeds, at the frames at which every seed was evaluated."""
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
    return {game: {method: mean_curve(runs) for method, runs in methods.items()} for game, methods in results.items()}


def draw_curves(results: Results, random: Mapping[str, float], settings: ExperimentSettings, paths: list[Path]) -> None:
    """Draw one panel per game and one line per method, in each of the formats of `paths`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    games = [game for game in settings.games if game in results]
    figure = Figure(figsize=(5.2 * len(games), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(1, len(games), squeeze=False)[0]
    for axis, game in zip(axes, games, strict=True):
        for method, runs in results[game].items():
            curve, colour = mean_curve(runs), COLOURS[method]
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

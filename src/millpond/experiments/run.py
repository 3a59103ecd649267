"""Run an experiment in a folder, one process per training, and write its results; the same command resumes it.

Finished trainings are skipped and interrupted ones resumed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from millpond.config import load
from millpond.config.load import code_of
from millpond.durable import replace_file, replace_json
from millpond.errors import MillpondError
from millpond.experiments.mixture_vs_single import (
    ExperimentSettings,
    TrainingJob,
    all_jobs,
    check_settings,
    overrides_of_game,
)
from millpond.experiments.results import Answer, Results, RunResult, analyse, collect_results, random_scores, show
from millpond.store import read_status
from millpond.store.folder import is_run
from millpond.trainers.common.session import require_machine
from millpond.trust import require_trust

MAY_CHANGE = {"seeds", "games", "methods", "episodes"}  # settings that an existing folder accepts
COLOURS = {
    "mixture": "#0b6e99",
    "single": "#d1495b",
    "single-resets": "#edae49",
    "no-resets": "#66a182",
    "live": "#6a4c93",
}
POLL_SECONDS = 0.2
SAVE_TIMEOUT_SECONDS = 120.0
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


def run_experiment(
    folder: Path,
    settings: ExperimentSettings,
    *,
    at_once: int,
    say: Callable[[str], None] = lambda line: None,
    trust: bool | None = None,
) -> Answer:
    """Run the missing runs, then write `results.json`, `table.txt`, `curves.json`, `curves.png` and `curves.svg`.

    `trust` is for code that the recipe file, or a run in the folder, names: see `millpond.trust.require_trust`.
    """
    check_settings(settings)
    _require_trust(settings, trust)
    for game in settings.games:
        require_machine(load(settings.recipe, overrides_of_game(settings, game)).recipe)
    _save_settings(folder, settings)
    run_jobs(all_jobs(settings), folder, at_once=at_once, say=say, trust_recipe=True, trust_runs=bool(trust))
    return _write_results(folder, settings, trust)


def report(folder: Path, settings: ExperimentSettings, *, trust: bool | None = None) -> Answer:
    """Analyse the finished runs, and write all results. Runs that were not evaluated yet are played."""
    _require_trust(settings, trust)
    return _write_results(folder, settings, trust)


def _require_trust(settings: ExperimentSettings, trust: bool | None) -> None:
    """Raise unless the code that the recipe names for any game is trusted; each piece is asked about once."""
    code = [one for game in settings.games for one in code_of(settings.recipe, overrides_of_game(settings, game))]
    require_trust([one for index, one in enumerate(code) if one not in code[:index]], trust)


def _write_results(folder: Path, settings: ExperimentSettings, trust: bool | None) -> Answer:
    results, random = collect_results(folder, settings, trust=trust), random_scores(folder, settings)
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


class JobFailed(MillpondError):
    """Some trainings ended with an error."""

    exit_code = 1


def run_jobs(
    jobs: Sequence[TrainingJob],
    folder: Path,
    *,
    at_once: int,
    say: Callable[[str], None] = lambda line: None,
    trust_recipe: bool = False,
    trust_runs: bool = False,
) -> None:
    """Run each job to its end, in `folder`/runs/NAME, `at_once` in parallel; earlier runs are skipped or resumed.

    If this process is interrupted or dies, the trainings save and stop. `trust_recipe` and `trust_runs`: code that the
    recipe, or a run that is resumed, names is trusted; the trainings have no terminal to ask on.
    """
    waiting = [job for job in jobs if not is_finished(folder, job)]
    if len(waiting) < len(jobs):
        say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are already finished")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job.name] = _start(job, folder, trust_recipe=trust_recipe, trust_runs=trust_runs)
                say(f"{job.name} started")
            time.sleep(POLL_SECONDS)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    done = process.returncode == 0 and read_status(folder / "runs" / name).state == "finished"
                    failed += [] if done else [name]
                    say(f"{name} {'finished' if done else 'FAILED'}; {len(waiting) + len(running)} left")
    finally:
        _stop(list(running.values()))
    if failed:
        logs = ", ".join(str(folder / "logs" / f"{name}.log") for name in failed)
        raise JobFailed(
            f"{len(failed)} of {len(jobs)} runs failed; see {logs}. Run the same command again to resume them"
        )


def is_finished(folder: Path, job: TrainingJob) -> bool:
    path = folder / "runs" / job.name
    return is_run(path) and read_status(path).state == "finished"


def _start(job: TrainingJob, folder: Path, *, trust_recipe: bool, trust_runs: bool) -> subprocess.Popen[bytes]:
    """Start or resume a run, with one thread: the runs themselves are parallel."""
    path = folder / "runs" / job.name
    resumes = is_run(path)
    arguments = ["train", "--resume", str(path)]
    if not resumes:
        arguments = ["train", job.recipe, *job.overrides, f"run_dir={folder / 'runs'}", "--run", job.name]
    if trust_runs if resumes else trust_recipe:
        arguments.append("--trust")
    with (folder / "logs" / f"{job.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "millpond", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _die_with_parent() -> None:
    """Make the kernel send SIGTERM, which saves and stops a run, when the parent process dies."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let the processes save and stop; kill those that take too long."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(SAVE_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

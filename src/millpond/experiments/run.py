"""An experiment from beginning to end, in a folder of its own; the same command goes on with what is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millpond.config import load
from millpond.durable import replace_file, replace_json
from millpond.errors import MillpondError
from millpond.experiments.analysis import Answer, analyse, show
from millpond.experiments.curves import all_curves, draw_curves
from millpond.experiments.jobs import run_jobs
from millpond.experiments.mixture_vs_single import Settings, all_jobs, check
from millpond.experiments.results import collect_results, random_scores
from millpond.trainers.common.session import require_machine

MAY_GROW = {"seeds", "games", "methods", "episodes"}


def run_experiment(
    folder: Path, settings: Settings, *, at_once: int, say: Callable[[str], None] = lambda line: None
) -> Answer:
    """Run what is missing, then write `results.json`, `table.txt`, `curves.json`, `curves.png` and `curves.svg`."""
    check(settings)
    for game in settings.games:
        require_machine(load(settings.recipe, (*settings.overrides, f"env.id={game}")).recipe)
    _keep_settings(folder, settings)
    run_jobs(all_jobs(settings), folder, at_once=at_once, say=say)
    return report(folder, settings)


def report(folder: Path, settings: Settings) -> Answer:
    """Analyse the runs that are finished, and write everything down."""
    results, random = collect_results(folder, settings), random_scores(folder, settings)
    if not results:
        raise MillpondError(f"{folder} has no finished run yet")
    answer = analyse(results, random, settings)
    replace_json(folder / "results.json", {"settings": settings.to_json(), **answer.to_json(), "runs": _runs(results)})
    replace_file(folder / "table.txt", ("\n".join(show(answer)) + "\n").encode())
    replace_json(folder / "curves.json", all_curves(results))
    draw_curves(results, random, settings, [folder / "curves.png", folder / "curves.svg"])
    return answer


def _runs(results: Any) -> dict[str, Any]:
    return {
        game: {
            method: {seed: {"score": r.score, "frames": r.frames, "seconds": r.seconds} for seed, r in runs.items()}
            for method, runs in methods.items()
        }
        for game, methods in results.items()
    }


def _keep_settings(folder: Path, settings: Settings) -> None:
    """Runs of other settings cannot be compared with those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    path, asked = folder / "experiment.json", json.loads(json.dumps(settings.to_json()))
    if path.exists():
        kept = json.loads(path.read_text())
        other = [key for key in asked if key not in MAY_GROW and kept.get(key) != asked[key]]
        if other:
            was = ", ".join(f"{key}={kept.get(key)}" for key in other)
            raise MillpondError(
                f"{folder} holds runs with {was}, and this asks for {', '.join(f'{k}={asked[k]}' for k in other)}; "
                f"take another --folder, or the same settings"
            )
    replace_json(path, asked)

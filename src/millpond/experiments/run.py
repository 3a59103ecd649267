"""Run an experiment in a folder, one process per training, and write its results; the same command resumes it.

Finished trainings are skipped and interrupted ones resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millpond.config.load import code_of
from millpond.durable import replace_file, replace_json
from millpond.errors import MillpondError
from millpond.experiments.analysis import Answer, analyse, show
from millpond.experiments.file import Experiment
from millpond.experiments.jobs import is_finished, run_jobs
from millpond.experiments.page import write_page
from millpond.experiments.pictures import all_curves
from millpond.experiments.results import Results, collect_results, random_scores, read_result
from millpond.trainers.common.session import load_to_run, require_machine
from millpond.trust import require_trust

SETTINGS = "experiment.json"


def run_experiment(
    folder: Path,
    experiment: Experiment,
    *,
    at_once: int,
    say: Callable[[str], None] = lambda line: None,
    trust: bool | None = None,
) -> Answer:
    """Run the missing runs, then write the results and their page.

    `trust` is for code that the recipe file, or a run in the folder, names: see `millpond.trust.require_trust`.
    """
    experiment.check()
    _require_trust(experiment, trust)
    for method in experiment.methods:
        for world in experiment.worlds:
            recipe = experiment.recipe_of(method)
            require_machine(load_to_run(recipe, experiment.run_overrides(world, method, 1), trust=True).recipe)
    _save_settings(folder, experiment)
    run_jobs(
        experiment.jobs(),
        folder,
        at_once=at_once,
        say=say,
        trust_recipe=True,
        trust_runs=bool(trust),
        is_done=lambda job: is_done(folder, experiment, job.name),
    )
    return _write_results(folder, experiment, trust)


def is_done(folder: Path, experiment: Experiment, run: str) -> bool:
    """Return True for a run that is finished, or whose result is there without the run."""
    return is_finished(folder, run) or read_result(folder, run, experiment.file.episodes) is not None


def report(folder: Path, experiment: Experiment, *, trust: bool | None = None) -> Answer:
    """Analyse the finished runs, and write all results. Runs that were not evaluated yet are played."""
    _require_trust(experiment, trust)
    return _write_results(folder, experiment, trust)


def _require_trust(experiment: Experiment, trust: bool | None) -> None:
    """Raise unless the code that the recipes name for any world is trusted; each piece is asked about once."""
    code = [
        one
        for world in experiment.worlds
        for method in experiment.methods
        for one in code_of(experiment.recipe_of(method), experiment.run_overrides(world, method, 1))
    ]
    require_trust([one for index, one in enumerate(code) if one not in code[:index]], trust)


def _write_results(folder: Path, experiment: Experiment, trust: bool | None) -> Answer:
    results, random = collect_results(folder, experiment, trust=trust), random_scores(folder, experiment)
    if not results:
        raise MillpondError(f"{folder} has no finished run yet")
    answer = analyse(results, random, experiment)
    settings = experiment.to_json()
    replace_json(
        folder / "results.json",
        {"settings": settings, **answer.to_json(), "runs": _run_summaries(results)},
    )
    replace_file(folder / "table.txt", ("\n".join(show(answer)) + "\n").encode())
    replace_json(folder / "curves.json", all_curves(results))
    write_page(folder, experiment, answer, results)
    return answer


def _run_summaries(results: Results) -> dict[str, Any]:
    return {
        world: {
            method: {seed: {"score": r.score, "frames": r.frames, "seconds": r.seconds} for seed, r in runs.items()}
            for method, runs in methods.items()
        }
        for world, methods in results.items()
    }


def _save_settings(folder: Path, experiment: Experiment) -> None:
    """Save the settings; refuse others than those of the runs in the folder, which could not be compared.

    Seeds, worlds, methods and episodes may be added.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, requested = folder / SETTINGS, json.loads(json.dumps(experiment.to_json()))
    saved = _read_settings(path)
    if saved is not None:
        pairs: list[tuple[str, Any, Any]] = [
            (key, saved.get(key), requested[key]) for key in ("recipe", "mixture_budget") if key in saved
        ]
        for kind in ("methods", "worlds"):
            shared = saved.get(kind, {}).keys() & requested[kind].keys()
            pairs += [(f"{kind}.{name}", saved[kind][name], requested[kind][name]) for name in sorted(shared)]
        changed = [(key, before, now) for key, before, now in pairs if before != now]
        if changed:
            before = ", ".join(f"{key}={old}" for key, old, _ in changed)
            now = ", ".join(f"{key}={new}" for key, _, new in changed)
            raise MillpondError(
                f"{folder} has runs with {before}, which cannot be compared with {now}; use another --folder, or the same "
                f"settings"
            )
        for kind in ("methods", "worlds"):
            requested[kind] = {**saved.get(kind, {}), **requested[kind]}
    replace_json(path, requested)


def _read_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings of a folder; those of Millpond 0.2, which knew one experiment, in today's form."""
    if not path.exists():
        return None
    saved: dict[str, Any] = json.loads(path.read_text())
    if "format" in saved:
        return saved
    budget = {"frames": saved["frames"], "rounds": saved["rounds"], "replay_ratio": 1.0}
    return {"recipe": saved["recipe"], "mixture_budget": budget}

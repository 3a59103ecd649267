"""What `train`, `eval` and `runs` do."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from millpond.cli.output import print_json, print_text
from millpond.config import Loaded, load
from millpond.planner import plan_loaded
from millpond.planner.lines import figures, sentence
from millpond.planner.text import show_alerts
from millpond.store import Run, list_runs, show_runs


def train(
    recipe: str,
    overrides: list[str],
    *,
    preset: str | None,
    run_name: str | None,
    overwrite: bool,
    weights_from: str | None,
    resume: str | None,
) -> None:
    """Train a recipe, or go on with a run."""
    from millpond.distributed import join
    from millpond.trainers.common.envs import env_agents
    from millpond.trainers.common.kinds import make_trainer, require_trainer
    from millpond.trainers.common.session import open_run, resume_run, run_of_all, setting_up, start_run

    recorded = None
    with join() as ranks:

        def begin() -> tuple[Loaded, Run]:
            nonlocal recorded
            if resume is not None:
                return resume_run(resume, overrides, ranks=ranks.count)
            loaded = load(recipe, overrides, preset, ask_env=env_agents)
            recorded = require_trainer(loaded)
            if weights_from is not None:
                open_run(weights_from, loaded.recipe.run_dir)  # refused, if it is, before there is a folder
            return loaded, start_run(loaded, run_name, overwrite=overwrite, ranks=ranks.count, recorded=recorded)

        loaded, run = run_of_all(ranks, begin)
        say = print_text if ranks.first else _say_nothing
        with setting_up(run, ranks):
            source = Run.open(Path(loaded.recipe.run_dir), weights_from) if weights_from and ranks.first else None
            dataset = recorded.dataset if recorded is not None else None
            notes = [line for note in loaded.notes for line in sentence(f"{note}.", 2, "- ")]
            alerts = show_alerts(plan_loaded(loaded, dataset=dataset).alerts)
            say("\n".join([*alerts, *notes, f"run {run.folder}"]))
            trainer = make_trainer(loaded, run, weights_from=source, ranks=ranks, recorded=recorded)
        try:
            say("\n".join(trainer.opening()))
            trainer.train()
            summary = trainer.summary() if ranks.first else []
            if summary:
                say("\n" + "\n".join(summary))
            elif run.report_path.is_file():  # stopped before its end
                say(f"Report: {run.report_path}")
        finally:
            trainer.close()


def _say_nothing(text: str) -> None:
    """What ranks other than the first print."""


def evaluate(name: str, episodes: int, render: Path | None, seed: int | None, best: bool, as_json: bool) -> None:
    """Episodes of a run's policy on seeds of their own."""
    from millpond.trainers.common.play import evaluate_run

    evaluation, policy = evaluate_run(name, episodes=episodes, seed=seed, best=best, render=render)
    if as_json:
        print_json({"run": name, "checkpoint_updates": policy.updates, **evaluation.to_json()})
        return
    low, high = evaluation.interval()
    rows: list[tuple[str, str, str]] = [
        ("episodes", str(len(evaluation.lengths)), policy.description),
        ("return", f"{evaluation.mean:.4f}", f"95% interval {low:.4f} to {high:.4f}"),
        ("length", f"{sum(evaluation.lengths) / len(evaluation.lengths):.1f}", "env steps, on average"),
    ]
    agents = [sum(agent) / len(agent) for agent in zip(*evaluation.returns, strict=True)]
    if len(agents) > 1:
        rows += [(f"return of agent {index}", f"{mean:.4f}", "") for index, mean in enumerate(agents)]
    rows += [(f"env/{key}", f"{value:.4f}", "") for key, value in _infos(evaluation).items()]
    print_text("\n".join([name, *figures(rows), *([f"  picture: {render}"] if render else [])]))


def _infos(evaluation: Any) -> dict[str, float]:
    prefix = "eval/env/"
    return {key.removeprefix(prefix): value for key, value in evaluation.metrics().items() if key.startswith(prefix)}


def write_report(name: str, run_dir: str, pictures: Path | None, as_json: bool) -> None:
    """The page of a run, whatever its state."""
    from millpond.cli.output import watched
    from millpond.report import read_facts
    from millpond.report.page import write_pictures
    from millpond.trainers.common.reporting import find_reportable, report_run

    folder = find_reportable(Path(run_dir), name)
    with watched("writing the report of") as watch:
        watch(folder.name)
        path = report_run(folder)
        drawn = [] if pictures is None else write_pictures(read_facts(folder), pictures)
    if as_json:
        print_json({"run": folder.name, "report": str(path), "bytes": path.stat().st_size, "pictures": drawn})
    else:
        print_text("\n".join([str(path), *(f"  {picture}" for picture in drawn)]))


def print_runs(run_dir: str, as_json: bool) -> None:
    """Every run with its return, steps, speed and state."""
    rows = list_runs(Path(run_dir))
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_text(show_runs(rows))

"""The bench of one recipe: limits of the machine, real iterations (rounds, cycles), every stage alone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from millpond.bench.limits import measure_limits
from millpond.bench.result import Bench
from millpond.bench.timing import Effort, Progress
from millpond.config import load
from millpond.config.load import parse_override
from millpond.durable import replace_json
from millpond.kinds import KINDS
from millpond.planner.estimate import (
    Measured,
    measured_path,
    read_all_measured,
    settings_of,
    this_machine,
    with_measured,
)
from millpond.processor import can_use_bfloat16
from millpond.store.host_facts import host_facts
from millpond.trainers.common.envs import env_agents
from millpond.trainers.common.session import require_machine

TIMED_RUN = {  # a run without evaluations, checkpoints and TensorBoard
    "trainer.max_seconds": None,
    "eval.interval": None,
    "eval.episodes": 1,
    "checkpoint.interval": None,
    "log.tensorboard": False,
    "log.wandb": "off",
}


def run_bench(
    recipe: str,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    quick: bool = False,
    only_iteration: bool = False,
    iterations: int | None = None,
    progress: Progress = lambda description: None,
) -> Bench:
    """Measure a recipe at its own sizes, or with `quick` at those of its preset `debug`, in seconds.

    `only_iteration` skips limits and single stages. Everything is written to a temporary folder.
    """
    settings = overrides if isinstance(overrides, Mapping) else dict(parse_override(text) for text in overrides)
    preset, effort = ("debug", Effort.quick()) if quick else (None, Effort())
    effort = effort if iterations is None else replace(effort, iterations=iterations)
    can_use_bfloat16()  # before torch computes anything
    requested = load(recipe, settings, preset, ask_env=env_agents)
    require_machine(requested.recipe)
    kind = KINDS[requested.recipe.kind].bench.load()
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as name:
        folder = Path(name)
        limits = None
        if not only_iteration:
            progress("the machine's limits")
            limits = measure_limits(effort, folder)
        shorter = {**TIMED_RUN, **kind.settings(requested, effort), "run_dir": name}
        timed = load(recipe, {**settings, **shorter}, preset, requested.recipe.env.num_agents)
        measurement = kind.measure(requested, timed, limits, effort, folder, progress)
    facts = host_facts()
    return Bench(
        recipe=recipe,
        kind=requested.recipe.kind,
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        machine=f"{facts['processor']}, {facts['cores_allowed']} cores",
        versions=facts["versions"],
        quick=quick,
        threads=torch.get_num_threads(),
        limits=limits,
        **{name: getattr(measurement, name) for name in ("precision", "vector", "sizes", "stages", "iteration")},
    )


def store_for_plans(bench: Bench, overrides: Iterable[str]) -> Path:
    """Store the speeds from which plans estimate times, and return the path."""
    sizes, seconds = KINDS[bench.kind].bench.load().for_plans(bench)
    measured = Measured(
        machine=this_machine(),
        date=bench.date,
        recipe=bench.recipe,
        settings=settings_of(load(bench.recipe, list(overrides), ask_env=env_agents).recipe),
        sizes=sizes,
        seconds=seconds,
    )
    path = measured_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, with_measured(measured, read_all_measured()))
    return path

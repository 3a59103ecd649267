"""A whole bench of one recipe: limits, real iterations (rounds, cycles), every stage alone."""

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
from millpond.bench.timing import Effort, Watch
from millpond.config import load
from millpond.config.load import parse_override
from millpond.durable import replace_json
from millpond.kinds import KINDS
from millpond.planner.estimate import Measured, kept_path, read_kept, settings_of, this_machine, with_measured
from millpond.processor import can_use_bfloat16
from millpond.store.host_facts import host_facts
from millpond.trainers.common.envs import env_agents
from millpond.trainers.common.session import require_machine

ONLY_TIMED = {  # a run without evaluations, checkpoints and TensorBoard
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
    watch: Watch = lambda what: None,
) -> Bench:
    """Measure a recipe at its own sizes; `quick` at those of its preset `debug`, in seconds.

    `only_iteration` leaves out limits and single stages. Everything is written to a folder that is removed again.
    """
    given = overrides if isinstance(overrides, Mapping) else dict(parse_override(text) for text in overrides)
    preset, effort = ("debug", Effort.quick()) if quick else (None, Effort())
    effort = effort if iterations is None else replace(effort, iterations=iterations)
    can_use_bfloat16()  # before torch computes anything
    wanted = load(recipe, given, preset, ask_env=env_agents)
    require_machine(wanted.recipe)
    kind = KINDS[wanted.recipe.kind].bench.load()
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as name:
        folder = Path(name)
        limits = None
        if not only_iteration:
            watch("the machine's limits")
            limits = measure_limits(effort, folder)
        settings = {**ONLY_TIMED, **kind.settings(wanted, effort), "run_dir": name}
        timed = load(recipe, {**given, **settings}, preset, wanted.recipe.env.num_agents)
        found = kind.measure(wanted, timed, limits, effort, folder, watch)
    facts = host_facts()
    return Bench(
        recipe=recipe,
        kind=wanted.recipe.kind,
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        machine=f"{facts['processor']}, {facts['cores_allowed']} cores",
        versions=facts["versions"],
        quick=quick,
        threads=torch.get_num_threads(),
        limits=limits,
        **{name: getattr(found, name) for name in ("precision", "vector", "sizes", "stages", "iteration")},
    )


def keep(bench: Bench, overrides: Iterable[str]) -> Path:
    """Keep what plans estimate times with; returns where."""
    sizes, seconds = KINDS[bench.kind].bench.load().for_plans(bench)
    measured = Measured(
        machine=this_machine(),
        date=bench.date,
        recipe=bench.recipe,
        settings=settings_of(load(bench.recipe, list(overrides), ask_env=env_agents).recipe),
        sizes=sizes,
        seconds=seconds,
    )
    path = kept_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, with_measured(measured, read_kept()))
    return path

"""A whole bench of one recipe: limits, real iterations, every stage alone."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from millpond.bench.lake import measure_lake
from millpond.bench.limits import measure_limits
from millpond.bench.result import Bench
from millpond.bench.stages import Subject, measure_stages
from millpond.bench.timing import Effort
from millpond.bench.whole import run_iterations
from millpond.config import Loaded, PPORecipe, load
from millpond.config.load import parse_override
from millpond.durable import replace_json
from millpond.errors import MillpondError
from millpond.planner import PPOPlan, plan_loaded
from millpond.planner.measured import Measured, kept_path, read_kept, settings_of, this_machine, with_measured
from millpond.store.host import host_facts
from millpond.trainers.ppo import PPOTrainer
from millpond.trainers.session import start_run

STEPS_MEASURED = 1_500_000  # agent steps in all real iterations, about
FEWEST, MOST = 3, 10  # real iterations
Watch = Callable[[str], object]


def run_bench(
    recipe: str,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    quick: bool = False,
    only_iteration: bool = False,
    iterations: int | None = None,
    watch: Watch = lambda what: None,
) -> Bench:
    """Measure a recipe of kind ppo at its own sizes; `quick` at those of its preset `debug`, in seconds.

    `only_iteration` leaves out limits and single stages. Everything is written to a folder that is removed again.
    """
    given = overrides if isinstance(overrides, Mapping) else dict(parse_override(text) for text in overrides)
    preset, effort = ("debug", Effort.quick()) if quick else (None, Effort())
    effort = effort if iterations is None else replace(effort, iterations=iterations)
    loaded = load(recipe, given, preset)
    if not isinstance(loaded.recipe, PPORecipe):
        raise MillpondError(
            f"{recipe} is of kind {loaded.recipe.kind}; `millpond bench` measures recipes of kind ppo, such as grid or metta"
        )
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as name:
        folder = Path(name)
        limits = None
        if not only_iteration:
            watch("the machine's limits")
            limits = measure_limits(effort, folder)
        loaded = load(recipe, {**given, **_for_measuring(loaded, effort, folder)}, preset)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer = PPOTrainer(loaded, start_run(loaded, "bench"))
        try:
            iteration, network, ready = run_iterations(trainer, effort, watch)
            stages = []
            if limits is not None:
                subject = Subject(trainer, network, ready, limits, effort, iteration.phases)
                watch("the lake")
                lake = measure_lake(trainer, limits, effort, folder)
                stages = [*measure_stages(subject, watch), *lake]
        finally:
            trainer.close()
    facts = host_facts()
    return Bench(
        recipe=recipe,
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        machine=f"{facts['processor']}, {facts['cores_allowed']} cores",
        versions=facts["versions"],
        quick=quick,
        threads=torch.get_num_threads(),
        precision=trainer.recipe.trainer.precision,
        vector=f"{trainer.vector.backend} x {trainer.vector.num_workers}",
        sizes=_sizes(trainer.share),
        limits=limits,
        stages=tuple(stages),
        iteration=iteration,
    )


def keep(bench: Bench, overrides: Iterable[str]) -> Path:
    """Keep what plans estimate times with; returns where."""
    recipe = load(bench.recipe, list(overrides)).recipe
    assert isinstance(recipe, PPORecipe)
    phases = bench.iteration.phases
    measured = Measured(
        machine=this_machine(),
        date=bench.date,
        recipe=bench.recipe,
        settings=settings_of(recipe),
        num_envs=bench.sizes["num_envs"],
        minibatch_size=bench.sizes["minibatch_size"],
        agent_steps=bench.sizes["agent_steps"],
        update_epochs=bench.sizes["update_epochs"],
        collect_seconds=phases["collect"] + phases["advantage"],
        train_seconds=phases["train"],
        other_seconds=phases["other"],
    )
    path = kept_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, with_measured(measured, read_kept()))
    return path


def _for_measuring(loaded: Loaded, effort: Effort, folder: Path) -> dict[str, Any]:
    """Settings of a run that is only timed: as long as needed, without evaluations, checkpoints and TensorBoard."""
    plan = plan_loaded(loaded).plan
    assert isinstance(plan, PPOPlan)
    count = effort.iterations or min(MOST, max(FEWEST, STEPS_MEASURED // plan.agent_steps))
    return {
        "trainer.total_iterations": count + 1,  # the first one warms up
        "trainer.total_timesteps": (count + 1) * plan.batch_size,
        "trainer.max_seconds": None,
        "eval.interval": None,
        "eval.episodes": 1,
        "checkpoint.interval": None,
        "log.tensorboard": False,
        "log.wandb": "off",
        "run_dir": str(folder),
    }


def _sizes(plan: PPOPlan) -> dict[str, int]:
    names = ("num_envs", "num_agents", "agent_steps", "env_steps", "segments", "bptt_horizon", "minibatch_size")
    return {name: getattr(plan, name) for name in (*names, "gradient_updates", "update_epochs")}

"""A bench of PPO: real iterations beside their bare arithmetic, then every stage of one alone."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from millpond.bench.lake import measure_lake, observations_of
from millpond.bench.limits import Limits
from millpond.bench.result import Bench, Found
from millpond.bench.stages import Subject, measure_stages
from millpond.bench.timing import Effort, Watch
from millpond.bench.whole import run_iterations
from millpond.config import Loaded
from millpond.planner import PPOPlan, plan_loaded
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.trainer import PPOTrainer

STEPS_MEASURED = 1_500_000  # agent steps in all real iterations, about
FEWEST, MOST = 3, 10  # real iterations
SIZES = (
    "num_envs", "num_agents", "agent_steps", "env_steps", "segments", "bptt_horizon", "minibatch_size",
    "gradient_updates", "update_epochs",
)  # fmt: skip


def ppo_settings(loaded: Loaded, effort: Effort) -> dict[str, Any]:
    """So many iterations, of which the first warms up."""
    plan = plan_loaded(loaded).plan
    assert isinstance(plan, PPOPlan)
    count = effort.iterations or min(MOST, max(FEWEST, STEPS_MEASURED // plan.agent_steps))
    return {"trainer.total_iterations": count + 1, "trainer.total_timesteps": (count + 1) * plan.batch_size}


def measure_ppo(
    wanted: Loaded, loaded: Loaded, limits: Limits | None, effort: Effort, folder: Path, watch: Watch
) -> Found:
    """`loaded` is what is run, and has the sizes of what is `wanted`."""
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = PPOTrainer(loaded, start_run(loaded, "bench"))
    try:
        iteration, network, ready = run_iterations(trainer, effort, watch)
        stages = []
        if limits is not None:
            subject = Subject(trainer, network, ready, limits, effort, iteration.phases)
            watch("the lake")
            lake = measure_lake(trainer.vector.spec, observations_of(trainer), limits, effort, folder)
            stages = [*measure_stages(subject, watch), *lake]
    finally:
        trainer.close()
    return Found(
        iteration,
        tuple(stages),
        precision=trainer.recipe.trainer.precision,
        vector=f"{trainer.vector.backend} x {trainer.vector.num_workers}",
        sizes={name: getattr(trainer.share, name) for name in SIZES},
    )


def kept_of_ppo(bench: Bench) -> tuple[dict[str, float], dict[str, float]]:
    """Sizes and seconds that plans estimate from."""
    phases, sizes = bench.iteration.phases, bench.sizes
    return (
        {name: sizes[name] for name in ("num_envs", "minibatch_size", "agent_steps", "update_epochs")},
        {
            "collect": phases["collect"] + phases["advantage"],
            "train": phases["train"],
            "other": phases["other"],
        },
    )

"""How long a run will take, from what was measured on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millpond.config.recipe import PPORecipe
from millpond.planner.lines import figures, sentence
from millpond.planner.measured import Measured, settings_of
from millpond.planner.ppo import PPOPlan


@dataclass(frozen=True)
class Estimate:
    """Seconds, and the figures that they are from. Evaluations and checkpoints come on top."""

    iteration_seconds: float
    collect_seconds: float
    train_seconds: float
    seconds: float  # of the run
    measured: Measured


def estimate_time(recipe: PPORecipe, plan: PPOPlan, measured: Iterable[Measured]) -> Estimate | None:
    """From the newest figures of the same world, network, precision and workers; None where there are none.

    Collecting grows with agent steps, training with agent steps times epochs.
    """
    wanted = settings_of(recipe)
    found = next((one for one in measured if one.settings == wanted), None)
    if found is None:
        return None
    size = plan.agent_steps / found.agent_steps
    collect = found.collect_seconds * size
    train = found.train_seconds * size * plan.update_epochs / found.update_epochs
    iteration = collect + train + found.other_seconds
    return Estimate(iteration, collect, train, iteration * plan.iterations, found)


def show_estimate(plan: PPOPlan, estimate: Estimate) -> list[str]:
    """The section of the plan."""
    found = estimate.measured
    parts = f"collect {duration(estimate.collect_seconds)}, train {duration(estimate.train_seconds)}"
    rows = [
        ("an iteration", duration(estimate.iteration_seconds), parts),
        ("the run", duration(estimate.seconds), f"{plan.iterations:,} iterations, without evaluations and checkpoints"),
    ]
    source = f"From the bench of {found.date[:10]} on this machine"
    if (found.num_envs, found.agent_steps, found.minibatch_size) != (
        plan.num_envs,
        plan.agent_steps,
        plan.minibatch_size,
    ):
        source += (
            f", which had {found.num_envs:,} envs, {found.agent_steps:,} agent steps an iteration and minibatches of "
            f"{found.minibatch_size:,}: scaled by agent steps"
        )
    return ["", "Time, estimated", *figures(rows), *sentence(f"{source}.")]


def duration(seconds: float) -> str:
    """A time with three digits or so: 85 ms, 12.3 s, 4.2 min, 7.5 h, 2.7 days."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"

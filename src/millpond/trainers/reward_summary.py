"""What a person wants to know when reward learning is over."""

from __future__ import annotations

from millpond.plurals import plural
from millpond.record import Counters
from millpond.store import Run
from millpond.trainers.evaluate import Evaluation
from millpond.trainers.reward_evaluation import HeldOut


def summarise_reward(run: Run, counters: Counters, held_out: HeldOut | None, tested: Evaluation | None) -> list[str]:
    """Held-out figures beside the baselines, or the agent's return, and what to do next."""
    lines = [] if held_out is None else held_out.lines()
    next_steps = [f"  millpond reward score {run.name} EPISODES   # the learned reward of every step"]
    if tested is not None:
        low, high = tested.interval()
        lines.append(f"Test rollouts: return {tested.mean:.1f}, 95% interval {low:.1f} to {high:.1f}")
        next_steps.append(f"  millpond eval {run.name} --episodes 100   # the agent")
    return [
        *lines,
        "",
        f"{plural(counters.updates, 'update')} in {counters.seconds:.0f} seconds",
        f"Run folder: {run.folder}",
        *next_steps,
        f"  millpond train --resume {run.name} reward.epochs=...   # longer",
    ]

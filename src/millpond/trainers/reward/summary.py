"""What a person wants to know when reward learning is over."""

from __future__ import annotations

from millpond.plurals import plural
from millpond.record import Counters, show_seconds
from millpond.trainers.common.evaluate import Evaluation
from millpond.trainers.reward.evaluation import HeldOut


def summarise_reward(counters: Counters, held_out: HeldOut | None, tested: Evaluation | None) -> list[str]:
    """Held-out figures beside the baselines, or the agent's return, and the time."""
    lines = [] if held_out is None else held_out.lines()
    if tested is not None:
        low, high = tested.interval()
        lines.append(f"Test rollouts: return {tested.mean:.1f}, 95% interval {low:.1f} to {high:.1f}")
    return [*lines, "", f"{plural(counters.updates, 'update')} in {show_seconds(counters.seconds)}"]

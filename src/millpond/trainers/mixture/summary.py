"""What a person wants to know when a mixture is over."""

from __future__ import annotations

from collections.abc import Mapping

from millpond.planner import MixturePlan
from millpond.planner.lines import figures, number
from millpond.plurals import plural
from millpond.record import Counters
from millpond.trainers.common.evaluate import Evaluation


def summarise_mixture(
    plan: MixturePlan, counters: Counters, shares: Mapping[str, float], evaluation: Evaluation | None
) -> list[str]:
    """Return, frames, and where the time went."""
    lines: list[str] = []
    if evaluation is not None:
        low, high = evaluation.interval()
        who = "the agent" if plan.mode == "single" else "the BigAgent"
        lines += [
            f"Return, mean of {plural(len(evaluation.lengths), 'greedy episode')} on seeds of their own",
            *figures([(who, f"{evaluation.mean:.3f}", f"95% interval {low:.3f} to {high:.3f}")]),
            "",
        ]
    rate = counters.frames / max(counters.seconds, 1e-9)
    spent = [(name, f"{share:.0%}", "") for name, share in shares.items() if share >= 0.005]
    lines += [
        f"{number(counters.frames)} frames in {plural(plan.rounds, 'round')}, {plural(counters.updates, 'update')}",
        f"Time: {number(round(rate))} frames a second",
        *figures(spent),
    ]
    return lines

"""What a person wants to know when a run is over."""

from __future__ import annotations

from collections.abc import Mapping

from millpond.config import PPORecipe
from millpond.planner.lines import figures, number
from millpond.plurals import plural
from millpond.report.evaluation import share, yardsticks
from millpond.trainers.common.evaluate import Evaluation


def summarise(
    recipe: PPORecipe, evaluation: Evaluation | None, shares: Mapping[str, float], steps_per_second: float
) -> list[str]:
    """Return against the yardsticks, speed, and where the time went."""
    lines: list[str] = []
    if evaluation is not None:
        low, high = evaluation.interval()
        rows = [("learned", f"{evaluation.mean:.3f}", f"95% interval {low:.3f} to {high:.3f}")]
        marks = yardsticks(recipe.env)
        rows += [(name, f"{value:.3f}", "scripted player") for name, value in marks.items()]
        part = share(evaluation.mean, marks)
        if part is not None:
            rows.append(("(learned - random) / (greedy - random)", f"{part:.2f}", ""))
        lines += [f"Return, mean of {plural(len(evaluation.lengths), 'episode')} on seeds of their own", *figures(rows)]
    spent = [(name, f"{of_all:.0%}", "") for name, of_all in shares.items() if of_all >= 0.005]
    return [*lines, "", f"Time: {number(round(steps_per_second))} agent steps a second", *figures(spent)]

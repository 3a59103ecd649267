"""What a person wants to know when a run is over."""

from __future__ import annotations

from collections.abc import Mapping

from millpond.config import PPORecipe
from millpond.config.worlds import world_options
from millpond.planner.lines import figures, number
from millpond.store import Run
from millpond.trainers.evaluate import Evaluation

YARDSTICK_EPISODES = 64


def yardsticks(recipe: PPORecipe) -> dict[str, float]:
    """Returns of the scripted players, where the world has some."""
    if recipe.env.id != "grid":
        return {}
    from millpond.envs.grid.players import yardstick

    _, options = world_options(recipe.env.model_copy(update={"stagger": False}))
    return {
        "random": float(yardstick("random", options, num_envs=YARDSTICK_EPISODES)["episode_return"]),
        "greedy": float(yardstick("greedy", options, num_envs=YARDSTICK_EPISODES)["episode_return"]),
    }


def summarise(
    recipe: PPORecipe, run: Run, evaluation: Evaluation | None, shares: Mapping[str, float], steps_per_second: float
) -> list[str]:
    """Return against the yardsticks, speed, where the time went, and what to do next."""
    lines: list[str] = []
    if evaluation is not None:
        low, high = evaluation.interval()
        rows = [("learned", f"{evaluation.mean:.3f}", f"95% interval {low:.3f} to {high:.3f}")]
        marks = yardsticks(recipe)
        rows += [(name, f"{value:.3f}", "scripted player") for name, value in marks.items()]
        if marks:
            share = (evaluation.mean - marks["random"]) / (marks["greedy"] - marks["random"])
            rows.append(("(learned - random) / (greedy - random)", f"{share:.2f}", ""))
        lines += [f"Return, mean of {len(evaluation.lengths)} episodes on seeds of their own", *figures(rows)]
    spent = [(name, f"{share:.0%}", "") for name, share in shares.items() if share >= 0.005]
    lines += ["", f"Time: {number(round(steps_per_second))} agent steps a second", *figures(spent)]
    name = run.name
    lines += [
        "",
        f"Run folder: {run.folder}",
        f"  millpond eval {name} --episodes 100",
        f"  millpond eval {name} --episodes 1 --render {name}.gif",
        f"  {run.resume_command} trainer.total_timesteps=...   # longer",
    ]
    return lines

"""Where a run's records go, as its config says."""

from __future__ import annotations

from millpond.config import Recipe, RewardRecipe
from millpond.loop import Loop
from millpond.record import Axis, Console, Counters, Sink, TensorBoard, Timer, WeightsAndBiases
from millpond.store import Run


def axis_of(recipe: Recipe) -> Axis:
    """Agent steps online, updates offline, unless the config names another."""
    if recipe.log.axis != "auto":
        return recipe.log.axis
    return "updates" if isinstance(recipe, RewardRecipe) and recipe.reward.reward_only else "agent_steps"


def make_sinks(recipe: Recipe, run: Run, loop: Loop, counters: Counters, timer: Timer) -> list[Sink]:
    """Console always; TensorBoard and Weights & Biases where they are asked for."""
    axis = axis_of(recipe)
    sinks: list[Sink] = [Console(loop, counters, timer, axis, seconds_between_lines=recipe.log.console_seconds)]
    if recipe.log.tensorboard:
        sinks.append(TensorBoard(run.tensorboard_path, axis))
    if recipe.log.wandb != "off":
        sinks.append(
            WeightsAndBiases(
                run.folder,
                run.name,
                run.run_id,
                axis,
                project=recipe.log.wandb_project,
                mode=recipe.log.wandb,
                config=recipe.model_dump(mode="json"),
            )
        )
    return sinks

"""Equal budgets for the methods of a mixture experiment: frames, mixture rounds, and gradient steps of the BigAgent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from millpond.config import MixtureRecipe, load
from millpond.config.recipe import ConfigSection, Count, Positive
from millpond.errors import MillpondError
from millpond.planner import MixturePlan
from millpond.planner import plan as make_plan


class MixtureBudget(ConfigSection):
    """What all methods get."""

    frames: Count = Field(1_048_576, description="Frames per run, of all its agents.")
    rounds: Count = Field(8, description="Mixture rounds, and so resets, per run.")
    replay_ratio: Positive = Field(
        1.0,
        description="Transitions that the BigAgent learns from, per transition collected, in methods without a "
        "dqn.replay_ratio of their own.",
    )


def equal_budget(
    budget: MixtureBudget, recipe: str, shared: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the overrides that give a method the budget.

    A mixture round has the same frames for every method: a single agent collects as often as all agents together, and a
    method with smaller collections collects more often.
    `shared` are the overrides of all methods in a world, `changes` those and the method's own.
    """
    base = load(recipe, shared).recipe
    if not isinstance(base, MixtureRecipe):
        raise MillpondError(f"recipe {recipe} is of kind {base.kind}; mixture_budget needs one of kind mixture")
    agents = base.mixture.agents
    planned = make_plan(recipe, shared).plan
    assert isinstance(planned, MixturePlan)
    frames_per_collection = (agents * planned.transitions_per_collection) * planned.frame_skip
    frames_per_round = frames_per_collection * max(1, budget.frames // (budget.rounds * frames_per_collection))
    envs = int(changes.get("pqn.num_envs", base.pqn.num_envs))
    steps = int(changes.get("pqn.num_steps", base.pqn.num_steps))
    own = int(changes.get("mixture.agents", agents)) * envs * steps * planned.frame_skip
    settings: dict[str, Any] = {
        "mixture.total_frames": budget.frames,
        "mixture.collections_per_round": max(1, frames_per_round // own),
    }
    if "dqn.replay_ratio" not in changes:
        settings |= {"dqn.replay_ratio": budget.replay_ratio, "mixture.big_updates": None}
    if changes.get("mixture.mode") == "live" and "mixture.own_fraction" not in changes:
        settings["mixture.own_fraction"] = 1 / (agents + 1)
    return settings

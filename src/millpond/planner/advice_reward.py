"""Advice on a reward run's plan."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.config.check import flatten, written
from millpond.config.recipe import RewardRecipe
from millpond.planner.advice import Advice, advise
from millpond.planner.lines import number
from millpond.planner.reward import RewardPlan

MOST_PASSES = 1_000


def advise_reward(recipe: RewardRecipe, plan: RewardPlan) -> list[Advice]:
    """Everything worth saying, what matters most first."""
    return [*_passes(recipe, plan), *_episode_length(recipe, plan), *_silent(recipe, plan)]


def _passes(recipe: RewardRecipe, plan: RewardPlan) -> Iterator[Advice]:
    if plan.passes_over_data is not None and plan.passes_over_data > MOST_PASSES:
        cycles = max(1, int(plan.cycles * MOST_PASSES / plan.passes_over_data / 2))
        if cycles < plan.cycles:
            yield from advise(
                "passes",
                f"every recorded step is seen {number(round(plan.passes_over_data))} times; watch the held-out figures for "
                f"overfitting, or train less",
                flatten(recipe),
                written(recipe),
                {"reward.cycles": cycles},
            )


def _episode_length(recipe: RewardRecipe, plan: RewardPlan) -> Iterator[Advice]:
    if not plan.dataset_episodes or not plan.dataset_steps:
        return
    mean = plan.dataset_steps / plan.dataset_episodes
    if plan.steps_per_episode > mean:
        yield from advise(
            "steps drawn",
            f"{plan.steps_per_episode} steps are drawn from episodes of {mean:.0f} on average; more than there are adds "
            f"nothing",
            flatten(recipe),
            written(recipe),
            {"reward.steps_per_episode": max(2, int(mean))},
        )


def _silent(recipe: RewardRecipe, plan: RewardPlan) -> Iterator[Advice]:
    if plan.lines_per_cycle == 0 and plan.batches > 1:
        yield from advise(
            "log",
            f"a cycle has {plan.batches_per_cycle:,} batches, fewer than reward.log_batches="
            f"{recipe.reward.log_batches:,}: no R_loss line within a cycle",
            flatten(recipe),
            written(recipe),
            {"reward.log_batches": max(1, plan.batches_per_cycle // 2)},
        )

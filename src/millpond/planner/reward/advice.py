"""Advice on a reward run's plan."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.config import RewardRecipe
from millpond.planner.advice import Advice, Adviser
from millpond.planner.lines import number
from millpond.planner.reward.numbers import RewardPlan, plan_reward
from millpond.plurals import plural

MOST_PASSES = 1_000


def advise_reward(recipe: RewardRecipe, plan: RewardPlan) -> list[Advice]:
    """Everything worth saying, what matters most first."""
    adviser = Adviser(recipe, lambda changed: _troubles(plan_reward(changed, plan.dataset)))
    return [*_passes(plan), *_episode_length(plan, adviser), *_silent(recipe, plan, adviser)]


def _mean_length(plan: RewardPlan) -> float | None:
    return plan.dataset_steps / plan.dataset_episodes if plan.dataset_steps and plan.dataset_episodes else None


def _troubles(plan: RewardPlan) -> set[str]:
    mean = _mean_length(plan)
    found = {
        "steps drawn": mean is not None and plan.steps_per_episode > mean,
        "log": plan.lines_per_cycle == 0 and plan.batches > 1,
    }
    return {topic for topic, there in found.items() if there}


def _passes(plan: RewardPlan) -> Iterator[Advice]:
    if plan.passes_over_data is not None and plan.passes_over_data > MOST_PASSES:
        yield Advice(
            "passes",
            f"every recorded step is seen {number(round(plan.passes_over_data))} times; watch the held-out figures, and "
            f"stop when they turn",
        )


def _episode_length(plan: RewardPlan, advise: Adviser[RewardRecipe]) -> Iterator[Advice]:
    mean = _mean_length(plan)
    if mean is not None and plan.steps_per_episode > mean:
        yield from advise(
            "steps drawn",
            f"{plan.steps_per_episode} steps are drawn from episodes of {mean:.0f} on average; more than there are adds "
            f"nothing",
            {"reward.steps_per_episode": max(2, int(mean))},
        )


def _silent(recipe: RewardRecipe, plan: RewardPlan, advise: Adviser[RewardRecipe]) -> Iterator[Advice]:
    if "log" in _troubles(plan):
        yield from advise(
            "log",
            f"a cycle has {plural(plan.batches_per_cycle, 'batch')}, fewer than reward.log_batches="
            f"{recipe.reward.log_batches:,}: no R_loss line within a cycle",
            {"reward.log_batches": max(1, plan.batches_per_cycle // 2)},
        )

"""Advice about the plan of reward learning."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.config import RewardRecipe
from millpond.formatting import number, plural
from millpond.planner.advice import Advice, Adviser
from millpond.planner.reward.numbers import RewardPlan, plan_reward

MAX_PASSES = 1_000


def advise_reward(recipe: RewardRecipe, plan: RewardPlan) -> list[Advice]:
    """Return all advice, the most important first."""
    adviser = Adviser(recipe, lambda changed: _find_problems(plan_reward(changed, plan.dataset)))
    return [*_passes(plan), *_episode_length(plan, adviser), *_log_interval(recipe, plan, adviser)]


def _mean_length(plan: RewardPlan) -> float | None:
    return plan.dataset_steps / plan.dataset_episodes if plan.dataset_steps and plan.dataset_episodes else None


def _find_problems(plan: RewardPlan) -> set[str]:
    mean = _mean_length(plan)
    problems = {
        "sampled steps": mean is not None and plan.steps_per_episode > mean,
        "log": plan.lines_per_cycle == 0 and plan.batches > 1,
    }
    return {topic for topic, present in problems.items() if present}


def _passes(plan: RewardPlan) -> Iterator[Advice]:
    if plan.passes_over_data is not None and plan.passes_over_data > MAX_PASSES:
        yield Advice(
            "passes",
            f"every recorded step is used {number(round(plan.passes_over_data))} times; watch the held-out metrics, and "
            f"stop when they get worse",
        )


def _episode_length(plan: RewardPlan, advise: Adviser[RewardRecipe]) -> Iterator[Advice]:
    mean = _mean_length(plan)
    if mean is not None and plan.steps_per_episode > mean:
        yield from advise(
            "sampled steps",
            f"{plan.steps_per_episode} steps are sampled from episodes of {mean:.0f} on average; more than an episode has "
            f"adds nothing",
            {"reward.steps_per_episode": max(2, int(mean))},
        )


def _log_interval(recipe: RewardRecipe, plan: RewardPlan, advise: Adviser[RewardRecipe]) -> Iterator[Advice]:
    if "log" in _find_problems(plan):
        yield from advise(
            "log",
            f"a cycle has {plural(plan.batches_per_cycle, 'batch')}, fewer than reward.log_batches="
            f"{recipe.reward.log_batches:,}, so no R_loss line is printed",
            {"reward.log_batches": max(1, plan.batches_per_cycle // 2)},
        )

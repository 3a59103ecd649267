"""Plans of reward learning: numbers, the recorded episodes, advice, and all of it as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millpond.config import RecipeSource, RewardRecipe, load
from millpond.formatting import plural
from millpond.planner.kind import Draft, KindPlanner, PlanInputs
from millpond.planner.remembered import plan_vector
from millpond.planner.reward.numbers import estimate_reward, plan_reward, read_dataset, reward_speed_settings
from millpond.planner.reward.text import advise_reward


def draft_reward(recipe: RewardRecipe, inputs: PlanInputs) -> Draft:
    """Plan a reward run. The recorded episodes are opened unless their description is passed in."""
    dataset, notes = (inputs.dataset, ()) if inputs.dataset is not None else read_dataset(recipe)
    plan = plan_reward(recipe, dataset, plan_vector(recipe, here=inputs.host is not None), inputs.spec)
    refused = dataset is not None and dataset.refusal is not None
    alerts = (f"training will refuse {dataset.refusal}",) if dataset is not None and refused else ()
    return Draft(plan, advise_reward(recipe, plan), notes, alerts)


def preset_batches(recipe: RecipeSource, overrides: Iterable[str] | Mapping[str, Any] = ()) -> dict[str | None, int]:
    """Return the batches of a reward recipe without a preset (None) and with each of its presets."""
    default = load(recipe, overrides).recipe
    batches: dict[str | None, int] = {}
    for preset in (None, *default.presets):
        changed = load(recipe, overrides, preset).recipe
        if isinstance(changed, RewardRecipe):
            batches[preset] = plan_reward(changed).batches
    return batches


def reward_preset_notes(
    recipe: RecipeSource, overrides: Iterable[str] | Mapping[str, Any], preset: str
) -> tuple[str, ...]:
    """Explain the preset `fast`, which is shorter than `full` but may be longer than no preset."""
    batches = preset_batches(recipe, overrides) if preset == "fast" else {}
    if "full" not in batches:
        return ()
    return (
        f"--preset fast shortens --preset full from {plural(batches['full'], 'batch')} to {batches['fast']:,}; "
        f"without a preset this recipe has {batches[None]:,}",
    )


PLANNER = KindPlanner(
    draft=draft_reward,
    stacked_observations=False,
    speed_settings=reward_speed_settings,
    estimate=estimate_reward,
    preset_notes=reward_preset_notes,
)

"""Plans of PPO: numbers, advice, and both as text."""

from __future__ import annotations

from millpond.config import PPORecipe
from millpond.planner.kind import Draft, KindPlanner, KindRanks, PlanInputs
from millpond.planner.ppo.advice import advise_ppo
from millpond.planner.ppo.numbers import estimate_ppo, plan_ppo, ppo_share, ppo_speed_settings, ppo_total
from millpond.planner.remembered import plan_vector


def draft_ppo(recipe: PPORecipe, inputs: PlanInputs) -> Draft:
    """Plan a PPO run."""
    host = inputs.host
    vector = plan_vector(recipe, here=host is not None)
    plan = plan_ppo(recipe, inputs.spec, host.cores if host is not None else 1, vector)
    policy = recipe.policy
    notes: tuple[str, ...] = ()
    if policy.target is not None:
        notes = (
            f"policy.target={policy.target} was not built, since that would run its code: its recurrent state is estimated "
            f"as that of policy.core={policy.core} with policy.hidden_size={policy.hidden_size}, and the memory of a "
            "training step is not known",
        )
    return Draft(plan, advise_ppo(recipe, plan, inputs), notes)


PLANNER = KindPlanner(
    draft=draft_ppo,
    stacked_observations=True,
    speed_settings=ppo_speed_settings,
    estimate=estimate_ppo,
    ranks=KindRanks(ppo_share, ppo_total),
)

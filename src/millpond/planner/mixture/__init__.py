"""Plans of mixtures: numbers, advice, and both as text."""

from __future__ import annotations

from dataclasses import replace

from millpond.config import Loaded, MixtureRecipe
from millpond.config.check import refuse_violations
from millpond.config.rank_rules import mixture_rank_rules
from millpond.planner.kind import Draft, KindPlanner, KindRanks, PlanInputs
from millpond.planner.mixture.advice import advise_mixture
from millpond.planner.mixture.numbers import MixturePlan, estimate_mixture, mixture_speed_settings, plan_mixture
from millpond.planner.planned import Planned
from millpond.planner.remembered import plan_vector


def draft_mixture(recipe: MixtureRecipe, inputs: PlanInputs) -> Draft:
    """Plan a mixture."""
    plan = plan_mixture(recipe, inputs.spec, plan_vector(recipe, here=inputs.host is not None))
    return Draft(plan, advise_mixture(recipe, plan, inputs.spec, inputs.host))


def mixture_share(loaded: Loaded, ranks: int) -> Loaded:
    """Return the config unchanged: sizes of an agent are the same for all ranks, and each rank has some of the agents."""
    refuse_violations(loaded.recipe, mixture_rank_rules(ranks), loaded.name)
    return loaded


def mixture_total(planned: Planned, share: Loaded, ranks: int) -> Planned:
    """Return the plan of all ranks: each has a BigPond."""
    plan = planned.plan
    assert isinstance(plan, MixturePlan)
    memory = plan.big_pond_bytes
    return replace(planned, plan=replace(plan, big_pond_bytes=memory and memory * ranks))


PLANNER = KindPlanner(
    draft=draft_mixture,
    stacked_observations=False,
    speed_settings=mixture_speed_settings,
    estimate=estimate_mixture,
    ranks=KindRanks(mixture_share, mixture_total),
)

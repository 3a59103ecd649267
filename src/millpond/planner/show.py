"""A plan as text, for people."""

from __future__ import annotations

from millpond.config import MixtureRecipe, PPORecipe, RewardRecipe
from millpond.config.violations import as_override, as_overrides
from millpond.planner.estimate import show_estimate
from millpond.planner.lines import sentence
from millpond.planner.mixture.numbers import MixturePlan
from millpond.planner.mixture.text import show_mixture
from millpond.planner.planned import Planned
from millpond.planner.ppo.numbers import PPOPlan
from millpond.planner.ppo.text import show_ppo
from millpond.planner.reward.numbers import RewardPlan
from millpond.planner.reward.text import show_reward


def show(planned: Planned) -> str:
    """Alerts first, then the plan, then advice."""
    recipe, plan = planned.loaded.recipe, planned.plan
    lines = sentence(f"{planned.loaded.name}: {recipe.description}" if recipe.description else planned.loaded.name, 0)
    if planned.loaded.changes:
        lines += sentence(f"with {as_overrides(planned.loaded.changes)}")
    lines += show_alerts(planned.alerts)
    lines.append("")
    if isinstance(recipe, PPORecipe) and isinstance(plan, PPOPlan):
        lines += show_ppo(recipe, plan)
    elif isinstance(recipe, MixtureRecipe) and isinstance(plan, MixturePlan):
        lines += show_mixture(recipe, plan)
    elif isinstance(recipe, RewardRecipe) and isinstance(plan, RewardPlan):
        lines += show_reward(recipe, plan)
    lines += show_estimate(planned.estimate) if planned.estimate is not None else []
    lines += _rewards(planned)
    lines += show_source(planned)
    if planned.advice:
        lines += ["", "Advice"]
        for advice in planned.advice:
            lines += sentence(f"{advice.topic}: {advice.reason}.", 2, "- ")
            if advice.overrides:
                lines += sentence(as_overrides(dict(advice.overrides)), 8)
    return "\n".join(lines)


def show_alerts(alerts: tuple[str, ...]) -> list[str]:
    """Loud enough not to be read over."""
    return [line for alert in alerts for line in ["", *sentence(f"{alert}.", 0, "!! ALERT: ")]]


def show_source(planned: Planned) -> list[str]:
    """What a PufferLib file left to defaults, and what of it has no meaning here."""
    loaded = planned.loaded
    lines: list[str] = []
    if loaded.notes:
        lines += ["", "Notes", *(line for note in loaded.notes for line in sentence(f"{note}.", 2, "- "))]
    if loaded.defaulted:
        shown = ", ".join(as_override(key, value) for key, value in loaded.defaulted.items())
        lines += ["", "Defaulted, as PufferLib 3.0 does", *sentence(shown)]
    if loaded.ignored:
        lines += ["", "In the file, without a meaning here", *sentence(", ".join(loaded.ignored))]
    return lines


def _rewards(planned: Planned) -> list[str]:
    """Changes to rewards are never made in silence."""
    env = planned.loaded.recipe.env
    changes = []
    if env.reward_scale != 1:
        changes.append(f"multiplied by {env.reward_scale:g}")
    if env.reward_clip is not None:
        changes.append(f"clipped to +-{env.reward_clip:g}")
    if env.episodic:
        changes.append("held back and given in one sum at the end of each episode")
    return ["", *sentence(f"Rewards are {', and '.join(changes)}.")] if changes else []

"""What other values of one key would do: the same plan again, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from millpond.config.check import flatten
from millpond.config.keys import keys, nearest_key
from millpond.config.load import parse_override
from millpond.config.violations import show as show_value
from millpond.errors import MillpondError
from millpond.planner.host import Host
from millpond.planner.lines import number, sentence, size, table
from millpond.planner.mixture.numbers import MixturePlan
from millpond.planner.planned import Planned, plan
from millpond.planner.ppo.numbers import PPOPlan
from millpond.planner.reward.numbers import RewardPlan
from millpond.plurals import plural

MOST_VALUES = 32
LONGEST_NAME = 16  # that leaves room for the columns


@dataclass(frozen=True)
class Scaled:
    """A key, and for each of its values the plan or why there is none."""

    key: str
    own: Planned  # with the recipe's own value
    own_value: Any
    plans: tuple[tuple[Any, Planned | str], ...]

    def to_json(self) -> dict[str, Any]:
        """One object a value; a value that is refused has `error`."""
        return {
            "key": self.key,
            "plans": [
                {"value": value, **({"error": planned} if isinstance(planned, str) else planned.to_json())}
                for value, planned in self.plans
            ],
        }


def scale(
    recipe: str, overrides: Iterable[str], text: str, preset: str | None = None, host: Host | None = None
) -> Scaled:
    """`text` is KEY=a,b,c."""
    overrides = list(overrides)
    key, equals, values = (part.strip() for part in text.partition("="))
    choices = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or not choices:
        raise MillpondError(f"--scale {text!r} is not KEY=a,b,c, such as env.num_agents=3,4,8,24")
    if len(choices) > MOST_VALUES:
        raise MillpondError(f"--scale {key} has {len(choices)} values; at most {MOST_VALUES} make a table")
    own = plan(recipe, overrides, preset=preset, host=host)
    flat = flatten(own.loaded.recipe)
    if key not in flat:
        near = nearest_key(key, own.loaded.recipe.kind)
        raise MillpondError(f"{key} is not a key that can be scaled" + (f"; did you mean {near}?" if near else ""))
    plans: list[tuple[Any, Planned | str]] = []
    for choice in choices:
        try:
            planned = plan(recipe, [*overrides, f"{key}={choice}"], preset=preset, host=host)
        except MillpondError as error:
            plans.append((parse_override(f"{key}={choice}")[1], str(error)))
        else:
            plans.append((flatten(planned.loaded.recipe)[key], planned))
    if all(isinstance(planned, str) for _, planned in plans):
        raise MillpondError(str(plans[0][1]))
    return Scaled(key, own, flat[key], tuple(plans))


def show_scale(scaled: Scaled) -> str:
    """The table, then in words what each value changes against the recipe's own."""
    name = scaled.key.rpartition(".")[2]
    lines = [*sentence(f"{scaled.own.loaded.name}, by {scaled.key}", 0), ""]
    rows = [(show_value(value), planned.plan) for value, planned in scaled.plans if not isinstance(planned, str)]
    first = name if len(name) <= LONGEST_NAME else "value"
    lines += table([first, *_header(scaled.own)], [[value, *_columns(plan)] for value, plan in rows])
    for value, planned in scaled.plans:
        if isinstance(planned, str):
            lines += ["", *sentence(f"{show_value(value)} is refused: {planned}", 2)]
    remarks = [line for value, plan in rows for line in _remark(value, plan, scaled)]
    if remarks:
        lines += ["", f"  Against {name}={show_value(scaled.own_value)}:", *remarks]
    lines += ["", *sentence(keys(scaled.own.loaded.recipe.kind)[scaled.key].description)]
    return "\n".join(lines)


def _header(own: Planned) -> list[str]:
    if isinstance(own.plan, PPOPlan):
        return ["envs", "rows", "updates", "agent steps", "per gradient", "memory"]
    if isinstance(own.plan, MixturePlan):
        return ["rounds", "frames a round", "agent's frames", "replay", "BigPond", "lake"]
    return ["batches", "a cycle", "points", "saves", "passes"]


def _columns(plan: PPOPlan | MixturePlan | RewardPlan) -> list[str]:
    if isinstance(plan, PPOPlan):
        counts = [plan.num_envs, plan.segments, plan.gradient_updates, plan.agent_steps, plan.agent_steps_per_gradient]
        return [*(number(count) for count in counts), size(plan.buffer_bytes)]
    if isinstance(plan, MixturePlan):
        return [
            number(plan.rounds),
            number(plan.frames_per_round),
            number(plan.frames_per_agent),
            f"{plan.big_replay_ratio:.2g}",
            "?" if plan.big_pond_bytes is None else size(plan.big_pond_bytes),
            "?" if plan.lake_bytes is None else size(plan.lake_bytes),
        ]
    passes = "?" if plan.passes_over_data is None else number(round(plan.passes_over_data, 1))
    counts = [plan.batches, plan.batches_per_cycle, plan.tensorboard_points, plan.checkpoints]
    return [*(number(count) for count in counts), passes]


def _remark(value: str, plan: PPOPlan | MixturePlan | RewardPlan, scaled: Scaled) -> list[str]:
    """For PPO: what changes in gradients, updates, diversity and memory."""
    own = scaled.own.plan
    if not isinstance(plan, PPOPlan) or not isinstance(own, PPOPlan) or plan == own:
        return []
    parts = []
    if plan.agent_steps_per_gradient != own.agent_steps_per_gradient:
        ratio = plan.agent_steps_per_gradient / own.agent_steps_per_gradient
        kind = "steadier" if ratio > 1 else "noisier"
        parts.append(f"{kind} gradients ({ratio:.3g} times the agent steps)")
    if plan.gradient_updates != own.gradient_updates:
        parts.append(f"{plural(plan.gradient_updates, 'update')} instead of {own.gradient_updates:,}")
    if plan.training and own.training and plan.training.total != own.training.total:
        parts.append(f"{plan.training.total / own.training.total:.2g} times the memory of a training step")
    if plan.num_envs != own.num_envs:
        kind = "fewer" if plan.num_envs < own.num_envs else "more"
        parts.append(f"{kind} environments at once ({plan.num_envs:,} instead of {own.num_envs:,})")
    if plan.agent_steps != own.agent_steps:
        parts.append(f"{plan.agent_steps / own.agent_steps:.3g} times the data an iteration")
    return sentence(f"{value}: {'; '.join(parts)}.", 2, "- ") if parts else []

"""From a recipe to its plan: derive, describe the environment, compare what the config and the environment say, advise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from millpond.config import Loaded, MixtureRecipe, PPORecipe, Recipe, RewardRecipe, load
from millpond.config.env_options import AgentCount, agents_from, env_spec
from millpond.config.load import env_of
from millpond.config.violations import as_override
from millpond.envs.families import install_command, missing_extra
from millpond.planner.advice import Advice
from millpond.planner.estimate import Estimate, Measured, estimate_time
from millpond.planner.host import DeviceError, Host, require_device
from millpond.planner.mixture.advice import advise_mixture
from millpond.planner.mixture.numbers import MixturePlan, plan_mixture
from millpond.planner.ppo.advice import advise_ppo
from millpond.planner.ppo.numbers import PPOPlan, plan_ppo
from millpond.planner.reward.advice import advise_reward
from millpond.planner.reward.dataset import Dataset, read_dataset
from millpond.planner.reward.numbers import RewardPlan, plan_reward
from millpond.plurals import plural, verb

Plan = PPOPlan | MixturePlan | RewardPlan
Overrides = Iterable[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Planned:
    """A recipe, its plan, and what there is to say about the two."""

    loaded: Loaded
    plan: Plan
    advice: tuple[Advice, ...]
    alerts: tuple[str, ...]
    estimate: Estimate | None = None  # of the time, where this machine was measured

    def to_json(self) -> dict[str, Any]:
        """One flat object."""
        nested = ("field_bytes", "training", "dataset")
        flat = {key: value for key, value in asdict(self.plan).items() if key not in nested}
        if isinstance(self.plan, RewardPlan) and self.plan.dataset is not None:
            flat |= {f"dataset_{name}": value for name, value in asdict(self.plan.dataset).items() if name not in flat}
        if isinstance(self.plan, PPOPlan):
            flat |= {f"{name}_bytes": count for name, _, count in self.plan.field_bytes if name != "observation"}
            if self.plan.training is not None:
                flat |= {f"training_{name}_bytes": count for name, count in asdict(self.plan.training).items()}
                flat["training_bytes"] = self.plan.training.total
                flat["memory_bytes"] = self.plan.memory_bytes
        if self.estimate is not None:
            flat[f"estimated_{self.estimate.whole}_seconds"] = self.estimate.whole_seconds
            flat["estimated_seconds"] = self.estimate.seconds
        return {
            "recipe": self.loaded.name,
            "kind": self.loaded.recipe.kind,
            **flat,
            "notes": list(self.loaded.notes),
            "defaulted": [as_override(key, value) for key, value in self.loaded.defaulted.items()],
            "ignored": list(self.loaded.ignored),
            "alerts": list(self.alerts),
            "advice": [str(advice) for advice in self.advice],
        }


def plan(
    recipe: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    preset: str | None = None,
    agents_source: str | None = None,
    host: Host | None = None,
    measured: Iterable[Measured] = (),
) -> Planned:
    """What a recipe (its name, a file or a mapping) will do with these overrides, before anything runs.

    `agents_source` is an environment or a file that is asked how many agents an env has; where the config says otherwise,
    the alert says so. Where the config leaves it open (a PufferLib file), the answer is taken. `measured` are speeds of
    this machine, from which times are estimated. Without `host` the plan is for any machine: no device is missing.
    """
    overrides = overrides if isinstance(overrides, Mapping) else tuple(overrides)
    asked = None
    if agents_source is not None:
        asked = agents_from(agents_source, env_of(recipe, overrides, preset))
    loaded = load(recipe, overrides, preset, asked.agents if asked else None)
    if preset == "fast" and isinstance(loaded.recipe, RewardRecipe):
        loaded = replace(loaded, notes=(*loaded.notes, *_notes_on_fast(recipe, overrides)))
    return plan_loaded(loaded, asked, host, measured)


def preset_batches(recipe: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> dict[str | None, int]:
    """Return the batches of a reward recipe without a preset (None) and with each of its presets."""
    default = load(recipe, overrides).recipe
    batches: dict[str | None, int] = {}
    for preset in (None, *default.presets):
        changed = load(recipe, overrides, preset).recipe
        if isinstance(changed, RewardRecipe):
            batches[preset] = plan_reward(changed).batches
    return batches


def _notes_on_fast(recipe: str | Path | Mapping[str, Any], overrides: Overrides) -> Iterator[str]:
    """Say what `fast` is short for: the name alone would promise less than the recipe's default."""
    batches = preset_batches(recipe, overrides)
    if "full" in batches:
        yield (
            f"--preset fast shortens --preset full from {plural(batches['full'], 'batch')} to {batches['fast']:,}; "
            f"without a preset this recipe has {batches[None]:,}"
        )


def plan_loaded(
    loaded: Loaded,
    asked: AgentCount | None = None,
    host: Host | None = None,
    measured: Iterable[Measured] = (),
    dataset: Dataset | None = None,
) -> Planned:
    """The plan of a config that has been loaded. `dataset` describes its recorded episodes; without it they are opened."""
    recipe, measured = loaded.recipe, tuple(measured)
    alerts: list[str] = []
    if host is not None:
        loaded = _with_device(loaded)
    # Replay stores single frames and stacks them when they are sampled; rows hold what the policy sees.
    spec = env_spec(recipe.env, stacked=isinstance(recipe, PPORecipe)) if needs_env(recipe) else None
    plan: Plan
    if isinstance(recipe, PPORecipe):
        plan = plan_ppo(recipe, spec, host.cores if host is not None else 1)
        advice = advise_ppo(recipe, plan, spec, host, measured)
    elif isinstance(recipe, MixtureRecipe):
        plan = plan_mixture(recipe, spec)
        advice = advise_mixture(recipe, plan, spec, host)
    else:
        assert isinstance(recipe, RewardRecipe)
        if dataset is None:
            dataset, notes = read_dataset(recipe)
            loaded = replace(loaded, notes=(*loaded.notes, *notes))
        plan = plan_reward(recipe, dataset)
        advice = advise_reward(recipe, plan)
        if dataset is not None and dataset.refusal is not None:
            alerts.append(f"training will refuse {dataset.refusal}")
    if spec is None and needs_env(recipe) and not recipe.env.id.startswith("pufferlib."):
        loaded = replace(loaded, notes=(*loaded.notes, _unknown(loaded, asked)))
    if isinstance(recipe, PPORecipe) and recipe.policy.target is not None:
        policy = recipe.policy
        note = (
            f"policy.target={policy.target} was not built, since that would run its code: its recurrent state is estimated "
            f"as that of policy.core={policy.core} with policy.hidden_size={policy.hidden_size}, and the memory of a "
            "training step is not known"
        )
        loaded = replace(loaded, notes=(*loaded.notes, note))
    extra = missing_extra(recipe.env.id) if host is not None and needs_env(recipe) else None
    if extra is not None:
        note = f"training needs the extra {extra}, which is not installed: {install_command(extra)}"
        loaded = replace(loaded, notes=(*loaded.notes, note))
    env_batch = AgentCount(spec.num_agents, recipe.env.id) if spec is not None else None
    alerts += [
        _mismatch(plan, recipe.env.num_agents, count)
        for count in (asked, env_batch)
        if count is not None and count.agents != recipe.env.num_agents
    ]
    return Planned(loaded, plan, tuple(advice), tuple(alerts), estimate_time(recipe, plan, measured))


def _with_device(loaded: Loaded) -> Loaded:
    """Refuse a device that is not here. One that a PufferLib file left to PufferLib's default is only noted."""
    try:
        require_device(loaded.recipe.device)
    except DeviceError as error:
        if "train.device" not in loaded.defaulted or "device" in loaded.changes:
            raise
        return replace(loaded, notes=(*loaded.notes, f"{error}, to train here"))
    return loaded


def needs_env(recipe: Recipe) -> bool:
    """True unless a reward is learned from recorded episodes alone."""
    return not (isinstance(recipe, RewardRecipe) and recipe.reward.reward_only)


def _unknown(loaded: Loaded, asked: AgentCount | None) -> str:
    """Say which numbers of the plan an environment that was not made leaves unknown."""
    env_id = loaded.recipe.env.id
    unknown = "bytes of observations and of a training step are not known"
    if asked is not None and asked.source == env_id:
        return f"{env_id} was asked for its agents alone: {unknown}"
    text = f"{env_id} was not made, since that would run its code: {unknown}"
    if not loaded.agents_open:
        return f"{text}; --agents-from {env_id} asks it for its agents"
    return (
        f"{text}, and 1 agent per env is assumed; a run asks {env_id} when it is built, and --agents-from {env_id} asks "
        "it now"
    )


def _mismatch(plan: Plan, configured: int, asked: AgentCount) -> str:
    text = f"the config says {plural(configured, 'agent')} an env, {asked.source} has {asked.agents:,}"
    if isinstance(plan, PPOPlan):
        text += (
            f". With {asked.agents:,}, {plural(plan.num_envs, 'env')} {verb(plan.num_envs, 'hold')} "
            f"{plural(plan.num_envs * asked.agents, 'agent')}, not "
            f"{plan.total_agents:,}: every count below is off. Settle which is right"
        )
    return f"{text}; env.num_agents={asked.agents} follows {asked.source}"

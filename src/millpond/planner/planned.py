"""From a recipe to its plan: derive, describe the environment, compare what the config and the environment say, advise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millpond.config import Loaded, load
from millpond.config.env_options import AgentCount, agents_from, env_spec
from millpond.config.load import env_of
from millpond.config.violations import as_override
from millpond.envs.families import install_command, missing_extra
from millpond.errors import MillpondError
from millpond.kinds import KINDS
from millpond.planner.advice import Advice
from millpond.planner.estimate import Measured, TimeEstimate, estimate_time
from millpond.planner.host import DeviceError, Host, require_device
from millpond.planner.kind import Plan, PlanInputs
from millpond.planner.reward.dataset import Dataset
from millpond.plurals import plural

Overrides = Iterable[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Planned:
    """A recipe, its plan, and what there is to say about the two."""

    loaded: Loaded
    plan: Plan
    advice: tuple[Advice, ...]
    alerts: tuple[str, ...]
    estimate: TimeEstimate | None = None  # of the time, where this machine was measured

    def to_json(self) -> dict[str, Any]:
        """One flat object."""
        flat = self.plan.to_json()
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
    if preset is not None:
        notes = KINDS[loaded.recipe.kind].planner.load().preset_notes(recipe, overrides, preset)
        loaded = replace(loaded, notes=(*loaded.notes, *notes))
    return plan_loaded(loaded, asked, host, measured)


def plan_loaded(
    loaded: Loaded,
    asked: AgentCount | None = None,
    host: Host | None = None,
    measured: Iterable[Measured] = (),
    dataset: Dataset | None = None,
) -> Planned:
    """The plan of a config that has been loaded. `dataset` describes its recorded episodes; without it they are opened."""
    recipe, measured = loaded.recipe, tuple(measured)
    if host is not None:
        loaded = _with_device(loaded)
    planner = KINDS[recipe.kind].planner.load()
    # Replay stores single frames and stacks them when they are sampled; rows hold what the policy sees.
    spec = env_spec(recipe.env, stacked=planner.stacked_observations) if recipe.acts else None
    draft = planner.draft(recipe, PlanInputs(spec, host, measured, dataset))
    if spec is None and recipe.acts and not recipe.env.id.startswith("pufferlib."):
        loaded = replace(loaded, notes=(*loaded.notes, _unknown(loaded, asked)))
    loaded = replace(loaded, notes=(*loaded.notes, *draft.notes))
    extra = missing_extra(recipe.env.id) if host is not None and recipe.acts else None
    if extra is not None:
        note = f"training needs the extra {extra}, which is not installed: {install_command(extra)}"
        loaded = replace(loaded, notes=(*loaded.notes, note))
    env_batch = AgentCount(spec.num_agents, recipe.env.id) if spec is not None else None
    mismatches = [
        _mismatch(draft.plan, recipe.env.num_agents, count)
        for count in (asked, env_batch)
        if count is not None and count.agents != recipe.env.num_agents
    ]
    estimate = estimate_time(recipe, draft.plan, measured)
    return Planned(loaded, draft.plan, tuple(draft.advice), (*draft.alerts, *mismatches), estimate)


def share_of_rank(loaded: Loaded, ranks: int) -> Loaded:
    """The config of one rank: its share of every size. What has no equal share is refused, with sizes that have."""
    if ranks == 1:
        return loaded
    shared = KINDS[loaded.recipe.kind].planner.load().ranks
    if shared is None:
        raise MillpondError(
            f"{loaded.name} is of kind {loaded.recipe.kind}, which trains in one process; start it without torchrun"
        )
    return shared.share(loaded, ranks)


def plan_over_ranks(loaded: Loaded, ranks: int, dataset: Dataset | None = None) -> Planned:
    """The plan of all ranks together: the sum of their shares."""
    planned = plan_loaded(loaded, dataset=dataset)
    shared = KINDS[loaded.recipe.kind].planner.load().ranks
    share = share_of_rank(loaded, ranks)
    return planned if ranks == 1 or shared is None else shared.total(planned, share, ranks)


def _with_device(loaded: Loaded) -> Loaded:
    """Refuse a device that is not here. One that a PufferLib file left to PufferLib's default is only noted."""
    try:
        require_device(loaded.recipe.device)
    except DeviceError as error:
        if "train.device" not in loaded.defaulted or "device" in loaded.changes:
            raise
        return replace(loaded, notes=(*loaded.notes, f"{error}, to train here"))
    return loaded


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
    effect = plan.with_agents(asked.agents)
    text += f". {effect}" if effect else ""
    return f"{text}; env.num_agents={asked.agents} follows {asked.source}"

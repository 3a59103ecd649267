"""From a recipe to its plan: numbers, advice, notes, alerts about what does not fit together; and the plan as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from millpond.config import Loaded, RecipeSource, load
from millpond.config.env_options import AgentCount, agents_from, env_spec
from millpond.config.load import env_of
from millpond.config.recipe import EnvConfig
from millpond.config.rules import as_override, as_overrides
from millpond.config.rules import show as show_value
from millpond.devices import DeviceError
from millpond.envs.families import install_command, missing_extra
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.formatting import figures, plural, sentence
from millpond.kinds import KINDS
from millpond.planner.estimate import (
    Host,
    Measured,
    TimeEstimate,
    estimate_time,
    require_device,
    show_estimate,
)
from millpond.planner.kind import Advice, Plan, PlanInputs

if TYPE_CHECKING:
    from millpond.planner.reward.numbers import Dataset

Overrides = Iterable[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Planned:
    """A recipe, its plan, and advice, notes and alerts about both.

    The numbers of the plan are attributes: `millpond.plan("metta").gradient_updates`. `to_json` has them all.
    """

    loaded: Loaded
    plan: Plan
    advice: tuple[Advice, ...]
    alerts: tuple[str, ...]
    estimate: TimeEstimate | None = None  # of the time, if this machine was measured

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self.plan, name):
            raise AttributeError(f"the plan of {self.loaded.name} has no {name!r}; to_json() has all its numbers")
        return getattr(self.plan, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.plan.to_json()]

    def to_json(self) -> dict[str, Any]:
        """Return everything as one flat object."""
        flat = self.plan.to_json()
        if self.estimate is not None:
            flat[f"estimated_{self.estimate.whole}_seconds"] = self.estimate.whole_seconds
            flat["estimated_seconds"] = self.estimate.seconds
        return {
            "recipe": self.loaded.name,
            "kind": self.loaded.recipe.kind,
            **flat,
            "chosen": [asdict(one) for one in self.loaded.chosen],
            "open_choices": [asdict(one) for one in self.loaded.open_choices],
            "notes": list(self.loaded.notes),
            "defaulted": [as_override(key, value) for key, value in self.loaded.defaulted.items()],
            "ignored": list(self.loaded.ignored),
            "alerts": list(self.alerts),
            "advice": [str(advice) for advice in self.advice],
        }


def plan(
    recipe: RecipeSource,
    overrides: Overrides = (),
    *,
    preset: str | None = None,
    agents_source: str | None = None,
    host: Host | None = None,
    measured: Iterable[Measured] = (),
) -> Planned:
    """Plan a recipe (its name, a file or a mapping) with these overrides, without running anything.

    `agents_source` is an environment or a file that is asked for the number of agents per env. If the config sets another
    number, an alert says so; if it sets none (a PufferLib file), that number is used. `measured` are speeds of this machine,
    from which times are estimated. Without `host` the plan is for any machine: no device is missing.
    """
    overrides = overrides if isinstance(overrides, Mapping) else tuple(overrides)
    asked = None
    if agents_source is not None:
        asked = agents_from(agents_source, env_of(recipe, overrides, preset))

    def known_spec(env: EnvConfig) -> EnvSpec | None:
        return asked.spec if asked is not None and asked.source == env.id else env_spec(env)

    loaded = load(recipe, overrides, preset, asked.agents if asked else None, known_spec=known_spec)
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
    """Plan a config that has been loaded. `dataset` describes its recorded episodes; if it is None they are opened."""
    recipe, measured = loaded.recipe, tuple(measured)
    if host is not None:
        loaded = _with_device(loaded)
    planner = KINDS[recipe.kind].planner.load()
    # Replay stores single frames and stacks them when sampled; rows hold whole observations.
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
    """Return the config of one rank: its share of every size. Sizes that ranks cannot share equally are refused."""
    if ranks == 1:
        return loaded
    shared = KINDS[loaded.recipe.kind].planner.load().ranks
    if shared is None:
        raise MillpondError(
            f"{loaded.name} is of kind {loaded.recipe.kind}, which trains in one process; start it without torchrun"
        )
    return shared.share(loaded, ranks)


def plan_over_ranks(loaded: Loaded, ranks: int, dataset: Dataset | None = None) -> Planned:
    """Return the plan of all ranks together: the sum of their shares."""
    planned = plan_loaded(loaded, dataset=dataset)
    shared = KINDS[loaded.recipe.kind].planner.load().ranks
    share = share_of_rank(loaded, ranks)
    return planned if ranks == 1 or shared is None else shared.total(planned, share, ranks)


def _with_device(loaded: Loaded) -> Loaded:
    """Refuse a device that this machine does not have. PufferLib's default device leads to a note instead."""
    try:
        require_device(loaded.recipe.device)
    except DeviceError as error:
        if "train.device" not in loaded.defaulted or "device" in loaded.changes:
            raise
        return replace(loaded, notes=(*loaded.notes, f"{error}, to train here"))
    return loaded


def _unknown(loaded: Loaded, asked: AgentCount | None) -> str:
    """Return a note on the numbers that are not known because the environment was not built."""
    env_id = loaded.recipe.env.id
    unknown = "bytes of observations and of a training step are not known"
    if extra := missing_extra(env_id):
        return f"{env_id} cannot be built here without the extra {extra}: {unknown}"
    if asked is not None and asked.source == env_id:
        return f"{env_id} was only asked for its number of agents: {unknown}"
    text = f"{env_id} was not built, since that would run its code: {unknown}"
    if not loaded.agents_open:
        return f"{text}; --agents-from {env_id} asks it for its number of agents"
    return (
        f"{text}, and 1 agent per env is assumed; a run asks {env_id} when it is built, and --agents-from {env_id} asks "
        "it now"
    )


def _mismatch(plan: Plan, configured: int, asked: AgentCount) -> str:
    text = f"the config has {plural(configured, 'agent')} per env, {asked.source} has {asked.agents:,}"
    effect = plan.with_agents(asked.agents)
    text += f". {effect}" if effect else ""
    return f"{text}; to follow {asked.source}: env.num_agents={asked.agents}"


def show(planned: Planned) -> str:
    """Return a plan as text: alerts first, then the plan, then advice."""
    recipe, plan = planned.loaded.recipe, planned.plan
    lines = sentence(f"{planned.loaded.name}: {recipe.description}" if recipe.description else planned.loaded.name, 0)
    if planned.loaded.changes:
        lines += sentence(f"with {as_overrides(planned.loaded.changes)}")
    lines += show_alerts(planned.alerts)
    lines += show_choices(planned.loaded)
    lines.append("")
    lines += KINDS[recipe.kind].text.load().show(recipe, plan)
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
    """Return alerts as lines that stand out."""
    return [line for alert in alerts for line in ["", *sentence(f"{alert}.", 0, "!! ALERT: ")]]


def show_choices(loaded: Loaded) -> list[str]:
    """Return the settings that follow from the environment, with reasons, and those that are decided when it is built."""
    lines: list[str] = []
    for title, choices in (
        ("Chosen for this environment", loaded.chosen),
        ("Decided when the environment is built", loaded.open_choices),
    ):
        rows = [(one.key, show_value(one.value), one.reason) for one in choices]
        lines += ["", title, *figures(rows)] if rows else []
    return lines


def show_source(planned: Planned) -> list[str]:
    """Return notes, and what a PufferLib file leaves to defaults or sets without a meaning here."""
    loaded = planned.loaded
    lines: list[str] = []
    if loaded.notes:
        lines += ["", "Notes", *(line for note in loaded.notes for line in sentence(f"{note}.", 2, "- "))]
    if left_out := loaded.recipe.left_out:
        lines += ["", "Left out of the system that this recipe follows"]
        lines += [line for one in left_out for line in sentence(f"{one}.", 2, "- ")]
    if loaded.defaulted:
        shown = ", ".join(as_override(key, value) for key, value in loaded.defaulted.items())
        lines += ["", f"Defaults of PufferLib {loaded.puffer_version}", *sentence(shown)]
    if loaded.ignored:
        sweep = sum(key.startswith("sweep.") for key in loaded.ignored)
        names = [key for key in loaded.ignored if not key.startswith("sweep.")] + (
            [f"[sweep] with {sweep} keys"] if sweep else []
        )
        lines += ["", "Ignored, since it has no meaning here", *sentence(", ".join(names))]
    return lines


def _rewards(planned: Planned) -> list[str]:
    """Return a sentence on changes to rewards, if there are any."""
    env = planned.loaded.recipe.env
    changes = []
    if env.reward_scale != 1:
        changes.append(f"multiplied by {env.reward_scale:g}")
    if env.reward_clip is not None:
        changes.append(f"clipped to +-{env.reward_clip:g}")
    if env.episodic:
        changes.append("paid in one sum at the end of each episode")
    return ["", *sentence(f"Rewards are {', and '.join(changes)}.")] if changes else []

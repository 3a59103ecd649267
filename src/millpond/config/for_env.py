"""Settings that follow from an environment or a policy: the recipe of an env id, and the section `for_env` of a recipe.

Nothing here depends on the machine, so that a result repeats on another one. A run stores the settings that were chosen,
not the section, so that it is resumed without choosing again.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

from pydantic import Field, ValidationError

from millpond.config.recipe import ConfigSection, Count
from millpond.config.rules import Values, Violation
from millpond.envs.families import MUJOCO_ENVS, family_of
from millpond.envs.spec import EnvSpec
from millpond.formatting import plural
from millpond.sizes import LARGE_IMAGE, nearest_divisors, rows_per_round

ENVS, TARGET, MINIBATCH = "trainer.num_envs", "trainer.forward_pass_minibatch_target_size", "trainer.minibatch_size"


class ForEnvConfig(ConfigSection):
    """Settings that follow from the environment, chosen when its spec is known, or from the kind of policy.

    What a file above this recipe, a preset or an override sets is never replaced. The stored config of a run has the chosen
    settings in place of this section.
    """

    continuous: dict[str, Any] = Field(
        default_factory=dict, description="Overrides for envs whose actions are continuous."
    )
    image: dict[str, Any] = Field(
        default_factory=dict,
        description=f"Overrides for envs that show images of at least {LARGE_IMAGE} pixels a side.",
    )
    small_image: dict[str, Any] = Field(
        default_factory=dict, description="Overrides for envs that show smaller images, or grids."
    )
    memory: dict[str, Any] = Field(
        default_factory=dict, description="Overrides for policies with memory: policy.core is not none."
    )
    custom_policy: dict[str, Any] = Field(
        default_factory=dict, description="Overrides for custom policies: policy.target is set."
    )
    total_agents: Count | None = Field(
        None,
        description="Agents in all envs together, about: trainer.num_envs is this / env.num_agents, rounded to a multiple of "
        "`minibatches`, unless the number of envs is set.",
    )
    minibatches: Count | None = Field(
        None, description="Minibatches per epoch: trainer.minibatch_size is the batch / this, unless it is set."
    )


@dataclass(frozen=True)
class Chosen:
    """A setting that follows from the environment."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class EnvRecipe:
    """The packaged recipe of a family of environments, and settings of a single one of them."""

    name: str
    reason: str
    settings: tuple[Chosen, ...] = ()


def is_env_id(name: str) -> bool:
    """True if the name of a recipe is that of an environment. `grid` and `mettagrid` are recipes of their own."""
    return name in ("recall", "truncation") or (":" in name and family_of(name) is not None)


def recipe_of_env(env_id: str, spec: EnvSpec | None = None) -> EnvRecipe | None:
    """Return the recipe for an env id; None if it has the form of no family. `spec` is None if it is not known yet."""
    family = family_of(env_id)
    if family is None:
        return None
    if family.name == "gymnasium":
        if env_id.partition(":")[2] in MUJOCO_ENVS:
            return EnvRecipe("mujoco", "a MuJoCo env of Gymnasium")
        return EnvRecipe("gym", "an env of Gymnasium")
    if family.name == "pettingzoo":
        return EnvRecipe("multiagent", "an env of PettingZoo")
    if family.name == "custom":
        if spec is None:
            return EnvRecipe("gym", "a custom env, assumed to have one agent; with several it is multiagent")
        if spec.num_agents > 1:
            return EnvRecipe("multiagent", f"a custom env of {spec.num_agents:,} agents")
        return EnvRecipe("gym", "a custom env of one agent")
    if family.name == "recall":
        memory = Chosen("policy.core", "lstm", "the cue has to be remembered")
        return EnvRecipe("gym", "an env of one agent", (memory,))
    if family.name == "truncation":
        return EnvRecipe("gym", "an env of one agent")
    return EnvRecipe(family.name, f"the recipe of {family.form}")


def names_no_env_count(values: Mapping[str, Any]) -> bool:
    """True for a config of kind ppo that does not say how many envs it has: it takes the recipe of its environment."""
    trainer = values.get("trainer", {})
    if values.get("kind") != "ppo" or not isinstance(trainer, Mapping) or read_section(values).total_agents is not None:
        return False
    return all(trainer.get(key.partition(".")[2]) is None for key in (ENVS, TARGET))


def read_section(values: Mapping[str, Any]) -> ForEnvConfig:
    """Return the section `for_env` of plain values; an empty one if it is not valid, which `check` reports."""
    try:
        return ForEnvConfig.model_validate(values.get("for_env", {}))
    except ValidationError:
        return ForEnvConfig()


def choose(section: ForEnvConfig, spec: EnvSpec | None) -> tuple[tuple[Chosen, ...], tuple[Chosen, ...]]:
    """Return the settings that are chosen for an environment, and those that stay open because it is not known."""
    chosen: list[Chosen] = []
    still_open: list[Chosen] = []
    for overrides, holds, reason, condition in (
        (section.small_image, _has_small_images, "it shows small images", "if it shows small images or grids"),
        (section.image, _has_images, "it shows images", "if it shows images"),
        (section.continuous, _is_continuous, "its actions are continuous", "if its actions are continuous"),
    ):
        if spec is None:
            still_open += [Chosen(key, value, condition) for key, value in overrides.items()]
        elif holds(spec):
            chosen += [Chosen(key, value, reason) for key, value in overrides.items()]
    last = {one.key: one for one in chosen}
    return tuple(last.values()), tuple(still_open)


def _sides(spec: EnvSpec) -> list[int]:
    """Return the shorter side of every image or grid that the env shows."""
    return [min(part.shape[-2:]) for part in spec.observation.parts if part.kind in ("pixels", "grid")]


def _has_images(spec: EnvSpec) -> bool:
    return any(side >= LARGE_IMAGE for side in _sides(spec))


def _has_small_images(spec: EnvSpec) -> bool:
    return bool(_sides(spec)) and not _has_images(spec)


def _is_continuous(spec: EnvSpec) -> bool:
    return bool(spec.action.low)


def choose_for_policy(section: ForEnvConfig, flat: Values) -> tuple[Chosen, ...]:
    """Return the settings that are chosen for the kind of policy that a config has."""
    conditions = (
        (section.memory, flat["policy.core"] != "none", f"the policy has memory: {flat['policy.core']}"),
        (section.custom_policy, flat["policy.target"] is not None, f"the policy is custom: {flat['policy.target']}"),
    )
    chosen = {
        key: Chosen(key, value, reason)
        for overrides, holds, reason in conditions
        if holds
        for key, value in overrides.items()
    }
    return tuple(chosen.values())


def choose_sizes(section: ForEnvConfig, flat: Values, set_keys: set[str]) -> tuple[Chosen, ...]:
    """Return the number of envs and the size of a minibatch for the agents of an env, unless they are set.

    128 agents in all, 3 per env and 4 minibatches: 44 envs, 132 rows, minibatches of 33 rows.
    """
    chosen: list[Chosen] = []
    agents, parts, envs = flat["env.num_agents"], section.minibatches or 1, flat[ENVS]
    if section.total_agents is not None and envs is None and flat[TARGET] is None:
        unit = lcm(parts, flat["trainer.num_workers"], flat["trainer.async_factor"])
        envs = unit * max(1, round(section.total_agents / agents / unit))
        reason = f"about {plural(section.total_agents, 'agent')} in all, {agents:,} per env"
        chosen.append(Chosen(ENVS, envs, f"{reason}; a multiple of {unit}" if unit > 1 else reason))
    if section.minibatches is not None and MINIBATCH not in set_keys and envs is not None:
        horizon, batch = flat["trainer.bptt_horizon"], flat["trainer.batch_size"]
        if batch == "auto":
            batch = rows_per_round(envs, agents, flat["trainer.batch_unit"]) * horizon
        if batch % horizon == 0:
            size = nearest_divisors(batch // parts, batch, horizon)[0]
            chosen.append(Chosen(MINIBATCH, size, f"{plural(batch // size, 'minibatch')} of {batch:,} steps"))
    return tuple(chosen)


def is_set(values: Mapping[str, Any], key: str) -> bool:
    """True if nested values have a dotted key."""
    inner: Any = values
    for part in key.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            return False
        inner = inner[part]
    return True


def known_keys(values: Values) -> Iterator[Violation]:
    """Refuse mistyped keys in `for_env`, also those that the environment in use does not need."""
    for name in ("continuous", "image", "small_image", "memory", "custom_policy"):
        for key in values[f"for_env.{name}"]:
            if key not in values or key.startswith(("env.id", "for_env.")):
                near = difflib.get_close_matches(key, list(values), n=1)
                hint = f"; did you mean {near[0]}?" if near and near[0] != key else ""
                yield Violation((f"for_env.{name}",), f"for_env.{name} sets {key}, which is not a key to choose{hint}")

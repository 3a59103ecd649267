"""From the `env` section of a config to an environment's id and the options that its family takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millpond.config.check import refuse_violations
from millpond.config.env import EnvConfig
from millpond.config.recipe import Recipe
from millpond.config.rules import Values
from millpond.config.violations import Violation
from millpond.envs.families import LOOPED, family_of
from millpond.envs.registry import describe
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.plurals import plural


def env_options(env: EnvConfig, *, stacked: bool = True) -> tuple[str, dict[str, Any]]:
    """`stacked`: observations are whole stacks of `frame_stack` frames; else single frames, to be stacked when sampled."""
    family = family_of(env.id)
    name = family.name if family else ""
    options: dict[str, Any] = {}
    if env.reward_scale != 1.0:
        options["reward_scale"] = env.reward_scale
    if env.reward_clip is not None:
        options["reward_clip"] = env.reward_clip
    if env.episodic:
        options["episodic"] = True
    if env.max_steps is not None:
        options["max_steps"] = env.max_steps
    if name == "grid":
        options |= {
            "num_agents": env.num_agents,
            "obs_size": env.obs_size,
            "stagger": env.stagger,
            **env.grid.model_dump(),
        }
    elif name == "recall":
        options |= env.recall.model_dump()
    elif name == "mettagrid":
        if env.mettagrid.config is not None:
            options["config"] = env.mettagrid.config
        else:
            options |= {"num_agents": env.num_agents, "obs_size": env.obs_size}
            options |= {"num_tokens": env.mettagrid.num_tokens, "size": env.mettagrid.size}
    elif name == "atari":
        options |= env.atari.model_dump(exclude={"screen_size"})
        options |= {"height": env.atari.screen_size, "width": env.atari.screen_size}
        options["stack_num"] = env.frame_stack if stacked else 1
    elif name == "minatar":
        options |= env.minatar.model_dump()
    elif name in LOOPED:
        options |= {"kwargs": dict(env.options), "clip_actions": env.clip_actions, "info": env.info}
    return env.id, options


def is_safe_to_describe(env: EnvConfig) -> bool:
    """Whether the environment can be described without running code that the config names: a config may be a stranger's."""
    family = family_of(env.id)
    if family is None or family.name in ("pettingzoo", "custom"):
        return False
    if family.name == "gymnasium":
        return ":" not in env.id.partition(":")[2] and not env.options  # `module:Env` imports the module
    return family.name != "mettagrid" or env.mettagrid.config is None


def env_spec(env: EnvConfig, *, stacked: bool = True) -> EnvSpec | None:
    """What the config's environment shows and takes, for a plan; None where only running its code would tell."""
    return describe(*env_options(env, stacked=stacked)) if is_safe_to_describe(env) else None


def decides_its_agents(env: EnvConfig) -> bool:
    """True if the number of agents is the environment's own, and only running its code tells it."""
    family = family_of(env.id)
    if family is None:
        return False
    return family.name in ("pettingzoo", "custom") or (family.name == "mettagrid" and env.mettagrid.config is not None)


def refuse_many_agents(env: EnvConfig, kind: str, agents: int) -> None:
    """Refuse an environment of several agents where recipes of this kind train one per env."""
    if agents != 1 and kind != "ppo":
        raise MillpondError(
            f"an env of env.id={env.id} has {plural(agents, 'agent')}, and recipes of kind {kind} train one per env; "
            "choose another env.id, or a recipe of kind ppo"
        )


def refuse_wrong_agents(recipe: Recipe, agents: int, source: str) -> None:
    """Refuse a recipe that says another number of agents than the `agents` that its environment has."""

    def rule(values: Values) -> Iterator[Violation]:
        said, env_id = values["env.num_agents"], values["env.id"]
        if said != agents:
            message = f"env.num_agents={said:,}, but an env of env.id={env_id} has {plural(agents, 'agent')}"
            yield Violation(("env.num_agents", "env.id"), message, ({"env.num_agents": agents},))

    refuse_violations(recipe, rule, source)

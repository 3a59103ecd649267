"""From the `env` section of a config to a world's id and the options that its family takes."""

from __future__ import annotations

from typing import Any

from millpond.config.env import EnvConfig
from millpond.envs.families import LOOPED, family_of
from millpond.envs.registry import describe
from millpond.envs.spec import EnvSpec


def world_options(env: EnvConfig, *, stacked: bool = True) -> tuple[str, dict[str, Any]]:
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
    """Whether the world can be described without running code that the config names: a config may be a stranger's."""
    family = family_of(env.id)
    if family is None or family.name in ("pettingzoo", "custom"):
        return False
    if family.name == "gymnasium":
        return ":" not in env.id.partition(":")[2] and not env.options  # `module:Env` imports the module
    return family.name != "mettagrid" or env.mettagrid.config is None


def world_spec(env: EnvConfig, *, stacked: bool = True) -> EnvSpec | None:
    """What the config's world shows and takes, for a plan; None where only running its code would tell."""
    return describe(*world_options(env, stacked=stacked)) if is_safe_to_describe(env) else None

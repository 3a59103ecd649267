"""From the `env` section of a config to the environment: the options of its family, its spec, its number of agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.config.check import refuse_violations
from millpond.config.recipe import EnvConfig, Recipe
from millpond.config.rules import Values, Violation
from millpond.config.yaml import parse, read_text
from millpond.envs.families import FAMILIES, LOOPED, family_of, missing_extra
from millpond.envs.registry import describe
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.formatting import plural
from millpond.kinds import KINDS


def env_options(env: EnvConfig, *, stacked: bool = True) -> tuple[str, dict[str, Any]]:
    """Return the id of the environment and the options of its family.

    `stacked`: observations are whole stacks of `frame_stack` frames; else single frames, to be stacked when sampled.
    """
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
    """True if describing the environment runs no code that the config names: a config may come from a stranger."""
    family = family_of(env.id)
    if family is None or family.name in ("pettingzoo", "custom"):
        return False
    if family.name == "gymnasium":
        return ":" not in env.id.partition(":")[2] and not env.options  # `module:Env` imports the module
    return family.name != "mettagrid" or env.mettagrid.config is None


def env_spec(env: EnvConfig, *, stacked: bool = True) -> EnvSpec | None:
    """Return the spec of the config's environment, for a plan; None if that would run its code or needs a missing extra."""
    needs_extra = env.id.startswith("gymnasium:") and missing_extra(env.id) is not None
    return describe(*env_options(env, stacked=stacked)) if is_safe_to_describe(env) and not needs_extra else None


def decides_its_agents(env: EnvConfig) -> bool:
    """True if the environment decides its number of agents, which only running its code reveals."""
    family = family_of(env.id)
    if family is None:
        return False
    return family.name in ("pettingzoo", "custom") or (family.name == "mettagrid" and env.mettagrid.config is not None)


def refuse_many_agents(env: EnvConfig, kind: str, agents: int) -> None:
    """Raise MillpondError if an env has several agents and recipes of this kind train one per env."""
    if agents != 1 and kind in KINDS and not KINDS[kind].several_agents:
        suited = " or ".join(other.name for other in KINDS.values() if other.several_agents)
        raise MillpondError(
            f"an env of env.id={env.id} has {plural(agents, 'agent')}, and recipes of kind {kind} train one per env; "
            f"choose another env.id, or a recipe of kind {suited}"
        )


def refuse_wrong_agents(recipe: Recipe, agents: int, source: str) -> None:
    """Raise ConfigError if a recipe sets another number of agents than the `agents` that its environment has."""

    def rule(values: Values) -> Iterator[Violation]:
        configured, env_id = values["env.num_agents"], values["env.id"]
        if configured != agents:
            message = f"env.num_agents={configured:,}, but an env of env.id={env_id} has {plural(agents, 'agent')}"
            yield Violation(("env.num_agents", "env.id"), message, ({"env.num_agents": agents},))

    refuse_violations(recipe, rule, source)


@dataclass(frozen=True)
class AgentCount:
    """Agents per env, and the environment or file that says so. `spec` is that of the environment, if it was asked."""

    agents: int
    source: str
    spec: EnvSpec | None = None


def agents_from(source: str, env: EnvConfig | None = None) -> AgentCount:
    """Ask a YAML file that has `num_agents` somewhere in it, or an environment, which is built for this.

    An environment that is that of the config `env` is built with the options of that config.
    """
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        return AgentCount(_in_file(path), path.name)
    family = family_of(source)
    if family is None:
        forms = ", ".join(f.form for f in FAMILIES.values())
        raise MillpondError(f"{source} is neither a YAML file nor an environment; environments are {forms}")
    if family.name in ("grid", "mettagrid"):
        raise MillpondError(f"{source} has env.num_agents agents; name a YAML file with its map instead")
    try:
        options = env_options(env)[1] if env is not None and env.id == source else {}
        spec = describe(source, options)
        return AgentCount(spec.num_agents, source, spec)
    except MillpondError:
        raise
    except (Exception, SystemExit) as error:  # the code of an environment may raise anything
        raise MillpondError(f"{source} could not be built: {type(error).__name__}: {error}") from None


def _in_file(path: Path) -> int:
    """Read `num_agents` from a file about an environment, as safely as a recipe: it may come from a stranger."""
    numbers = set(_values_of("num_agents", parse(read_text(path), str(path))))
    if not numbers:
        raise MillpondError(f"{path} does not set num_agents; it must set it to a whole number")
    if len(numbers) > 1:
        values = ", ".join(map(str, sorted(numbers)))
        raise MillpondError(f"{path} sets num_agents to different numbers: {values}; it must be the same everywhere")
    agents = numbers.pop()
    if agents < 1:
        raise MillpondError(f"{path} sets num_agents={agents}; it must be at least 1")
    return agents


def _values_of(key: str, content: Any) -> list[int]:
    if isinstance(content, Mapping):
        here = [content[key]] if isinstance(content.get(key), int) and not isinstance(content[key], bool) else []
        return here + [number for value in content.values() for number in _values_of(key, value)]
    if isinstance(content, list):
        return [number for value in content for number in _values_of(key, value)]
    return []

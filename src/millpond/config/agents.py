"""Ask an environment, or a file about it, how many agents one env has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.config.env import EnvConfig
from millpond.config.env_facts import env_options
from millpond.config.yaml import parse, read_text
from millpond.envs.families import FAMILIES, family_of
from millpond.envs.registry import describe
from millpond.errors import MillpondError


@dataclass(frozen=True)
class AgentCount:
    """Agents in one env, and who says so."""

    agents: int
    source: str


def agents_from(source: str, env: EnvConfig | None = None) -> AgentCount:
    """The answer of a YAML file that has `num_agents` somewhere in it, or of an environment, which is made for this.

    The environment of the config `env` is made with the options that it has there.
    """
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        return AgentCount(_in_file(path), path.name)
    family = family_of(source)
    if family is None:
        forms = ", ".join(f.form for f in FAMILIES.values())
        raise MillpondError(
            f"{source} is neither a YAML file nor an environment that can be asked; environments are {forms}"
        )
    if family.name in ("grid", "mettagrid"):
        raise MillpondError(f"{source} has as many agents as env.num_agents says; ask a file with its map instead")
    try:
        own = env_options(env)[1] if env is not None and env.id == source else {}
        return AgentCount(describe(source, own).num_agents, source)
    except MillpondError:
        raise
    except (Exception, SystemExit) as error:  # whatever the code of an environment may do when it is called
        raise MillpondError(f"{source} cannot be asked: {type(error).__name__}: {error}") from None


def _in_file(path: Path) -> int:
    """`num_agents` of a file about an environment; read as carefully as a recipe, since it may be anybody's."""
    found = set(_values_of("num_agents", parse(read_text(path), str(path))))
    if len(found) != 1:
        what = "nowhere" if not found else f"as {', '.join(map(str, sorted(found)))}"
        raise MillpondError(f"{path} gives num_agents {what}; it should stand there once, as a whole number")
    agents = found.pop()
    if agents < 1:
        raise MillpondError(f"{path} gives num_agents={agents}; it must be at least 1")
    return agents


def _values_of(key: str, content: Any) -> list[int]:
    if isinstance(content, Mapping):
        own = [content[key]] if isinstance(content.get(key), int) and not isinstance(content[key], bool) else []
        return own + [found for value in content.values() for found in _values_of(key, value)]
    if isinstance(content, list):
        return [found for value in content for found in _values_of(key, value)]
    return []

"""Ask a world, or a file about it, how many agents one env has."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from millpond.envs.families import FAMILIES, family_of
from millpond.errors import MillpondError

LARGEST_FILE = 10_000_000  # bytes


@dataclass(frozen=True)
class AgentCount:
    """Agents in one env, and who says so."""

    agents: int
    source: str


def agents_from(source: str) -> AgentCount:
    """The answer of a world's id, or of a YAML or .ini file that has `num_agents` somewhere in it."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        return AgentCount(_in_file(path), path.name)
    family = family_of(source)
    if family is None:
        forms = ", ".join(f.form for f in FAMILIES.values())
        raise MillpondError(f"{source} is neither a YAML file nor a world that can be asked; worlds are {forms}")
    if family.name in ("grid", "mettagrid"):
        raise MillpondError(f"{source} has as many agents as env.num_agents says; ask a file with its map instead")
    count = agents_of_world({"id": source, "options": {}, "mettagrid.config": None})
    assert count is not None  # all other families know
    return count


def agents_of_world(env: Mapping[str, Any]) -> AgentCount | None:
    """What a config's world itself says, or None where it takes whatever number the config gives."""
    family = family_of(env["id"])
    if family is None or family.name == "grid":
        return None
    if family.single_agent:
        return AgentCount(1, env["id"])
    if family.name == "mettagrid":
        return None if env["mettagrid.config"] is None else _of_metta_config(env["mettagrid.config"])
    if family.name == "pettingzoo":
        module = _module(env["id"].partition(":")[2], family.extra)
        return AgentCount(_count(module.parallel_env(**env["options"]), env["id"]), env["id"])
    if env["id"].startswith("pufferlib."):  # a PufferLib world that has no counterpart here
        return None
    name, _, attribute = env["id"].partition(":")
    made = getattr(_module(name, None), attribute)(**env["options"])
    return AgentCount(_count(made, env["id"]), env["id"])


def _of_metta_config(config: str) -> AgentCount:
    if Path(config).suffix in (".yaml", ".yml"):
        return AgentCount(_in_file(Path(config)), config)
    name, _, attribute = config.partition(":")
    value = getattr(_module(name, "metta"), attribute)
    value = value() if callable(value) else value
    return AgentCount(int(value.game.num_agents), config)


def _module(name: str, extra: str | None) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = f"; pip install 'millpond[{extra}]'" if extra else ""
        raise MillpondError(f"{name} cannot be imported ({error}){hint}") from None


def _count(env: Any, source: str) -> int:
    try:
        for attribute in ("possible_agents", "num_agents"):
            value = getattr(env, attribute, None)
            if value is not None:
                return len(value) if attribute == "possible_agents" else int(value)
        if hasattr(env, "action_space"):  # a Gymnasium env
            return 1
    finally:
        if hasattr(env, "close"):
            env.close()
    raise MillpondError(f"{source} does not say how many agents it has (possible_agents, num_agents or action_space)")


def _in_file(path: Path) -> int:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise MillpondError(f"{path} has {path.stat().st_size:,} bytes; too large for a config")
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MillpondError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError):
        raise MillpondError(f"{path} is not YAML") from None
    found = {int(value) for value in _values_of("num_agents", content, 0)}
    if len(found) != 1:
        what = "nowhere" if not found else f"as {', '.join(map(str, sorted(found)))}"
        raise MillpondError(f"{path} gives num_agents {what}; it should stand there once, as a whole number")
    return found.pop()


def _values_of(key: str, content: Any, depth: int) -> list[int]:
    if depth > 50:
        return []
    if isinstance(content, Mapping):
        own = [content[key]] if isinstance(content.get(key), int) and not isinstance(content[key], bool) else []
        return own + [found for value in content.values() for found in _values_of(key, value, depth + 1)]
    if isinstance(content, list):
        return [found for value in content for found in _values_of(key, value, depth + 1)]
    return []

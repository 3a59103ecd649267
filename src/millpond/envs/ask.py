"""Ask a world, or a file about it, how many agents one env has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from millpond.envs.families import FAMILIES, family_of
from millpond.envs.registry import describe
from millpond.errors import MillpondError

LARGEST_FILE = 10_000_000  # bytes


@dataclass(frozen=True)
class AgentCount:
    """Agents in one env, and who says so."""

    agents: int
    source: str


def agents_from(source: str) -> AgentCount:
    """The answer of a world's id, or of a YAML file that has `num_agents` somewhere in it."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        return AgentCount(_in_file(path), path.name)
    family = family_of(source)
    if family is None:
        forms = ", ".join(f.form for f in FAMILIES.values())
        raise MillpondError(f"{source} is neither a YAML file nor a world that can be asked; worlds are {forms}")
    if family.name in ("grid", "mettagrid"):
        raise MillpondError(f"{source} has as many agents as env.num_agents says; ask a file with its map instead")
    return AgentCount(describe(source, {}).num_agents, source)


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

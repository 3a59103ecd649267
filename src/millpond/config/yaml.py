"""Safe and strict YAML for recipes.

A subclass of PyYAML's SafeLoader, so that a file can only yield plain values. It also refuses duplicate keys (YAML silently
keeps the last) and aliases (a few hundred bytes of them can expand to gigabytes), and it reads scalars as YAML 1.2 does:
only `true` and `false` are booleans, and 12:30 is a string, not 750.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from millpond.errors import MillpondError

LARGEST_FILE = 1_000_000  # bytes; recipes have a few hundred


class RecipeFileError(MillpondError):
    """A file that cannot be a recipe."""


class _RecipeLoader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(None, None, "aliases are not allowed in a recipe", mark)
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(None, None, f"tags such as {event.tag} are not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "a key must be plain text", key_node.start_mark)
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(None, None, f"the key {key_node.value!r} appears twice", key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


_RecipeLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9][0-9_]*", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]*)?(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _RecipeLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | float | str:
    text = loader.construct_scalar(node).replace("_", "")
    if re.fullmatch(r"[-+]?[0-9]+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:  # a single sign or point is a string
        return str(node.value)


_RecipeLoader.add_constructor("tag:yaml.org,2002:int", _number)
_RecipeLoader.add_constructor("tag:yaml.org,2002:float", _number)


def parse(text: str, source: str) -> Any:
    """Parse a YAML text to a plain value; `source` names it in errors."""
    try:
        return yaml.load(text, Loader=_RecipeLoader)  # a SafeLoader, see above
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise RecipeFileError(f"{source} is not valid YAML{where}: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise RecipeFileError(f"{source} is not valid YAML: {reason}") from None


def read_text(path: Path) -> str:
    """Read a file that should be a recipe; raise RecipeFileError if it cannot be one."""
    try:
        if path.is_dir():
            raise RecipeFileError(f"{path} is a folder, not a recipe; name a YAML file in it")
        if path.exists() and not path.is_file():
            raise RecipeFileError(f"{path} is not an ordinary file")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise RecipeFileError(f"{path} has {size:,} bytes; a recipe has at most {LARGEST_FILE:,}")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeFileError(f"{path} is not UTF-8 text (byte {error.start:,}), so it is not a recipe") from None
    except FileNotFoundError:
        raise RecipeFileError(f"{path} does not exist") from None
    except OSError as error:
        raise RecipeFileError(f"{path} cannot be read: {error.strerror}") from None


def read_mapping(path: Path, *, example: str = "extends: grid") -> dict[str, Any]:
    """Read a YAML file that holds a mapping; the error of an empty one shows an example of its lines."""
    text = read_text(path)
    value = parse(text, str(path))
    if value is None:
        raise RecipeFileError(f"{path} is empty; it needs at least one line, such as `{example}`")
    if not isinstance(value, dict):
        raise RecipeFileError(f"{path} holds a {type(value).__name__}, not a mapping of sections such as `trainer:`")
    return value

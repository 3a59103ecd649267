"""Modules, functions and classes that pages name exist. Sources are parsed, not imported."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = re.compile(r"`(millpond(?:\.\w+)+)(?::([\w.]+))?`")


@cache
def definitions(module: str) -> dict[str, set[str]] | None:
    """Names at the top level of a module, each with the names in its body if it is a class; None if there is no such module."""
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return None
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {name: members for node in tree.body for name, members in names_of(node).items()}


def names_of(node: ast.stmt) -> dict[str, set[str]]:
    """Names that a statement defines."""
    if isinstance(node, ast.ClassDef):
        return {node.name: {name for inner in node.body for name in names_of(inner)}}
    if isinstance(node, ast.FunctionDef):
        return {node.name: set()}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name: set() for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id: set() for target in targets if isinstance(target, ast.Name)}


def has(module: str, names: list[str]) -> bool:
    """True if `module` defines `names`: a name, or a class and its member."""
    defined = definitions(module)
    if defined is None or names[0] not in defined:
        return False
    return len(names) == 1 or (len(names) == 2 and names[1] in defined[names[0]])


def exists(module: str, name: str | None) -> bool:
    """True for a module, `module:name`, `module:Class.member`, and the same with a dot in place of the colon."""
    if name is not None:
        return has(module, name.split("."))
    words = module.split(".")
    return definitions(module) is not None or any(has(".".join(words[:n]), words[n:]) for n in range(1, len(words)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_names_on_a_page_exist(page: Path) -> None:
    references = REFERENCE.findall(page.read_text(encoding="utf-8"))
    missing = [
        f"{module}:{name}" if name else module for module, name in references if not exists(module, name or None)
    ]
    assert not missing


def test_architecture_names_functions_of_all_three_data_paths() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.split(r"^### ", text, flags=re.M)[1:]
    assert [len(REFERENCE.findall(path)) >= 8 for path in paths] == [True, True, True]


def test_missing_names_are_noticed() -> None:
    assert exists("millpond.losses", "ppo_loss")
    assert exists("millpond.losses.ppo_loss", None)
    assert not exists("millpond.losses", "no_such_loss")
    assert not exists("millpond.no_such_module", None)
    assert not exists("millpond.loop.loop", "Loop.no_such_method")

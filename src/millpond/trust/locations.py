"""Where named code is, found without importing it or its packages, and whether that is in the user's current project.

The project is the working directory, or the git checkout around it, without the packages installed inside of it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from millpond.config.code import NamedCode

INSTALLED = {"site-packages", "dist-packages"}
MAX_IMPORTS = 16  # modules that a name is followed through


@dataclass(frozen=True)
class Location:
    """The files that importing a module runs: its own, and before it those of the packages around it.

    `whole` is False if the last part of the name was not found; importing its package decides then what it is.
    """

    module: str
    files: tuple[Path, ...]
    builtin: bool = False
    whole: bool = True

    def __str__(self) -> str:
        if self.builtin:
            return "Python itself"
        return str(self.files[-1]) if self.files else "a folder without __init__.py"


def find_location(module: str) -> Location | None:
    """Find a module without importing anything; None if there is no module of its first name."""
    files: list[Path] = []
    builtin = False
    path: Sequence[str] | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        spec = _imported_spec(name) or (_find_spec(name, path) if count == 1 or path is not None else None)
        if spec is None:
            return None if count == 1 else Location(module, tuple(files), builtin, whole=False)
        if spec.has_location and spec.origin:
            files.append(Path(spec.origin))
        elif spec.origin is not None:  # "built-in" or "frozen"; a folder without __init__.py has none
            builtin = True
        locations = spec.submodule_search_locations
        path = None if locations is None else list(locations)
    return Location(module, tuple(files), builtin)


def _imported_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module that is already imported: it is used as it is."""
    module = sys.modules.get(name)
    if module is None:
        return None
    spec: ModuleSpec | None = getattr(module, "__spec__", None)
    if spec is None and getattr(module, "__file__", None):  # the script that Python was started with
        spec = importlib.util.spec_from_file_location(name, str(module.__file__))
    return spec or ModuleSpec(name, None, origin="built-in")


def _find_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        kind = _kind_of(finder)
        if issubclass(kind, PathFinder):
            # The last part alone: with the whole name, a folder without __init__.py would need its imported parent.
            spec = kind.find_spec(name.rpartition(".")[2], path)
        elif kind in (BuiltinImporter, FrozenImporter) or _is_editable(kind):
            spec = finder.find_spec(name, path)
        else:
            continue
        if spec is not None:
            return spec
    return None


def _kind_of(finder: object) -> type[Any]:
    return finder if isinstance(finder, type) else type(finder)


def _is_editable(kind: type[Any]) -> bool:
    """True for the finders with which setuptools installs a project in editable mode."""
    return kind.__module__.startswith("__editable__")


def only_known_finders() -> bool:
    """True if every module that can be imported is found by `find_location`."""
    known = {"BuiltinImporter", "FrozenImporter", "DistutilsMetaFinder", "_SixMetaPathImporter"}
    kinds = map(_kind_of, sys.meta_path)
    return all(issubclass(kind, PathFinder) or kind.__name__ in known or _is_editable(kind) for kind in kinds)


def locations_of(code: NamedCode) -> list[Location]:
    """Return the locations that code may be imported from."""
    if code.file is not None:
        return [Location("", (Path.cwd() / code.file,))]
    return [location for module in code.modules if (location := find_location(module)) is not None]


def in_project(code: NamedCode, run: Path | None = None) -> bool:
    """True if all that importing and calling this code runs is in the project, and did not come with its config.

    `run` is the run folder whose config names the code, if it is not a recipe file that does.
    """
    cwd = Path.cwd()
    brought = [] if code.source is None else _folders_with(code.source, cwd, run)
    locations = locations_of(code)
    if not locations:
        return code.file is None and only_known_finders()  # there is nothing to import: an error will say so
    return all(
        _is_of_library(location, code)
        or (
            _holds(location, cwd, brought)
            and (not code.function or _is_defined_there(location, code.function, cwd, brought))
        )
        for location in locations
    )


def _is_of_library(location: Location, code: NamedCode) -> bool:
    """True for a module of the library itself, such as `pettingzoo.butterfly.pistonball_v6`."""
    return bool(code.library) and location.module.startswith(f"{code.library}.")


def _holds(location: Location, cwd: Path, brought: Sequence[Path]) -> bool:
    # Millpond's own functions import what their arguments name, so they are not safe to call with any arguments.
    if location.builtin or not location.whole or not location.files or location.module.split(".")[0] == "millpond":
        return False
    return all(
        is_project_file(file, cwd) and not any(file.resolve().is_relative_to(folder) for folder in brought)
        for file in location.files
    )


def is_project_file(file: Path, cwd: Path) -> bool:
    """True if a file lies in the project around `cwd` and is not part of an installed package.

    In the home folder, and above it, only files directly in the working directory count: everything else is below it.
    """
    file, cwd = file.resolve(), cwd.resolve()
    stdlib = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    prefixes = [Path(prefix).resolve() for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix)]
    installed = [*stdlib, *(prefix for prefix in prefixes if not cwd.is_relative_to(prefix))]
    if INSTALLED & set(file.parts) or any(file.is_relative_to(folder) for folder in installed):
        return False
    if _is_wide(cwd):
        return file.parent == cwd
    checkout = checkout_around(cwd)
    return file.is_relative_to(cwd if checkout is None else checkout)


def _is_wide(folder: Path) -> bool:
    """True for the home folder and everything that contains it."""
    try:
        home = Path.home().resolve()
    except RuntimeError:
        return folder == Path(folder.anchor)
    return home.is_relative_to(folder)


def checkout_around(folder: Path) -> Path | None:
    """Return the git checkout of this user that contains a folder; a checkout of the whole home folder is none."""
    for parent in (folder, *folder.parents):
        try:
            status = (parent / ".git").stat()
        except OSError:
            continue
        if _is_wide(parent) or (hasattr(os, "geteuid") and status.st_uid != os.geteuid()):
            return None
        return parent
    return None


def _folders_with(source: Path, cwd: Path, run: Path | None) -> list[Path]:
    """Return the folders that came with a config: code in them is its author's, unless the user works inside of them."""
    folder = source.resolve().parent
    around = [folder]
    if run is not None:
        around += [folder.parent, *([folder.parent.parent] if folder.parent.name == "runs" else [])]
    elif (checkout := checkout_around(folder)) is not None:
        around.append(checkout)
    return [one for one in around if not cwd.resolve().is_relative_to(one)]


def _is_defined_there(
    location: Location, name: str, cwd: Path, brought: Sequence[Path], left: int = MAX_IMPORTS
) -> bool:
    """True unless a module has only imported what the name refers to, as in `my_env:subprocess.getoutput`.

    Imports from other modules of the project are followed, at most `left` of them. A name with dots must be that of a
    class and of something public in it.
    """
    file = location.files[-1]
    first, *rest = name.split(".")
    if file.suffix != ".py":
        return not rest
    try:
        statements = list(_statements(ast.parse(file.read_bytes()).body))
    except (OSError, RecursionError):
        return False
    except (SyntaxError, ValueError):
        return True  # importing it fails
    bound = [statement for statement in statements if first in _names_of(statement)]
    if rest:
        public = not any(part.startswith("_") for part in rest)
        return public and bool(bound) and all(isinstance(statement, ast.ClassDef) for statement in bound)
    if not bound:
        bound = [one for one in statements if isinstance(one, ast.ImportFrom) and _names_of(one) == {"*"}]
        if first.startswith("_"):  # an attribute that every module has
            return False
    for statement in bound:
        if isinstance(statement, ast.ImportFrom):
            origin = find_location(_absolute(statement, location))
            if origin is None or not left or not _holds(origin, cwd, brought):
                return False
            names = [alias.name for alias in statement.names if (alias.asname or alias.name) == first] or [first]
            if not all(_is_defined_there(origin, original, cwd, brought, left - 1) for original in names):
                return False
    return True


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that a module runs when it is imported, also those inside `if`, `try` and `with`."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for block in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, block, []))
            for handler in getattr(statement, "handlers", []):
                yield from _statements(handler.body)


def _names_of(statement: Any) -> set[str]:
    """Return the names that a statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    if isinstance(statement, ast.Import):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {
        node.id for target in targets if target is not None for node in ast.walk(target) if isinstance(node, ast.Name)
    }


def _absolute(statement: ast.ImportFrom, location: Location) -> str:
    """Return the module that `from ... import` names, in the file of a location."""
    is_package = location.files[-1].stem == "__init__"
    parts = location.module.split(".") if is_package else location.module.split(".")[:-1]
    around = parts[: len(parts) - statement.level + 1] if statement.level else []
    return ".".join([*around, *([statement.module] if statement.module else [])])

"""Functions and classes that were passed from Python, in place of a dotted path: their names in a config.

What any process can import is stored as `package.module:name`. Anything else (a lambda, a class in a function, in a notebook
or in a script without a `__main__` guard) is stored as `object:NAME`: it lives in one process only, and is found by that
name within `binding`. A later process has to pass it again.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

OBJECT = "object"  # in place of a module's name

_bound: ContextVar[Mapping[str, Callable[..., Any]]] = ContextVar("passed objects", default={})  # noqa: B039 - read only


def is_object(path: str | None) -> bool:
    """True for the name of an object that was passed from Python, and that no other process can import."""
    return path is not None and path.partition(":")[0] == OBJECT


def name_of(thing: Callable[..., Any], nameless: str) -> str:
    """Return the name of a function or class in a config: its dotted path if another process can import it.

    A lambda is called `nameless`.
    """
    qualified = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    module = _importable_module(thing, qualified)
    if module is not None:
        return f"{module}:{qualified}"
    last = qualified.rpartition(".")[2]
    return f"{OBJECT}:{last if last.isidentifier() else nameless}"


@contextmanager
def binding(objects: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Within this context `find_object` finds these objects by their names, in this thread."""
    token = _bound.set({**_bound.get(), **objects})
    try:
        yield
    finally:
        _bound.reset(token)


def find_object(path: str) -> Callable[..., Any] | None:
    """Return the object that is bound to `object:NAME`; None if it has to be passed again."""
    return _bound.get().get(path)


def _importable_module(thing: Any, qualified: str) -> str | None:
    """Return the module from which another process imports a function or class; None if none can."""
    module = getattr(thing, "__module__", None)
    if not isinstance(module, str) or not re.fullmatch(r"[A-Za-z_][\w.]*", qualified):
        return None  # a lambda, or defined within a function
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        return None
    if module == "__main__":
        return _module_of_script(qualified)
    return module if _finds_file(module, getattr(sys.modules[module], "__file__", None)) else None


def _module_of_script(qualified: str) -> str | None:
    """Return the module as which the script that Python was started with can be imported, without running it again.

    It needs a guard, `if __name__ == "__main__":`, as for `multiprocessing`.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None:
        return None  # a notebook or the interactive interpreter
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    defined = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    guarded = any(isinstance(node, ast.If) and "__name__" in ast.dump(node.test) for node in body)
    if qualified.partition(".")[0] not in defined or not guarded:
        return None
    if spec is not None:  # python -m package.module
        return None if spec.name.endswith("__main__") else str(spec.name)
    return Path(file).stem if _finds_file(Path(file).stem, file) else None


def _finds_file(module: str, file: str | None) -> bool:
    """True if importing a module anew would read this file."""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module) or file is None:
        return False
    try:
        known = sys.modules.get(module)
        spec = known.__spec__ if known is not None else importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == Path(file).resolve()

"""Things of the user's own, named as `package.module:name`."""

from __future__ import annotations

import importlib
from typing import Any

from millpond.envs.errors import EnvError


def load_dotted(path: str) -> Any:
    """The object that `package.module:name` names; it must be callable."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise EnvError(f"{path!r} must be written package.module:name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise EnvError(
            f"{path!r}: there is no module {error.name!r}; it must be on the Python path "
            "(run from its folder with PYTHONPATH=. or install it)"
        ) from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise EnvError(f"{path!r}: module {module_name} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise EnvError(f"{path!r} is a {type(found).__name__}, not a function or class")
    return found

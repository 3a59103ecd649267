"""Things of the user's own, named as `package.module:name`."""

from __future__ import annotations

import importlib
from typing import Any

from millpond.envs.errors import EnvError
from millpond.errors import MillpondError


def load_dotted(path: str, *, key: str = "", error: type[MillpondError] = EnvError) -> Any:
    """The object that `package.module:name` names; it must be callable. Errors are of one class and may name a key."""
    said = f"{key}={path!r}" if key else repr(path)
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise error(f"{said} must be written package.module:name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (module_name == missing.name or module_name.startswith(f"{missing.name}.")):
            raise
        raise error(
            f"{said}: there is no module {missing.name!r}; it must be on the Python path "
            "(run from its folder with PYTHONPATH=. or install it)"
        ) from missing
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise error(f"{said}: module {module_name} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise error(f"{said} is a {type(found).__name__}, not a function or class")
    return found

"""Files of recipes: the packaged ones by name, others by path."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path

from millpond.config.for_env import is_env_id
from millpond.config.yaml import RecipeFileError
from millpond.envs.registry import near_ids
from millpond.errors import MillpondError

SUFFIXES = (".yaml", ".yml", ".ini")
OTHER_RECIPES = "or use an env id such as gymnasium:CartPole-v1, or a path to a YAML file"


def recipe_names() -> list[str]:
    """Return the names of the packaged recipes."""
    folder = resources.files("millpond.recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def is_recipe(name: str) -> bool:
    """Return True for the name of a packaged recipe, an env id, or an existing file that may hold a recipe."""
    return name in recipe_names() or is_env_id(name) or (Path(name).suffix in SUFFIXES and Path(name).is_file())


def source_file(path: Path) -> Path | None:
    """Return the path of a recipe file; None for a packaged recipe, which is part of Millpond."""
    folder = Path(str(resources.files("millpond.recipes")))
    return None if path.resolve().parent == folder.resolve() else path


def locate(name: str, relative_to: Path) -> Path:
    """Return the file of a recipe's name or path."""
    path = Path(name)
    if path.suffix in SUFFIXES or len(path.parts) > 1 or name in (".", "..", ""):
        try:
            relative = relative_to / path
            return relative.resolve() if relative.exists() else path
        except (OSError, ValueError) as error:  # too long, or with a NUL in it
            raise RecipeFileError(f"{name[:80]!r} is not a path: {error}") from None
    names = recipe_names()
    if name in names:
        return Path(str(resources.files("millpond.recipes") / f"{name}.yaml"))
    if path.exists():
        return path
    nearest = list(dict.fromkeys([*difflib.get_close_matches(name, names, n=1), *near_ids(name)]))
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"recipes are {', '.join(names)}; {OTHER_RECIPES}"
    raise MillpondError(f"there is no recipe {name!r}; {hint}")

"""Where a config comes from: packaged recipes, files, `extends`, presets, overrides."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from millpond.config import puffer
from millpond.config.check import check, merge, overlay
from millpond.config.debug import DEBUG, debug_settings
from millpond.config.recipe import KINDS, Recipe
from millpond.config.violations import ConfigError
from millpond.config.yaml import RecipeFileError, parse, read_mapping, read_text
from millpond.errors import MillpondError

SUFFIXES = (".yaml", ".yml", ".ini")


@dataclass(frozen=True)
class Loaded:
    """A typed recipe, and what a reader should know of how it came about."""

    name: str
    recipe: Recipe
    values: dict[str, Any]  # as merged from files, preset and overrides; keys that nobody set are not in it
    defaulted: dict[str, Any] = field(default_factory=dict)  # a PufferLib file's keys that took PufferLib's defaults
    ignored: tuple[str, ...] = ()  # a PufferLib file's keys without a meaning here
    notes: tuple[str, ...] = ()
    agents_open: bool = False  # nobody said how many agents an env has
    changes: dict[str, Any] = field(default_factory=dict)  # what preset and overrides set


@dataclass(frozen=True)
class _Source:
    values: dict[str, Any]
    defaulted: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    agents_open: bool = False


def recipe_names() -> list[str]:
    """The recipes in the package."""
    folder = resources.files("millpond.recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load(
    recipe: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    preset: str | None = None,
    agents_if_open: int | None = None,
) -> Loaded:
    """A recipe's name, a file or a mapping, overlaid first with a preset, then with overrides (`section.key=value`).

    The preset `debug` is worked out from the recipe and the overrides. A PufferLib file may leave open how many agents
    an env has; then `agents_if_open` is taken.
    """
    name = "config" if isinstance(recipe, Mapping) else str(recipe)
    source = _extended(dict(recipe), name, ()) if isinstance(recipe, Mapping) else _read(name, ())
    values = source.values
    dotted = _preset(values, preset, name) if preset is not None else {}
    dotted |= overrides if isinstance(overrides, Mapping) else dict(parse_override(text) for text in overrides)
    if source.agents_open and "env.num_agents" not in dotted and agents_if_open is not None:
        dotted["env.num_agents"] = agents_if_open
    if preset == DEBUG:
        dotted = _debug(overlay(values, dotted), dotted) | dotted
    values = overlay(values, dotted)
    agents_open = source.agents_open and "env.num_agents" not in dotted
    notes = (*source.notes, *([puffer.AGENTS_OPEN] if agents_open else []))
    try:
        typed = check(values, name)
    except ConfigError as error:
        broken = [key for violation in error.violations for key in violation.keys]
        if not agents_open or not any(key.startswith(("trainer.", "env.num_agents")) for key in broken):
            raise
        raise MillpondError(f"{error}\nPerhaps only because {puffer.AGENTS_OPEN}") from None
    return Loaded(name, typed, values, source.defaulted, source.ignored, notes, agents_open, dotted)


def leaves_agents_open(recipe: str | Path, overrides: Iterable[str], preset: str | None = None) -> bool:
    """Whether nobody says how many agents an env has: neither the file, nor a preset, nor an override."""
    source = _read(str(recipe), ())
    said = _preset(source.values, preset, str(recipe)) if preset is not None else {}
    said |= dict(parse_override(text) for text in overrides)
    return source.agents_open and "env.num_agents" not in said


def parse_override(text: str) -> tuple[str, Any]:
    """`trainer.batch_size=262_144` as key and value."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or any(not part for part in key.split(".")):
        raise MillpondError(f"{text!r} is not an override; write section.key=value, such as trainer.batch_size=262_144")
    return key, parse(value, f"the value of {key}")


def _read(name: str, chain: tuple[str, ...]) -> _Source:
    """The plain values of a recipe or file, with what it extends below it."""
    path = _locate(name, Path(chain[-1]).parent if chain else Path())
    if str(path) in chain:
        raise RecipeFileError(f"{' extends '.join([*chain, str(path)])}: a recipe cannot extend itself")
    if path.suffix == ".ini":
        read = puffer.read(read_text(path), str(path))
        return _Source(read.values, read.defaulted, read.ignored, read.notes, read.agents_open)
    return _extended(read_mapping(path), str(path), (*chain, str(path)))


def _extended(values: dict[str, Any], name: str, chain: tuple[str, ...]) -> _Source:
    """Values over those of what they extend, if they do."""
    parent = values.pop("extends", None)
    if parent is None:
        return _Source(values)
    if not isinstance(parent, str):
        raise RecipeFileError(f"{name}: extends={parent!r} must be a recipe's name or a file")
    below = _read(parent, chain)
    env = values.get("env")
    agents_open = below.agents_open and not (isinstance(env, Mapping) and "num_agents" in env)
    return _Source(merge(below.values, values), below.defaulted, below.ignored, below.notes, agents_open)


def _locate(name: str, relative_to: Path) -> Path:
    """The file behind a recipe's name or a path; a path wins where it looks like one."""
    path = Path(name)
    if path.suffix in SUFFIXES or len(path.parts) > 1 or name in (".", "..", ""):
        try:
            beside = relative_to / path
            return beside.resolve() if beside.exists() else path
        except (OSError, ValueError) as error:  # too long, or with a NUL in it
            raise RecipeFileError(f"{name[:80]!r} is no path: {error}") from None
    names = recipe_names()
    if name in names:
        return Path(str(resources.files("millpond.recipes") / f"{name}.yaml"))
    if path.exists():
        return path
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = (
        f"did you mean {nearest[0]}?" if nearest else f"recipes are {', '.join(names)}; or give a path to a YAML file"
    )
    raise MillpondError(f"there is no recipe {name!r}; {hint}")


def _preset(values: Mapping[str, Any], preset: str, source: str) -> dict[str, Any]:
    """Return the overrides of a preset. `debug` is there without being written down; what is written is added to it."""
    written = values.get("presets")
    presets = {str(name): overlay for name, overlay in written.items()} if isinstance(written, Mapping) else {}
    presets.setdefault(DEBUG, {})
    if not isinstance(presets.get(preset), Mapping):
        raise MillpondError(f"{source} has no preset {preset!r}; it has {', '.join(presets)}")
    return {str(key): value for key, value in presets[preset].items()}


def _debug(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of `debug` for these values; none where they are not valid, which `check` then reports."""
    kind = values.get("kind")
    try:
        recipe = KINDS[kind].model_validate(dict(values)) if isinstance(kind, str) and kind in KINDS else None
    except ValidationError:
        recipe = None
    return {} if recipe is None else debug_settings(recipe, fixed)

"""Plain values of whatever stands for a recipe (a name, an env id, a file, a mapping, a typed recipe) and what it extends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millpond.config import puffer
from millpond.config.check import merge, overlay
from millpond.config.code import Layer
from millpond.config.files import SUFFIXES, locate, source_file
from millpond.config.for_env import Chosen, choose, is_env_id, is_set, names_no_env_count, read_section, recipe_of_env
from millpond.config.recipe import Recipe
from millpond.config.rules import as_overrides
from millpond.config.schedules import by_path
from millpond.config.style import with_style
from millpond.config.yaml import RecipeFileError, read_mapping
from millpond.envs.families import family_of
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError

SIZES_OF_DATA = ("expected_episodes", "expected_steps")
SIZED = ("grid", "mettagrid")  # environments whose number of agents and episode length the config sets
WITHOUT_VECTORS = ("mettagrid", "atari", "minatar")  # families whose observations have no part of plain numbers
NORMALIZE = "policy.normalize_observations"  # needs such a part

# Whatever stands for a recipe: its name, an env id, a file, plain values, or a typed recipe, whose values are used unchanged.
RecipeSource = str | Path | Mapping[str, Any] | Recipe


@dataclass(frozen=True)
class PlainSource:
    """Plain values, and what is known of where they come from: see `Loaded`."""

    values: dict[str, Any]
    layers: tuple[Layer, ...] = ()
    defaulted: dict[str, Any] = field(default_factory=dict)
    puffer_version: str = ""
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    agents_open: bool = False
    chosen: tuple[Chosen, ...] = ()
    open_choices: tuple[Chosen, ...] = ()

    def without_choices(self, values: Mapping[str, Any]) -> PlainSource:
        """Return the source without the choices that these values replace."""
        chosen, still_open = (
            tuple(one for one in choices if not is_set(values, one.key)) for choices in (self.chosen, self.open_choices)
        )
        return replace(self, chosen=chosen, open_choices=still_open)


def read_any(recipe: RecipeSource, spec: EnvSpec | None) -> tuple[str, PlainSource]:
    """Return the name and the plain values of whatever stands for a recipe."""
    if isinstance(recipe, Recipe):
        values = {**recipe.model_dump(exclude_unset=True), "kind": recipe.kind}
        return recipe.kind, PlainSource(values, ((None, values),))
    if isinstance(recipe, Mapping):
        return "config", _extended(dict(recipe), "config", (), spec)
    if not isinstance(recipe, str | Path):
        raise MillpondError(
            f"{recipe!r:.100} is not a recipe: pass a name, an env id, a file, a mapping or a typed recipe such as "
            "millpond.config.PPORecipe(...). A function or class that makes an env is passed as env=..."
        )
    return str(recipe), _read(str(recipe), (), spec)


def _read(name: str, chain: tuple[str, ...], spec: EnvSpec | None) -> PlainSource:
    """Read the plain values of a recipe, env id or file, merged with what it extends."""
    if is_env_id(name) and Path(name).suffix not in SUFFIXES:
        return _of_env(name, source_file(Path(chain[-1])) if chain else None, spec)
    path = locate(name, Path(chain[-1]).parent if chain else Path())
    if str(path) in chain:
        raise RecipeFileError(f"{' extends '.join([*chain, str(path)])}: a recipe cannot extend itself")
    if path.suffix == ".ini":
        read = puffer.read_file(path)
        layers = ((source_file(path), read.values),)
        return PlainSource(
            with_style(read.values), layers, read.defaulted, read.version, read.ignored, read.notes, read.agents_open
        )
    return _extended(read_mapping(path), str(path), (*chain, str(path)), spec)


def _of_env(env_id: str, file: Path | None, spec: EnvSpec | None) -> PlainSource:
    """Return the packaged recipe of the family of an env id, with that id. `file` is the one that names it."""
    base = recipe_of_env(env_id, spec)
    assert base is not None
    below = _read(base.name, (), spec)
    values = {"env": {"id": env_id}}
    inherited, _ = for_other_env(below.values, values)  # what it sets for its own environment is not worth a note
    return PlainSource(
        overlay(merge_layers(inherited, values), {one.key: one.value for one in base.settings}),
        (*below.layers, (file, values)),
        chosen=(Chosen("recipe", base.name, base.reason), *below.chosen, *base.settings),
        open_choices=below.open_choices,
    )


def _env_that_decides(values: Mapping[str, Any]) -> str | None:
    """Return the env id of a config that does not set the number of envs: it extends the recipe of that environment."""
    env = values.get("env")
    env_id = env.get("id") if isinstance(env, Mapping) else None
    return env_id if isinstance(env_id, str) and names_no_env_count(values) and recipe_of_env(env_id) else None


def _extended(values: dict[str, Any], name: str, chain: tuple[str, ...], spec: EnvSpec | None) -> PlainSource:
    """Merge values with those of the recipe that they extend, if any."""
    parent, values = values.pop("extends", None), with_style(by_path(values))
    own: Layer = (source_file(Path(chain[-1])) if chain else None, values)
    chosen, still_open = choose(read_section(values), spec)
    settings = {one.key: one.value for one in chosen}
    if isinstance(parent, str):
        below = _read(parent, chain, spec)
    elif parent is not None:
        raise RecipeFileError(f"{name}: extends={parent!r} must be a recipe's name, an env id or a file")
    elif (env_id := _env_that_decides(values)) is not None:
        below = _of_env(env_id, own[0], spec)
    else:
        return PlainSource(overlay(values, settings), (own,), chosen=chosen, open_choices=still_open)
    below = below.without_choices(values)
    env = values.get("env")
    agents_open = below.agents_open and not (isinstance(env, Mapping) and "num_agents" in env)
    inherited, notes = for_other_env(below.values, values)
    notes = below.notes if below.agents_open else (*below.notes, *notes)
    return PlainSource(
        overlay(merge_layers(inherited, values), settings),
        (*below.layers, own),
        below.defaulted,
        below.puffer_version,
        below.ignored,
        notes,
        agents_open,
        (*below.chosen, *chosen),
        (*below.open_choices, *still_open),
    )


def for_other_env(below: Mapping[str, Any], above: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Drop values of `below` that belong to its environment if `above` names another one, and return a note about them.

    A number of agents belongs to one environment, a step limit to a family of them; `grid` and `mettagrid` share both.
    Families that show no plain numbers have nothing to normalise, and of other environments than `grid` it is not known
    whether they show any.
    """
    old, new = below.get("env"), above.get("env")
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return dict(below), ()
    before, after = old.get("id", "grid"), new.get("id")
    if not (isinstance(before, str) and isinstance(after, str)) or before == after:
        return dict(below), ()
    families = [family.name if (family := family_of(env_id)) else env_id for env_id in (before, after)]
    bound = [] if all(family in SIZED for family in families) else ["env.num_agents"]
    if bound and families[0] != families[1]:
        bound.append("env.max_steps")
    if families[1] in WITHOUT_VECTORS or (families[0] == "grid" != families[1]):
        bound.append(NORMALIZE)
    dropped = {
        key: value for key in bound if not is_set(above, key) and (value := _value(below, key)) not in (None, False)
    }
    if not dropped:
        return dict(below), ()
    note = f"dropped, since it was set for env.id={before}: {as_overrides(dropped)}"
    sections = {key.partition(".")[0] for key in dropped}
    kept = {
        name: {key: value for key, value in below[name].items() if f"{name}.{key}" not in dropped} for name in sections
    }
    return {**below, **kept}, (note,)


def _value(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key in nested values; None if it is not set."""
    section, _, name = key.partition(".")
    inner = values.get(section)
    return inner.get(name) if isinstance(inner, Mapping) else None


def merge_layers(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two layers of a config. Sizes of the data belong to its path: another path drops them."""
    data, old = above.get("data"), below.get("data")
    if isinstance(data, Mapping) and isinstance(old, Mapping) and "path" in data:
        below = {**below, "data": {key: value for key, value in old.items() if key not in SIZES_OF_DATA}}
    return merge(below, above)

"""Load a config from packaged recipes, files, `extends`, presets and overrides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from millpond.config import puffer
from millpond.config.check import check, flatten, overlay, written
from millpond.config.code import Layer, NamedCode, named_code
from millpond.config.debug import DEBUG, debug_settings
from millpond.config.env_options import decides_its_agents, refuse_many_agents, refuse_wrong_agents
from millpond.config.for_env import (
    Chosen,
    ForEnvConfig,
    choose_for_policy,
    choose_sizes,
    is_set,
    read_section,
)
from millpond.config.recipe import EnvConfig, Recipe
from millpond.config.rules import ConfigError
from millpond.config.schedules import by_path
from millpond.config.sources import PlainSource, RecipeSource, for_other_env, merge_layers, read_any
from millpond.config.style import with_optimizer, with_style
from millpond.config.yaml import parse
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.kinds import KINDS

SECTION = "for_env"


@dataclass(frozen=True)
class Loaded:
    """A typed recipe, and where its values come from."""

    name: str
    recipe: Recipe
    values: dict[str, Any]  # merged from files, preset and overrides, without defaults
    defaulted: dict[str, Any] = field(default_factory=dict)  # keys of a PufferLib file with PufferLib's defaults
    puffer_version: str = ""  # of such a file
    ignored: tuple[str, ...] = ()  # keys of a PufferLib file without a meaning here
    notes: tuple[str, ...] = ()
    agents_open: bool = False  # the number of agents per env is not set
    changes: dict[str, Any] = field(default_factory=dict)  # keys set by preset and overrides
    code: tuple[NamedCode, ...] = ()  # everything that is imported to run it
    chosen: tuple[Chosen, ...] = ()  # settings that follow from the environment
    open_choices: tuple[Chosen, ...] = ()  # settings that may follow from it, if it is built only by a run


def load(
    recipe: RecipeSource,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    preset: str | None = None,
    agents_if_open: int | None = None,
    ask_env: Callable[[EnvConfig], EnvSpec] | None = None,
    approve: Callable[[tuple[NamedCode, ...]], None] | None = None,
    known_spec: Callable[[EnvConfig], EnvSpec | None] | None = None,
) -> Loaded:
    """Load a recipe with a preset and then overrides (`section.key=value`) applied.

    The recipe is a name, an env id, a file, a mapping or a typed one. The preset `debug` is derived from it and the
    overrides.
    If the number of agents per env is not set (a PufferLib file, an environment that decides it), `agents_if_open` is used.
    `ask_env` returns the spec of the environment, and may run its code to find out: with it, an open number of agents is
    filled in and a wrong one is refused. Without it, nothing that the config names is imported; `known_spec` then returns
    the spec if it is known without that. Settings that follow from the environment need one of the two.
    `approve` is called with the code that the config names before anything of it is imported, and raises to refuse it.
    """
    overrides = overrides if isinstance(overrides, Mapping) else tuple(overrides)
    layers = _layered(recipe, overrides, preset)
    if approve is not None:
        approve(layers.code)
    spec, actual = _ask(layers, ask_env, known_spec)
    if spec is not None and layers.follows_env:
        layers = _layered(recipe, overrides, preset, spec)
    source, values, dotted, agents_open = layers.source, layers.values, layers.dotted, layers.agents_open
    if actual is not None and layers.env is not None:
        refuse_many_agents(layers.env, str(values.get("kind")), actual)
    agents = agents_if_open if actual is None else actual
    if agents_open and agents is not None:
        dotted, agents_open = {**dotted, "env.num_agents": agents}, False
        values = overlay(values, {"env.num_agents": agents})
    for_policy = _for_policy(values, source.layers, dotted)
    values = overlay(values, {one.key: one.value for one in for_policy})
    sizes_chosen = _sizes(values, assumed=agents_open)
    values = overlay(values, {one.key: one.value for one in sizes_chosen})
    if preset == DEBUG:
        sizes = _debug(values, dotted)
        dotted, values = sizes | dotted, overlay(values, sizes)
    try:
        typed = _without_section(check(values, layers.name))
    except ConfigError as error:
        broken = [key for violation in error.violations for key in violation.keys]
        if not agents_open or not any(key.startswith(("trainer.", "env.num_agents")) for key in broken):
            raise
        raise MillpondError(f"{error}\nThis may be only because {_unknown_agents(source, values)}") from None
    if actual is not None:
        refuse_wrong_agents(typed, actual, layers.name)
    notes = (*source.notes, *layers.notes, *([puffer.AGENTS_OPEN] if agents_open and source.agents_open else []))
    last = {one.key: one for one in (*source.chosen, *for_policy, *sizes_chosen) if one.key not in dotted}
    return Loaded(
        layers.name,
        typed,
        {section: value for section, value in values.items() if section != SECTION},
        source.defaulted,
        source.puffer_version,
        source.ignored,
        notes,
        agents_open,
        dotted,
        layers.code,
        tuple(last.values()),
        source.open_choices,
    )


def _ask(
    layers: _Layers,
    ask_env: Callable[[EnvConfig], EnvSpec] | None,
    known_spec: Callable[[EnvConfig], EnvSpec | None] | None,
) -> tuple[EnvSpec | None, int | None]:
    """Return the spec of the environment if it is needed and may be asked for, and the number of agents if a run asked."""
    if layers.env is None:
        return None, None
    decides = decides_its_agents(layers.env)
    if ask_env is not None and (decides or layers.follows_env):
        spec = ask_env(layers.env)
        return spec, spec.num_agents if decides else None
    return known_spec(layers.env) if known_spec is not None and layers.follows_env else None, None


def _for_policy(values: Mapping[str, Any], layers: tuple[Layer, ...], dotted: Mapping[str, Any]) -> tuple[Chosen, ...]:
    """Return the settings that follow from the kind of policy, unless a layer above their section sets them."""
    recipe = _validated({key: value for key, value in values.items() if key != SECTION})
    if recipe is None or SECTION not in values:
        return ()
    number = max((number for number, (_, layer) in enumerate(layers) if SECTION in layer), default=-1)
    above = [layer for _, layer in layers[number + 1 :]]
    chosen = choose_for_policy(read_section(values), flatten(recipe))
    return tuple(one for one in chosen if one.key not in dotted and not any(is_set(layer, one.key) for layer in above))


def _sizes(values: Mapping[str, Any], *, assumed: bool) -> tuple[Chosen, ...]:
    """Return the sizes that follow from the number of agents; none if the values are not valid, which `check` reports.

    `assumed`: the number of agents is not known, and the reasons say so.
    """
    recipe = _validated({key: value for key, value in values.items() if key != SECTION})
    if recipe is None or SECTION not in values:
        return ()
    chosen = choose_sizes(read_section(values), flatten(recipe), written(recipe))
    return tuple(replace(one, reason=f"{one.reason} (assumed)") for one in chosen) if assumed else chosen


def _without_section(recipe: Recipe) -> Recipe:
    """Return the recipe without `for_env`, whose results it has."""
    return recipe.model_copy(update={SECTION: ForEnvConfig()}) if SECTION in recipe.model_fields_set else recipe


def leaves_agents_open(recipe: str | Path, overrides: Iterable[str], preset: str | None = None) -> bool:
    """True if neither the file, nor a preset, nor an override sets the number of agents per env."""
    return _layered(recipe, overrides, preset).agents_open


def env_of(
    recipe: RecipeSource,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    preset: str | None = None,
) -> EnvConfig | None:
    """Return the `env` section that `load` would return; None if it is not valid."""
    return _layered(recipe, overrides, preset).env


def code_of(
    recipe: RecipeSource,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    preset: str | None = None,
) -> tuple[NamedCode, ...]:
    """Return the code that a config names, without checking the config or importing anything."""
    return _layered(recipe, overrides, preset).code


@dataclass(frozen=True)
class _Layers:
    """A recipe with preset and overrides applied, before anything is checked."""

    name: str
    source: PlainSource
    values: dict[str, Any]
    dotted: dict[str, Any]  # keys set by preset and overrides
    env: EnvConfig | None  # None if it is not valid, which `check` reports with everything else
    agents_open: bool
    notes: tuple[str, ...]
    code: tuple[NamedCode, ...]

    @property
    def follows_env(self) -> bool:
        """True if settings follow from the environment."""
        return bool(self.source.chosen or self.source.open_choices)


def _layered(
    recipe: RecipeSource,
    overrides: Iterable[str] | Mapping[str, Any],
    preset: str | None,
    spec: EnvSpec | None = None,
) -> _Layers:
    """Apply the layers of a config in order. `spec` is that of its environment, if it is known."""
    name, source = read_any(recipe, spec)
    dotted = _preset(source.values, preset, name) if preset is not None else {}
    preset_layer: Layer = (_file_of_preset(source.layers, preset), with_style(by_path(overlay({}, dotted))))
    overriding = dict(overrides if isinstance(overrides, Mapping) else (parse_override(text) for text in overrides))
    nested = with_style(by_path(overlay({}, overriding)))
    below, notes = for_other_env(source.values, nested)
    source = source.without_choices(preset_layer[1]).without_choices(nested)
    values = with_optimizer(merge_layers(merge_layers(below, preset_layer[1]), nested))
    dotted |= overriding
    try:
        env = EnvConfig.model_validate(values.get("env", {}))
    except ValidationError:
        env = None
    agents_open = source.agents_open and "env.num_agents" not in dotted
    if env is not None and decides_its_agents(env):
        agents_open = agents_open or "num_agents" not in env.model_fields_set
    code = named_code(env, values, (*source.layers, preset_layer, (None, nested)))
    return _Layers(name, source, values, dotted, env, agents_open, () if source.agents_open else notes, code)


def _unknown_agents(source: PlainSource, values: Mapping[str, Any]) -> str:
    if source.agents_open:
        return puffer.AGENTS_OPEN
    env_id = values["env"]["id"]
    return (
        f"the number of agents per env is known only to {env_id} itself, and 1 is assumed: set env.num_agents=N or "
        f"--agents-from {env_id}"
    )


def parse_override(text: str) -> tuple[str, Any]:
    """Parse `trainer.batch_size=262_144` to key and value."""
    if not isinstance(text, str):  # from Python
        raise MillpondError(
            f"{text!r} is not an override; write 'section.key=value', such as 'trainer.batch_size=262_144'"
        )
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or any(not part for part in key.split(".")):
        raise MillpondError(f"{text!r} is not an override; write section.key=value, such as trainer.batch_size=262_144")
    return key, parse(value, f"the value of {key}")


def _file_of_preset(layers: tuple[Layer, ...], preset: str | None) -> Path | None:
    """Return the last file that adds to a preset; None if none does."""
    for file, values in reversed(layers):
        presets = values.get("presets")
        if file is not None and isinstance(presets, Mapping) and preset in {str(name) for name in presets}:
            return file
    return None


def _preset(values: Mapping[str, Any], preset: str, source: str) -> dict[str, Any]:
    """Return the overrides of a preset. `debug` always exists; a recipe may add overrides to it."""
    written = values.get("presets")
    presets = {str(name): overlay for name, overlay in written.items()} if isinstance(written, Mapping) else {}
    presets.setdefault(DEBUG, {})
    if not isinstance(presets.get(preset), Mapping):
        raise MillpondError(f"{source} has no preset {preset!r}; it has {', '.join(presets)}")
    return {str(key): value for key, value in presets[preset].items()}


def _debug(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of `debug` for these values; none if they are not valid, which `check` reports."""
    recipe = _validated(values)
    return {} if recipe is None else debug_settings(recipe, fixed)


def _validated(values: Mapping[str, Any]) -> Recipe | None:
    """Return the recipe of plain values, without rules between keys; None if they are not valid."""
    kind = values.get("kind")
    try:
        return (
            KINDS[kind].recipe.load().model_validate(dict(values)) if isinstance(kind, str) and kind in KINDS else None
        )
    except ValidationError:
        return None

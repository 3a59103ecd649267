"""The commands `plan` and `recipes`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from millpond.cli.complete import complete_key
from millpond.cli.options import (
    DEFAULT_RECIPE,
    DebugOption,
    JsonOption,
    OverridesArgument,
    PresetOption,
    RecipeArgument,
    preset_or_debug,
    recipe_and_overrides,
)
from millpond.cli.output import print_json, print_text
from millpond.config import Recipe, load, recipe_names
from millpond.config.check import flatten
from millpond.config.debug import DEBUG
from millpond.config.env_options import env_spec
from millpond.config.keys import keys, kinds_of, nearest_key, sections
from millpond.config.rules import show as show_value
from millpond.devices import DeviceError
from millpond.envs.families import extra_of, install_command, missing_extra
from millpond.errors import MillpondError
from millpond.formatting import figures, plural, sentence
from millpond.planner import Host
from millpond.planner import plan as make_plan
from millpond.planner.compare import scale as make_scale
from millpond.planner.compare import show_scale
from millpond.planner.estimate import read_measured
from millpond.planner.planned import show
from millpond.planner.reward import preset_batches


def plan(
    recipe: RecipeArgument = DEFAULT_RECIPE,
    overrides: OverridesArgument = None,
    json: JsonOption = False,
    scale: Annotated[
        str | None,
        typer.Option("--scale", metavar="KEY=a,b,c", help="Print a table of the effect of several values of one key."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="KEY",
            help="Print the meaning of a key, its limits, and its value here.",
            autocompletion=complete_key,
        ),
    ] = None,
    agents_from: Annotated[
        str | None,
        typer.Option(
            "--agents-from", metavar="ENV", help="Take the number of agents per env from an environment or a YAML file."
        ),
    ] = None,
    other_machine: Annotated[
        bool,
        typer.Option("--other-machine", help="Plan for another machine: ignore the GPU, cores and memory of this one."),
    ] = False,
    preset: PresetOption = None,
    debug: DebugOption = False,
) -> None:
    """Print exactly what a config will do, before it runs.

    Environments and groups, rows, minibatches, gradient updates, steps in both units, memory by field, and advice with
    the override that follows it. Nothing is trained and nothing heavy is imported.

    \b
      millpond plan metta
      millpond plan metta trainer.minibatch_size=8192
      millpond plan metta --scale env.num_agents=3,4,8,24
      millpond plan metta --explain trainer.batch_unit
      millpond plan metta device=cuda --other-machine   # for a machine with a GPU
      millpond plan path/to/puffer.ini --agents-from metta.yaml
    """
    recipe, override_list = recipe_and_overrides(recipe, overrides)
    preset = preset_or_debug(preset, debug)
    if explain is not None and (scale or json or agents_from):
        raise typer.BadParameter("--explain cannot be combined with --scale, --json or --agents-from")
    if scale is not None and agents_from:
        raise typer.BadParameter("--scale and --agents-from cannot be combined; set env.num_agents=N instead")
    if explain is not None:
        _print_explanation(recipe, override_list, preset, explain)
    elif scale is not None:
        _print_scale(recipe, override_list, preset, scale, other_machine, json)
    else:
        _print_plan(recipe, override_list, preset, agents_from, other_machine, json)


def recipes(json: JsonOption = False) -> None:
    """List the recipes: kinds, presets, and the extras that they need.

    \b
      millpond recipes
      millpond recipes --json
    """
    loaded = [(name, load(name).recipe) for name in recipe_names()]
    if json:
        print_json(
            [
                {
                    "name": name,
                    "kind": recipe.kind,
                    "description": recipe.description,
                    "expect": recipe.expect,
                    "presets": _presets(recipe),
                    "extra": _extra(recipe),
                    "extra_installed": missing_extra(recipe.env.id) is None,
                }
                for name, recipe in loaded
            ]
        )
        return
    lines = []
    for name, recipe in loaded:
        lines += [f"{name} ({recipe.kind}; presets: {', '.join(_presets(recipe))})", *sentence(recipe.description)]
        lines += sentence(f"To expect: {recipe.expect}") if recipe.expect else []
        extra = _extra(recipe)
        if extra is not None:
            missing = missing_extra(recipe.env.id) is not None
            lines += sentence(f"Needs the extra {extra}, which is {'not installed:' if missing else 'installed.'}")
            lines += [f"    {install_command(extra)}"] if missing else []  # on one line, to be copied
        lines += _lengths(name)
    print_text(
        "\n".join(
            [
                *lines,
                "",
                *sentence(
                    "`millpond plan NAME` prints what one will do. An env id such as gymnasium:CartPole-v1 is a recipe, too.",
                    0,
                ),
            ]
        )
    )


def _print_plan(
    recipe: str, overrides: list[str], preset: str | None, agents_from: str | None, other_machine: bool, as_json: bool
) -> None:
    """Print the plan as text or JSON, for this machine or for any other."""
    host, measured = (None, ()) if other_machine else (Host.here(), read_measured())
    with _suggesting_other_machine():
        planned = make_plan(recipe, overrides, preset=preset, agents_source=agents_from, host=host, measured=measured)
    if as_json:
        print_json(planned.to_json())
    else:
        print_text(show(planned))


def _print_scale(
    recipe: str, overrides: list[str], preset: str | None, text: str, other_machine: bool, as_json: bool
) -> None:
    """Print the table of several values of one key."""
    with _suggesting_other_machine():
        scaled = make_scale(recipe, overrides, text, preset, None if other_machine else Host.here())
    if as_json:
        print_json(scaled.to_json())
    else:
        print_text(show_scale(scaled))


@contextmanager
def _suggesting_other_machine() -> Iterator[None]:
    try:
        yield
    except DeviceError as error:
        raise DeviceError(f"{error}, or add --other-machine to plan for a machine that has it") from None


def _presets(recipe: Recipe) -> list[str]:
    return [DEBUG, *(name for name in recipe.presets if name != DEBUG)]


def _extra(recipe: Recipe) -> str | None:
    needed = extra_of(recipe.env.id)
    return needed[0] if needed else None


def _lengths(name: str) -> list[str]:
    """Return the lengths of a recipe with each of its presets, if it has others than `debug`."""
    batches = preset_batches(name)
    if "fast" not in batches:
        return []
    presets = "; ".join(f"--preset {preset}: {count:,}" for preset, count in batches.items() if preset is not None)
    note = " (fast shortens full, not the default)" if batches["fast"] > batches[None] else " (fast shortens full)"
    return sentence(f"{plural(batches[None], 'batch')}; {presets}{note}")


def _print_explanation(recipe: str, overrides: list[str], preset: str | None, name: str) -> None:
    """Print the meaning of a key, or the keys of a section."""
    typed = load(recipe, overrides, preset, known_spec=env_spec).recipe
    known, values = keys(typed.kind), flatten(typed)
    if name in known:
        key = known[name]
        rows = [
            ("value here", show_value(values[name]), recipe),
            ("default", show_value(key.default), ""),
            ("type", key.type, key.limits),
            ("recipes of kind", ", ".join(key.kinds), ""),
        ]
        lines = [name, *sentence(key.description), "", *figures(rows)]
    elif name in sections(typed.kind):
        below = [(key, show_value(values[key]), known[key].description) for key in known if key.startswith(f"{name}.")]
        lines = [name, *sentence(sections(typed.kind)[name]), ""]
        for key_name, value, description in below:
            lines += [f"  {key_name} = {value}", *sentence(description, 6)]
    else:
        raise MillpondError(_unknown(name, typed.kind))
    print_text("\n".join(lines))


def _unknown(name: str, kind: str) -> str:
    others = kinds_of(name)
    if others:
        return f"{name} is a key of kind {others[0]}; this recipe is of kind {kind}"
    nearest = nearest_key(name, kind)
    hint = (
        f"did you mean {nearest}?"
        if nearest
        else f"sections are {', '.join(s for s in sections(kind) if '.' not in s)}"
    )
    return f"{name} is not a known key; {hint}"

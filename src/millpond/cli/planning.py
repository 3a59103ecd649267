"""What `plan`, `compare` and `recipes` print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millpond.cli.output import print_json, print_text
from millpond.config import Recipe, load, recipe_names
from millpond.config.check import flatten
from millpond.config.debug import DEBUG
from millpond.config.keys import keys, kinds_of, nearest_key, sections
from millpond.config.load import leaves_agents_open
from millpond.config.violations import show as show_value
from millpond.envs.families import family_of, install_command, missing_extra
from millpond.errors import MillpondError
from millpond.planner import Host, plan
from millpond.planner.compare import compare
from millpond.planner.estimate import read_measured
from millpond.planner.host import DeviceError
from millpond.planner.lines import figures, sentence
from millpond.planner.reward import preset_batches
from millpond.planner.scale import scale, show_scale
from millpond.planner.text import show, show_compare
from millpond.plurals import plural


def print_plan(
    recipe: str, overrides: list[str], preset: str | None, agents_from: str | None, other_machine: bool, as_json: bool
) -> None:
    """Print the plan, as text or JSON: on this machine, or on any other."""
    host, measured = (None, ()) if other_machine else (Host.here(), read_measured())
    with _saying_how_to_plan_elsewhere():
        planned = plan(recipe, overrides, preset=preset, agents_source=agents_from, host=host, measured=measured)
    if as_json:
        print_json(planned.to_json())
    else:
        print_text(show(planned))


def print_scale(
    recipe: str, overrides: list[str], preset: str | None, text: str, other_machine: bool, as_json: bool
) -> None:
    """Print the table of several values of one key."""
    with _saying_how_to_plan_elsewhere():
        scaled = scale(recipe, overrides, text, preset, None if other_machine else Host.here())
    if as_json:
        print_json(scaled.to_json())
    else:
        print_text(show_scale(scaled))


@contextmanager
def _saying_how_to_plan_elsewhere() -> Iterator[None]:
    try:
        yield
    except DeviceError as error:
        raise DeviceError(f"{error}, or add --other-machine to plan for a machine that has it") from None


def print_comparison(
    first: str, second: str, overrides: list[str], preset: str | None, agents_from: str | None, as_json: bool
) -> None:
    """Two configs side by side. An override that begins with `a:` or `b:` is for that side alone."""
    for name in (first, second):
        if "=" in name:
            raise MillpondError(f"{name!r} is an override; name two recipes first, such as puffer-metta metta")
    sides = []
    for side, name in (("a:", first), ("b:", second)):
        other = "b:" if side == "a:" else "a:"
        own = [text.removeprefix(side) for text in overrides if not text.startswith(other)]
        asks = agents_from is not None and leaves_agents_open(name, own, preset)
        sides.append(plan(name, own, preset=preset, agents_source=agents_from if asks else None))
    comparison = compare(*sides)
    if as_json:
        print_json(comparison.to_json())
    else:
        print_text(show_compare(comparison))


def print_recipes(as_json: bool) -> None:
    """Print every packaged recipe: kind, presets, the extra it needs and whether that is installed."""
    loaded = [(name, load(name).recipe) for name in recipe_names()]
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "kind": recipe.kind,
                    "description": recipe.description,
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
        extra = _extra(recipe)
        if extra is not None:
            missing = missing_extra(recipe.env.id) is not None
            lines += sentence(f"Needs the extra {extra}, which is {'not installed:' if missing else 'installed.'}")
            lines += [f"    {install_command(extra)}"] if missing else []  # unbroken, to be copied
        lines += _lengths(name)
    print_text("\n".join([*lines, "", *sentence("`millpond plan NAME` says what one of them will do.", 0)]))


def _presets(recipe: Recipe) -> list[str]:
    return [DEBUG, *(name for name in recipe.presets if name != DEBUG)]


def _extra(recipe: Recipe) -> str | None:
    family = family_of(recipe.env.id)
    return family.extra if family else None


def _lengths(name: str) -> list[str]:
    """Lengths of a recipe with each of its presets, where these differ in more than `debug`."""
    batches = preset_batches(name)
    if "fast" not in batches:
        return []
    presets = "; ".join(f"--preset {preset}: {count:,}" for preset, count in batches.items() if preset is not None)
    note = " (fast shortens full, not the default)" if batches["fast"] > batches[None] else " (fast shortens full)"
    return sentence(f"{plural(batches[None], 'batch')}; {presets}{note}")


def print_explanation(recipe: str, overrides: list[str], preset: str | None, name: str) -> None:
    """What a key means, or which keys a section has."""
    typed = load(recipe, overrides, preset).recipe
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

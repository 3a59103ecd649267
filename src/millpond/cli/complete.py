"""Shell completion: recipes, env ids, files, runs, presets, config keys with their defaults, metrics.

Called by the shell at each TAB, through typer. Nothing heavy is imported, except Gymnasium's registry for its ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from millpond.config import load, recipe_names
from millpond.config.files import SUFFIXES, is_recipe
from millpond.config.keys import keys
from millpond.config.rules import show as show_value
from millpond.errors import MillpondError

DEFAULT = "grid"  # the recipe of commands that name none
BUILT_IN = ("grid", "mettagrid", "recall", "truncation")
FAMILIES = ("gymnasium:", "atari:", "minatar:", "pettingzoo:")


def env_choices(words: Sequence[str], incomplete: str) -> list[str]:
    """Return env ids: their families first, and the members of one after its colon, where Bash begins a new word."""
    family = f"{words[-2]}:" if len(words) > 1 and words[-1] == ":" else ""
    if not family and ":" not in incomplete:
        return _starting(incomplete, [*BUILT_IN, *FAMILIES])
    from millpond.envs.registry import registered_ids

    return [one.removeprefix(family) for one in _starting(f"{family}{incomplete}", registered_ids())]


def recipe_choices(words: Sequence[str], incomplete: str) -> list[str]:
    """Return recipes, recipe files and env ids."""
    if ":" in incomplete or words[-1:] == [":"]:
        return env_choices(words, incomplete)
    return [*_starting(incomplete, [*recipe_names(), *FAMILIES]), *_files(incomplete)]


def override_choices(words: Sequence[str], incomplete: str) -> list[str]:
    """Return the keys of the recipe before them; the only one that fits with its value, too, so that no space follows it."""
    if words[-1:] == [":"]:
        return env_choices(words, incomplete)
    settings = keys(_kind(words))
    prefix = next((side for side in ("a:", "b:") if incomplete.startswith(side)), "")
    fitting = _starting(incomplete.removeprefix(prefix), settings)
    if len(fitting) != 1:
        return [f"{prefix}{key}=" for key in fitting]
    (key,) = fitting
    return [f"{prefix}{key}=", f"{prefix}{key}={show_value(settings[key].default)}"]


def complete_env(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of an environment."""
    return env_choices(_words(context), incomplete)


def complete_override(context: typer.Context, incomplete: str) -> list[str]:
    """Complete an override of the recipe that is named before it."""
    return override_choices(_words(context), incomplete)


def complete_recipe(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the first argument: a recipe, or an override of the default one."""
    words = _words(context)
    return [*recipe_choices(words, incomplete), *(override_choices(words, incomplete) if "." in incomplete else ())]


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a run; the one that changed last is first."""
    root = _root(context)
    found = [(folder.stat().st_mtime, folder.name) for folder in root.glob("*") if (folder / "host.json").is_file()]
    return _starting(incomplete, [name for _, name in sorted(found, reverse=True)])


def complete_compared(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a run, a recipe, or an override."""
    return [*complete_run(context, incomplete), *complete_recipe(context, incomplete)]


def complete_preset(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a preset of the recipe."""
    try:
        presets = load(next(filter(is_recipe, _words(context)), DEFAULT)).recipe.presets
    except MillpondError:
        presets = {}
    return _starting(incomplete, dict.fromkeys(["debug", *presets]))


def complete_key(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a key of the recipe."""
    return _starting(incomplete, keys(_kind(_words(context))))


def complete_column(incomplete: str) -> list[str]:
    """Complete a column of the list of runs."""
    from millpond.store.query import FIELDS

    return _starting(incomplete, FIELDS)


def complete_state(incomplete: str) -> list[str]:
    """Complete a state of runs, also after a comma."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{one}" for one in _starting(last, ("running", "finished", "stopped", "failed"))]


def complete_metric(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a metric of the newest record of the three newest runs; which are named before is not known here."""
    from millpond.record import last_record

    found = dict[str, None]()
    for name in complete_run(context, "")[:3]:
        try:
            found |= dict.fromkeys(last_record(_root(context) / name / "metrics.jsonl") or ())
        except (MillpondError, OSError):
            continue
    return _starting(incomplete, found)


def _words(context: typer.Context) -> list[str]:
    """Return the arguments before the one that is completed."""
    lists = (value if isinstance(value, list | tuple) else [value] for value in context.params.values())
    return [word for words in lists for word in words if isinstance(word, str)]


def _root(context: typer.Context) -> Path:
    return Path(str(context.params.get("run_dir") or "runs"))


def _kind(words: Iterable[str]) -> str:
    """Return the kind of the recipe among the words; that of the default recipe if there is none."""
    try:
        return load(next(filter(is_recipe, words), DEFAULT)).recipe.kind
    except MillpondError:
        return load(DEFAULT).recipe.kind  # a file that is no valid recipe


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _files(incomplete: str) -> list[str]:
    head, slash, _ = incomplete.rpartition("/")
    paths = sorted(Path(f"{head}{slash}" or ".").glob("*")) if incomplete else []
    fitting = (path for path in paths if path.is_dir() or path.suffix in SUFFIXES)
    return _starting(incomplete, [f"{head}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in fitting])

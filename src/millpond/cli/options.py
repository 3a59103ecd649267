"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond.cli.complete import DEFAULT, complete_override, complete_preset, complete_recipe, complete_run

DEFAULT_RECIPE = DEFAULT

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe's name, an env id, a YAML file, or a PufferLib .ini.",
        autocompletion=complete_recipe,
    ),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Overrides, such as trainer.batch_size=262_144.",
        autocompletion=complete_override,
    ),
]
PresetOption = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        autocompletion=complete_preset,
        help="Apply one of the recipe's presets before the overrides; `millpond recipes` lists them. debug: one of every "
        "level. For reward recipes, full: the length in the documents, and fast: a shortened full, which is longer than "
        "the default of `reward`.",
    ),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Tiny sizes: one of every level, in seconds.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Name or folder of a run.", autocompletion=complete_run)
]
RunDirOption = Annotated[str, typer.Option("--run-dir", metavar="FOLDER", help="Folder that contains the run folders.")]
BestOption = Annotated[bool, typer.Option("--best", help="Use the best checkpoint instead of the newest.")]
EpisodesArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="A file of episodes (.hdf5, .h5, .npz), a folder, a lake, or a name: pendulum."
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import code that a recipe file or run folder names without asking; see SECURITY.md for the rules.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def recipe_and_overrides(recipe: str, overrides: list[str] | None) -> tuple[str, list[str]]:
    """Return recipe and overrides; if the first argument is already an override, the recipe is the default one."""
    if "=" in recipe:
        return DEFAULT_RECIPE, [recipe, *(overrides or [])]
    return recipe, list(overrides or [])


def trust_or_ask(trust: bool) -> bool | None:
    """Return what --trust means for `millpond.trust.require_trust`: without it, the user is asked."""
    return True if trust else None


def preset_or_debug(preset: str | None, debug: bool) -> str | None:
    """Return the preset that --preset and --debug name together."""
    if debug and preset not in (None, "debug"):
        raise typer.BadParameter(f"--debug means --preset debug and cannot be combined with --preset {preset}")
    return "debug" if debug else preset

"""The command `experiment`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.options import JsonOption, OverridesArgument, TrustOption, trust_or_ask
from millpond.cli.output import print_json, print_text
from millpond.errors import MillpondError
from millpond.formatting import printable, sentence

FILES = "results.json, table.txt, page.md, curves.png, profiles.png"


def experiment(
    name: Annotated[
        str, typer.Argument(metavar="FILE", help="A YAML file, or the name of a packaged one: mixture-vs-single.")
    ],
    overrides: OverridesArgument = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Runs per method and world.")] = None,
    worlds: Annotated[
        str | None, typer.Option("--worlds", "--games", help="Env ids or names of the file, separated by commas.")
    ] = None,
    methods: Annotated[str | None, typer.Option("--methods", help="Methods, separated by commas.")] = None,
    recipe: Annotated[str | None, typer.Option("--recipe", help="Recipe instead of that of the file.")] = None,
    episodes: Annotated[int | None, typer.Option("--episodes", min=1, help="Episodes that score a run.")] = None,
    frames: Annotated[
        int | None, typer.Option("--frames", min=1, help="Frames per run, if the file has a mixture_budget.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Mixture rounds per run, if the file has a mixture_budget.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", help="Folder for runs and results; an existing one is continued. Default: experiments/NAME."
        ),
    ] = None,
    at_once: Annotated[
        int | None, typer.Option("--at-once", min=1, help="Parallel runs; default: one per core.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Run nothing; report the finished runs.")] = False,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Compare methods over worlds and seeds, with intervals and tests.

    A file names methods (recipes, or overrides of one), worlds and seeds. Before it starts, the command says how large a
    difference so many runs can show; at the end it prints a table and a conclusion, and writes a page with curves and
    performance profiles. Stop it at any time: the same command continues.

    \b
      millpond experiment mixture-vs-single --frames 262144 --seeds 2
      millpond experiment mixture-vs-single --worlds minatar:breakout --methods mixture,single
      millpond experiment experiment.yaml trainer.total_timesteps=200_000
      millpond experiment mixture-vs-single --report
    """
    from millpond.cpu import usable_cores
    from millpond.experiments.analysis import show
    from millpond.experiments.file import read_experiment
    from millpond.experiments.run import SETTINGS, run_experiment
    from millpond.experiments.run import report as report_experiment
    from millpond.experiments.statistics import show_detectable

    chosen = read_experiment(
        name,
        overrides or (),
        seeds=seeds,
        worlds=_names(worlds),
        methods=_names(methods),
        episodes=episodes,
        recipe=recipe,
        budget={"frames": frames, "rounds": rounds},
    )
    place = folder if folder is not None else Path("experiments") / chosen.name
    if report:
        if not (place / SETTINGS).exists():
            raise MillpondError(f"{place} contains no experiment; leave --report out to run one")
        answer = report_experiment(place, chosen, trust=trust_or_ask(trust))
    else:
        if not json:
            text = f"{show_detectable(chosen.file.seeds, len(chosen.worlds))}."
            print_text("\n".join(sentence(text[:1].upper() + text[1:], 0)))
        answer = run_experiment(
            place,
            chosen,
            at_once=at_once or usable_cores(),
            say=lambda line: print(printable(line), file=sys.stderr if json else sys.stdout, flush=True),
            trust=trust_or_ask(trust),
        )
    if json:
        print_json(answer.to_json())
    else:
        print_text("\n".join([*show(answer), "", f"written to {place}: {FILES}"]))


def _names(text: str | None) -> list[str] | None:
    """Return the names in a list with commas; None if the option was not given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]

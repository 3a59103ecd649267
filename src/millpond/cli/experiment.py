"""The command `experiment`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.options import JsonOption, OverridesArgument, TrustOption, trust_or_ask
from millpond.cli.output import print_json, print_text
from millpond.errors import MillpondError
from millpond.formatting import printable

experiments = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Answer questions that need many runs.")


@experiments.callback()
def _top() -> None: ...


@experiments.command()
def mixture_vs_single(
    overrides: OverridesArgument = None,
    frames: Annotated[int, typer.Option("--frames", min=1, help="Frames per run, of all its agents.")] = 1_048_576,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs per method and game.")] = 3,
    games: Annotated[
        str, typer.Option("--games", help="Environments, separated by commas.")
    ] = "minatar:breakout,minatar:asterix",
    methods: Annotated[
        str, typer.Option("--methods", help="Any of mixture, single, single-resets, no-resets, live.")
    ] = "mixture,single,single-resets,no-resets",
    recipe: Annotated[
        str, typer.Option("--recipe", help="The mixture recipe that all methods are based on.")
    ] = "mixture",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds, and so resets, per run.")] = 8,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Greedy episodes that evaluate a run.")] = 100,
    folder: Annotated[
        Path, typer.Option("--folder", help="Folder for runs and results; an existing one is continued.")
    ] = Path("experiments/mixture-vs-single"),
    at_once: Annotated[
        int | None, typer.Option("--at-once", min=1, help="Parallel runs; default: one per core.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Run nothing; report the finished runs.")] = False,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Compare a mixture with a single agent at the same number of frames.

    Runs the mixture, one agent alone, one agent with the same resets, and the mixture without resets; prints a table with
    intervals, curves, and a one-sentence answer. Stop it at any time: the same command continues.

    \b
      millpond experiment mixture-vs-single --frames 262144 --seeds 2
      millpond experiment mixture-vs-single --games minatar:breakout --methods mixture,single
      millpond experiment mixture-vs-single --report
    """
    from millpond.cpu import usable_cores
    from millpond.experiments.mixture_vs_single import ExperimentSettings
    from millpond.experiments.results import show
    from millpond.experiments.run import report as report_experiment
    from millpond.experiments.run import run_experiment

    settings = ExperimentSettings(
        frames=frames,
        seeds=seeds,
        games=tuple(name.strip() for name in games.split(",") if name.strip()),
        methods=tuple(name.strip() for name in methods.split(",") if name.strip()),
        recipe=recipe,
        rounds=rounds,
        episodes=episodes,
        overrides=tuple(overrides or ()),
    )
    if report:
        if not (folder / "experiment.json").exists():
            raise MillpondError(f"{folder} contains no experiment; leave --report out to run one")
        answer = report_experiment(folder, settings, trust=trust_or_ask(trust))
    else:
        answer = run_experiment(
            folder,
            settings,
            at_once=at_once or usable_cores(),
            say=lambda line: print(printable(line), flush=True),
            trust=trust_or_ask(trust),
        )
    if json:
        print_json(answer.to_json())
    else:
        files = f"written to {folder}: results.json, table.txt, curves.png, .svg, .json"
        print_text("\n".join([*show(answer), "", files]))

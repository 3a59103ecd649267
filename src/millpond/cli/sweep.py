"""The command `sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.complete import complete_override, complete_recipe
from millpond.cli.options import JsonOption, TrustOption, trust_or_ask
from millpond.cli.output import print_json
from millpond.formatting import printable, printable_lines


def sweep(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe's name, an env id, a YAML file, or a PufferLib .ini.",
            autocompletion=complete_recipe,
            show_default=False,
        ),
    ] = None,
    space: Annotated[
        Path | None, typer.Argument(metavar="SPACE.yaml", help="The keys to search.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides of all runs.", autocompletion=complete_override),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Points to try.")] = 20,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs per point.")] = 3,
    final_seeds: Annotated[
        int | None,
        typer.Option("--final-seeds", min=0, help="Fresh seeds for the winner; default: as many as --seeds."),
    ] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", min=0.0, help="Hours for everything, without pauses; default: no limit.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Trials at once, one core each; default: one per core.")
    ] = None,
    sampler: Annotated[str, typer.Option("--sampler", help="tpe, cmaes or random, of Optuna.")] = "tpe",
    objectives: Annotated[
        str, typer.Option("--objectives", help="return; return,hours for the Pareto front of both; or a metric.")
    ] = "return",
    minimize: Annotated[bool, typer.Option("--minimize", help="Lower values of the metric are better.")] = False,
    rungs: Annotated[
        int,
        typer.Option(
            "--rungs",
            min=1,
            max=8,
            help="Checks of a trial: 3 are after 1/4, 1/2 and all of its runs; 1 stops none early.",
        ),
    ] = 3,
    random_seed: Annotated[int, typer.Option("--random-seed", min=0, help="Seed of the search.")] = 0,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", "--run-dir", help="Folder of the sweep; default: sweeps/RECIPE.SPACE."),
    ] = None,
    status: Annotated[
        Path | None, typer.Option("--status", metavar="FOLDER", help="Run nothing; show how far a sweep is.")
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Search over the settings of a recipe, with several seeds per point.

    SPACE.yaml names config keys: lists of choices, {range: [low, high]}, {log: ...}, {int: ...}, {log_int: ...}, with step
    and if. Points that cannot run are refused beforehand; poor ones are stopped early; the best is trained again on
    fresh seeds. Stop or kill it at any time: the same command continues, and several machines can share the folder.

    \b
      millpond sweep gymnasium:LunarLander-v3 space.yaml --trials 12 --seeds 3
      millpond sweep grid space.yaml trainer.total_timesteps=1e6 --hours 2 --workers 2
      millpond sweep grid space.yaml --objectives return,hours
      millpond sweep --status sweeps/grid.space
    """
    from millpond.cpu import usable_cores
    from millpond.sweep.folder import SweepFolder
    from millpond.sweep.results import read_results, show_results, show_status
    from millpond.sweep.run import default_folder, make_settings, run_sweep
    from millpond.sweep.space import read_space
    from millpond.sweep.study import require_optuna

    if status is not None:
        there = SweepFolder(status)
        if json:
            print_json(read_results(there))
        else:
            print(printable_lines(show_status(there)))
        return
    if recipe is None or space is None:
        raise typer.BadParameter("name a RECIPE and a SPACE.yaml, or a folder with --status")
    require_optuna()
    settings, _ = make_settings(
        recipe,
        read_space(space),
        overrides or [],
        source=str(space),
        trials=trials,
        seeds=seeds,
        final_seeds=final_seeds,
        hours=hours,
        objectives=objectives,
        minimize=minimize,
        sampler=sampler,
        rungs=rungs,
        random_seed=random_seed,
    )
    place = folder if folder is not None else default_folder(recipe, space)

    def say(line: str) -> None:
        print(printable(line), flush=True)

    results = run_sweep(
        SweepFolder(place),
        settings,
        workers=workers or usable_cores(),
        say=(lambda line: None) if json else say,
        trust=trust_or_ask(trust),
    )
    if json:
        print_json(results)
    else:
        written = f"written to {place}: table.txt, results.json, best.yaml"
        print(printable_lines("\n".join(["", *show_results(results), "", written])))

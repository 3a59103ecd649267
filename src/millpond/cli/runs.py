"""The commands `runs` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millpond.cli.complete import complete_column, complete_compared, complete_metric, complete_run, complete_state
from millpond.cli.options import JsonOption, PresetOption, RunDirOption
from millpond.cli.output import print_json, print_problem, print_text
from millpond.config.check import flatten_mapping
from millpond.config.load import leaves_agents_open
from millpond.errors import MillpondError
from millpond.formatting import plural
from millpond.planner import plan as make_plan
from millpond.planner.compare import compare as compare_plans
from millpond.planner.compare import show_compare
from millpond.planner.planned import Planned


def runs(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="List only runs whose names contain this.", autocompletion=complete_run
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            autocompletion=complete_column,
            help="return, best, steps, speed, age, state, name, or any metric; highest first. Default: newest last.",
        ),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE,...",
            help="Any of running, finished, stopped, failed.",
            autocompletion=complete_state,
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="A column, metric or setting compared with a value: 'return>0.5', 'age<2h', 'env.id=grid'. Repeatable.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="List only so many, the first ones.")] = None,
    run_dir: RunDirOption = "runs",
    json: JsonOption = False,
) -> None:
    """List the runs: return, best return, steps, speed, state, age.

    RETURN is that of the newest evaluation, or of training if there was none; BEST is the best evaluation's. A run that
    learns a reward from recorded episodes has no return: its figure is marked and named below the table. STEPS are agent
    steps, or updates (upd) if no agent acts; SPEED is the mean over the whole run. AGE is the time since the state last
    changed. Causes that a run warned about are below it; its report says what to try.

    \b
      millpond runs
      millpond runs --sort return --limit 10        # the best first
      millpond runs grid --state finished,stopped   # with grid in the name
      millpond runs --where 'return>0.5' --where 'ppo.learning_rate=1e-3' --json
    """
    from millpond.config.yaml import read_mapping
    from millpond.store import choose_runs, list_runs, show_runs, sort_runs

    def settings(folder: Path) -> dict[str, Any]:
        try:
            return flatten_mapping(read_mapping(folder / "config.yaml"))
        except MillpondError:
            return {}  # the list shows that the run's config cannot be read

    everything = list_runs(Path(run_dir))
    states = [name.strip() for name in (state or "").split(",") if name.strip()]
    rows = choose_runs(everything, texts=texts or (), states=states, where=where or (), settings=settings)
    if sort is not None:
        rows = sort_runs(rows, sort, reverse=reverse)
    elif reverse:
        rows.reverse()
    rows = rows[:limit]
    if json:
        print_json([row.to_json() for row in rows])
    elif everything and not rows:
        print_text(f"none of {plural(len(everything), 'run')} fits")
    else:
        print_text(show_runs(rows))


def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]... [[a:|b:]KEY=VALUE]...",
            autocompletion=complete_compared,
            help="Two or more runs, or two recipes or files, then overrides of recipes: for both, or for one as "
            "a:key=value, b:key=value.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Metric of runs to compare; default: their return.",
            autocompletion=complete_metric,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE.png", help="Where to draw the curves of runs; default: compare.png in --run-dir."
        ),
    ] = None,
    agents_from: Annotated[
        str | None,
        typer.Option(
            "--agents-from",
            metavar="ENV",
            help="Environment or YAML file with the number of agents, if a config has none.",
        ),
    ] = None,
    preset: PresetOption = None,
    run_dir: RunDirOption = "runs",
    json: JsonOption = False,
) -> None:
    """Compare runs, or two configs before they run.

    Runs: a picture with their curves, a table with final and best return, steps, time and speed, and the settings that
    differ. Runs that differ in nothing but their seed are one line, with the 95% interval of their mean.

    Recipes: a table, what differs and why it matters, and what each is better for. Without arguments: PufferLib's settings
    for Metta against Metta's own. A name that is both a recipe and a run is the recipe; runs/NAME is the run.

    \b
      millpond compare grid-1 grid-2 grid-3              # three runs
      millpond compare grid-1 grid-2 --metric entropy --picture entropy.png
      millpond compare metta mine.yaml                   # two configs
      millpond compare metta metta b:trainer.minibatch_size=8192
      millpond compare puffer.ini metta --agents-from metta.yaml
    """
    given = [name for name in names or () if "=" not in name]
    overrides = [name for name in names or () if "=" in name]
    if not given and overrides:
        raise MillpondError(f"{overrides[0]!r} is an override; name two recipes first, such as puffer-metta metta")
    given = given or ["puffer-metta", "metta"]
    folders = _runs_among(given, Path(run_dir))
    if folders is None:
        if metric is not None or picture is not None:
            raise typer.BadParameter("--metric and --picture are for runs; recipes have no curves yet")
        _compare_recipes(given, overrides, agents_from, preset, json)
    else:
        if overrides or agents_from or preset:
            raise typer.BadParameter("overrides, --preset and --agents-from are for recipes; runs have their settings")
        _compare_runs(folders, metric, picture or Path(run_dir) / "compare.png", json)


def _runs_among(names: list[str], root: Path) -> list[Path] | None:
    """Return the folders of runs; None if the names are recipes. Raises if they are both."""
    from millpond.config.files import is_recipe
    from millpond.store import RunError, find_run

    if all(map(is_recipe, names)):
        return None
    folders, others = [], []
    for name in names:
        try:
            folders.append(find_run(root, name))
        except RunError:
            others.append(name)
    if not folders and len(names) == 2:
        return None  # with an error that suggests recipes
    unknown = [name for name in others if not is_recipe(name)]
    if unknown:
        find_run(root, unknown[0])  # raises, and lists the runs
    if others:
        example = folders[0] / "config.yaml"
        raise MillpondError(
            f"{others[0]!r} is a recipe and {folders[0].name!r} is a run; compare runs with runs or recipes with recipes. "
            f"The config of a run is a recipe: {example}"
        )
    if len(folders) < 2:
        raise MillpondError(f"{names[0]!r} is one run; name at least two")
    if len(set(folders)) < len(folders):
        raise MillpondError("a run is named twice; name different ones")
    return folders


def _compare_recipes(
    names: list[str], overrides: list[str], agents_from: str | None, preset: str | None, as_json: bool
) -> None:
    if len(names) != 2:
        raise MillpondError(f"{plural(len(names), 'recipe')} cannot be compared; name two (of runs, two or more)")
    plans: list[Planned] = []
    for prefix, other_prefix, name in (("a:", "b:", names[0]), ("b:", "a:", names[1])):
        own = [text.removeprefix(prefix) for text in overrides if not text.startswith(other_prefix)]
        needs_agents = agents_from is not None and leaves_agents_open(name, own, preset)
        plans.append(make_plan(name, own, preset=preset, agents_source=agents_from if needs_agents else None))
    comparison = compare_plans(*plans)
    if as_json:
        print_json(comparison.to_json())
    else:
        print_text(show_compare(comparison))


def _compare_runs(folders: list[Path], metric: str | None, picture: Path, as_json: bool) -> None:
    from millpond.report.comparison import compare_runs, show_runs_compared
    from millpond.report.comparison_picture import draw_curves

    comparison = compare_runs(folders, metric)
    for problem in comparison.problems:
        print_problem(f"warning: {problem}")
    drawn = draw_curves(comparison, picture)
    if as_json:
        print_json({**comparison.to_json(), "picture": str(picture) if drawn else None})
        return
    print_text(show_runs_compared(comparison))
    print_text(f"\nPicture: {picture}" if drawn else "\nNo picture: there is no curve yet")

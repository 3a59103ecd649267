"""The commands `train`, `eval` and `report`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millpond.cli import without_collections
from millpond.cli.complete import complete_run
from millpond.cli.options import (
    DEFAULT_RECIPE,
    BestOption,
    DebugOption,
    JsonOption,
    OverridesArgument,
    PresetOption,
    RecipeArgument,
    RunArgument,
    RunDirOption,
    TrustOption,
    preset_or_debug,
    recipe_and_overrides,
    trust_or_ask,
)
from millpond.cli.output import print_json, print_problem, print_text, progress
from millpond.formatting import figures, printable, sentence

if TYPE_CHECKING:
    from millpond.config import Loaded
    from millpond.store import Run
    from millpond.trainers.common.policy import LoadedPolicy


def train(
    recipe: RecipeArgument = DEFAULT_RECIPE,
    overrides: OverridesArgument = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="NAME", help="Name of the run and its folder; default: the recipe's name and a number."
        ),
    ] = None,
    preset: PresetOption = None,
    debug: DebugOption = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete an existing run of this name and start again.")
    ] = False,
    weights_from: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="RUN", help="Start with the weights of another run.", autocompletion=complete_run
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Continue a run exactly from its last checkpoint; it has its config, sizes and preset.",
            autocompletion=complete_run,
        ),
    ] = None,
    verbose: Annotated[
        bool | None,
        typer.Option(
            "--verbose/--no-verbose", help="Log every metric, at every level, instead of a display or short lines."
        ),
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Train a recipe, or continue a run.

    A terminal shows a live display; otherwise there is a short line every log.console_seconds seconds.

    Ctrl-C finishes the step, saves, and prints how to resume; a second Ctrl-C stops at once. A closed terminal
    saves and stops, too, unless the run was started with nohup. The run folder, runs/NAME, holds everything: config,
    plan, host, metrics, TensorBoard files, checkpoints, report.

    A recipe file or run folder may name Python code, as in env.id: package.module:make_env. You are asked before it is
    imported, unless it is in your current project or you started the run here. Without a terminal, --trust is needed.

    \b
      millpond train                                # the built-in environment, minutes on two cores
      millpond train gymnasium:CartPole-v1          # any environment, with the recipe of its family
      millpond train my_env:make_env                # a function in my_env.py that returns an env
      millpond train grid ppo.learning_rate=1e-3 --run faster
      millpond train metta --debug                  # one of every level
      millpond train --resume faster trainer.total_timesteps=8e6
      torchrun --nproc-per-node=2 -m -- millpond train --run two     # sizes are totals over all ranks
      torchrun --nproc-per-node=4 -m -- millpond train mixture       # one rank per agent; mind the --
    """
    recipe, override_list = recipe_and_overrides(recipe, overrides)
    override_list += [] if verbose is None else [f"log.verbose={verbose}"]
    if resume is not None:
        if run is not None or overwrite or weights_from is not None or preset is not None or debug:
            raise typer.BadParameter("--resume takes overrides only: a run keeps its name, recipe and preset")
        if recipe != DEFAULT_RECIPE:
            raise typer.BadParameter(f"--resume {resume} has its own recipe; leave {recipe!r} out")
    with ExitStack() as setup:
        setup.enter_context(without_collections())
        _train(
            recipe,
            override_list,
            preset=preset_or_debug(preset, debug),
            run_name=run,
            overwrite=overwrite,
            weights_from=weights_from,
            resume=resume,
            trust=trust_or_ask(trust),
            setup=setup,
        )


def _train(
    recipe: str,
    overrides: list[str],
    *,
    preset: str | None,
    run_name: str | None,
    overwrite: bool,
    weights_from: str | None,
    resume: str | None,
    trust: bool | None,
    setup: ExitStack,
) -> None:
    """Train or resume; `setup` is closed as soon as the trainer is built."""
    from millpond.distributed import join
    from millpond.planner import plan_loaded
    from millpond.planner.planned import show_alerts, show_choices
    from millpond.record import captured_output
    from millpond.store import Run
    from millpond.trainers.common.session import (
        begin_on_all_ranks,
        load_to_run,
        make_trainer,
        require_trainer,
        resume_run,
        setting_up,
        start_run,
    )

    cwd = Path.cwd()  # an env may change it, even when it is only asked for its agents
    recorded = None
    with join() as ranks:

        def begin() -> tuple[Loaded, Run]:
            nonlocal recorded
            if resume is not None:
                return resume_run(resume, overrides, ranks=ranks.count, trust=trust)
            loaded = load_to_run(recipe, overrides, preset, trust=trust)
            recorded = require_trainer(loaded)
            source = Run.open(Path(loaded.recipe.run_dir), weights_from) if weights_from is not None else None
            return loaded, start_run(
                loaded,
                run_name,
                overwrite=overwrite,
                ranks=ranks.count,
                recorded=recorded,
                cwd=cwd,
                weights_from=source,
            )

        loaded, run = begin_on_all_ranks(ranks, begin)
        say = print_text if ranks.first else _print_nothing
        with setting_up(run, ranks):
            source = run.weights_source() if ranks.first and (run.starts_again or not run.resumed) else None
            dataset = recorded.dataset if recorded is not None else None
            notes = [line for note in loaded.notes for line in sentence(f"{note}.", 2, "- ")]
            if run.starts_again:
                start = "from the beginning" if source is None else f"with the weights of {source.name}"
                notes += sentence(
                    f"run {run.name} ended before it saved a checkpoint: it starts again {start}.", 2, "- "
                )
            alerts = show_alerts(plan_loaded(loaded, dataset=dataset).alerts)
            say("\n".join([*alerts, *show_choices(loaded)[1:], *notes, printable(f"run {run.shown}")]))
        with captured_output(enabled=ranks.first and not loaded.recipe.log.verbose):
            with setting_up(run, ranks):
                trainer = make_trainer(loaded, run, weights_from=source, ranks=ranks, recorded=recorded)
            setup.close()
            try:
                say("\n".join(trainer.opening()))
                trainer.train()
                summary = trainer.summary() if ranks.first else []
            finally:
                trainer.close()
        if summary:
            say("\n" + "\n".join(summary))
        elif run.report_path.is_file():  # stopped before its end
            say(f"Report: {run.shown / run.report_path.name}")


def _print_nothing(text: str) -> None:
    """Print nothing: rank 0 prints for all ranks."""


def evaluate(
    run: RunArgument,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides of the env, such as env.max_steps=100."),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Episodes to play.")] = 20,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--sampled",
            help="Take the most likely actions, or sample them; default: as the recipe acts (eval.deterministic).",
            show_default=False,
        ),
    ] = None,
    render: Annotated[
        Path | None, typer.Option("--render", metavar="FILE.gif", help="Render the first episode as a GIF.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="First seed; default: the recipe's eval.seed.")
    ] = None,
    best: BestOption = False,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Play episodes with a run's policy, on seeds that training does not use, and print the results.

    \b
      millpond eval grid-1 --episodes 100
      millpond eval grid-1 env.max_steps=100 --deterministic

    If the run names Python code, as in env.id: package.module:make_env, you are asked before it is imported, unless it is
    in your current project or you started the run here. Without a terminal, --trust is needed.
    """
    from millpond.trainers.common.play import evaluate_run

    evaluation, policy = evaluate_run(
        run,
        episodes=episodes,
        seed=seed,
        best=best,
        render=render,
        trust=trust_or_ask(trust),
        overrides=overrides or (),
        deterministic=deterministic,
    )
    if json:
        print_json({"run": run, "checkpoint_updates": policy.updates, **evaluation.to_json()})
        return
    low, high = evaluation.interval()
    rows: list[tuple[str, str, str]] = [
        ("episodes", str(len(evaluation.lengths)), policy.description),
        ("actions", "deterministic" if evaluation.deterministic else "sampled", _why(deterministic, policy)),
        ("return", f"{evaluation.mean:.4f}", f"95% interval {low:.4f} to {high:.4f}"),
        ("length", f"{sum(evaluation.lengths) / len(evaluation.lengths):.1f}", "env steps, on average"),
    ]
    agents = evaluation.agent_returns
    if not agents and len(evaluation.returns_by_agent[0]) > 1:
        means = [sum(returns) / len(returns) for returns in zip(*evaluation.returns_by_agent, strict=True)]
        agents = {f"agent {index}": mean for index, mean in enumerate(means)}
    rows += [(f"return of {name}", f"{mean:.4f}", "") for name, mean in agents.items()]
    prefix = "eval/env/"
    rows += [
        (key.removeprefix("eval/"), f"{value:.4f}", "")
        for key, value in evaluation.metrics().items()
        if key.startswith(prefix)
    ]
    print_text("\n".join([printable(run), *figures(rows), *([f"  picture: {render}"] if render else [])]))


def _why(deterministic: bool | None, policy: LoadedPolicy) -> str:
    """Return the reason for how actions are chosen in an evaluation."""
    if deterministic is not None:
        return "as requested"
    return "as the recipe acts" if policy.recipe.eval.deterministic is None else "eval.deterministic of the recipe"


def report(
    run: RunArgument,
    pictures: Annotated[
        Path | None, typer.Option("--pictures", metavar="FOLDER", help="Also write each chart there as an SVG file.")
    ] = None,
    interactive: Annotated[
        bool | None,
        typer.Option(
            "--interactive/--static",
            help="Charts as on the board, in the same file: 5 MB more. By default if the extra board is installed.",
        ),
    ] = None,
    run_dir: RunDirOption = "runs",
    json: JsonOption = False,
) -> None:
    """Write report.html into a run's folder: one page with its results, curves, times, an episode, plan and config.

    Training writes it at its end; this command writes it again, also for a run that is still training or has crashed.
    The page needs no network. Any folder with a metrics.jsonl will do. Code that a stranger's run names is not imported:
    its report has no picture of an episode.

    \b
      millpond report grid-1
      millpond report runs/grid-1 --pictures charts
      millpond report grid-1 --static
    """
    from millpond.board.interactive import make_interactive
    from millpond.board.server import missing_packages, require_board
    from millpond.report import read_facts
    from millpond.report.page import write_pictures
    from millpond.trainers.common.reporting import find_reportable, report_run

    folder = find_reportable(Path(run_dir), run)
    with progress("writing the report of") as update:
        update(folder.name)
        facts = read_facts(folder)
        if interactive is None:
            interactive = not missing_packages()
        elif interactive:
            require_board()
        path, picture = report_run(folder)
        if interactive:
            make_interactive(facts, path)
        charts = [] if pictures is None else write_pictures(facts, pictures)
    for problem in facts.problems:
        print_problem(f"warning: {problem}")
    if json:
        print_json({"run": folder.name, "report": str(path), "bytes": path.stat().st_size, "pictures": charts})
    else:
        without = sentence(picture.caption) if picture is not None and picture.refused else []
        lines = [str(path), *(f"  {chart}" for chart in charts), *without]
        print_text("\n".join(printable(line) for line in lines))

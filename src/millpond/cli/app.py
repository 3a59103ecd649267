"""The verbs. Heavy modules are imported inside them, so that `millpond plan` starts at once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from millpond import __version__
from millpond.cli.lake import lake

app = typer.Typer(
    name="millpond",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""Train reinforcement-learning agents, and know beforehand what a run will do.

    \b
      millpond recipes                  what there is to run
      millpond plan metta               what its numbers will do
      millpond train grid --debug       one of every level, in seconds
      millpond train grid               train; Ctrl-C saves, --resume goes on
      millpond runs                     what has been trained
      millpond eval RUN                 how well it plays
      millpond report RUN               a page with curves, times and a picture
      millpond compare puffer-metta metta   two configs side by side
      millpond lake info PATH           what a lake of transitions holds
      millpond data audit pendulum      what recorded episodes are good for
      millpond bench                    how fast this machine is
      millpond doctor                   what this machine has

    A RECIPE is a name from `millpond recipes`, a path to a YAML file, or a PufferLib .ini file. Settings are overridden
    after it as section.key=value, such as trainer.batch_size=262_144; `millpond plan --explain KEY` says what a key means,
    and docs/configuration.md lists them all.""",
)


class Objective(StrEnum):
    """What a reward can be learned by, as reward.objective."""

    lrd = "lrd"
    rrd = "rrd"
    progress = "progress"
    success = "success"


DEFAULT_RECIPE = "grid"
RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's name, a YAML file, or a PufferLib .ini.")
]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as trainer.batch_size=262_144.")
]
PresetOption = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="Apply one of the recipe's presets, before the overrides; `millpond recipes` lists them. debug: one of every "
        "level. Of reward recipes, full: the documents' length, and fast: a shortened full, which is longer than the "
        "default of `reward`.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"millpond {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None: ...


@app.command()
def train(
    recipe: RecipeArgument = DEFAULT_RECIPE,
    overrides: OverridesArgument = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="NAME", help="Name of the run and its folder; without one, the recipe's name and a number."
        ),
    ] = None,
    preset: PresetOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Tiny sizes: one of every level, in seconds.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the run that has this name, and start again.")
    ] = False,
    weights_from: Annotated[
        str | None, typer.Option("--from", metavar="RUN", help="Begin with the weights of another run.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run, exactly where its checkpoint is.")
    ] = None,
) -> None:
    """Train a recipe, or go on with a run.

    Ctrl-C finishes the step, saves, and says how to resume; a second one stops at once. Everything is in the run folder,
    runs/NAME: config, plan, host, metrics, TensorBoard files, checkpoints, report.

    \b
      millpond train                                # the built-in environment, minutes on two cores
      millpond train grid ppo.learning_rate=1e-3 --run faster
      millpond train metta --debug                  # one of every level
      millpond train --resume faster trainer.total_timesteps=8e6
      torchrun --nproc-per-node=2 -m -- millpond train --run two     # sizes are totals that ranks share
      torchrun --nproc-per-node=4 -m -- millpond train mixture       # a rank for each agent; mind the --
    """
    from millpond.cli.training import train as run_training

    recipe, arguments = _recipe_first(recipe, overrides)
    if resume is not None:
        if run is not None or overwrite or weights_from is not None or preset is not None or debug:
            raise typer.BadParameter("--resume goes with overrides only: a run keeps its name, recipe and preset")
        if recipe != DEFAULT_RECIPE:
            raise typer.BadParameter(f"--resume {resume} has its own recipe; leave {recipe!r} out")
    run_training(
        recipe,
        arguments,
        preset=_one_preset(preset, debug),
        run_name=run,
        overwrite=overwrite,
        weights_from=weights_from,
        resume=resume,
    )


@app.command("eval", short_help="Play episodes with a run's policy.")
def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder.")],
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Episodes to play.")] = 20,
    render: Annotated[
        Path | None, typer.Option("--render", metavar="FILE.gif", help="Draw the first episode as a GIF.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="First seed; without one, the recipe's eval.seed.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The best checkpoint instead of the newest.")] = False,
    json: JsonOption = False,
) -> None:
    """Play episodes with a run's policy, on seeds of their own, and say how it did."""
    from millpond.cli.training import evaluate as run_evaluation

    run_evaluation(run, episodes, render, seed, best, json)


@app.command(short_help="Write a run's page: results and curves.")
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder.")],
    pictures: Annotated[
        Path | None, typer.Option("--pictures", metavar="FOLDER", help="Write each chart there too, as an SVG file.")
    ] = None,
    run_dir: Annotated[str, typer.Option("--run-dir", metavar="FOLDER", help="Where run folders are.")] = "runs",
    json: JsonOption = False,
) -> None:
    """Write report.html into a run's folder: one page with its results, curves, times, an episode, plan and config.

    Training writes it at its end; this writes it again, also for a run that is still going or has crashed. The page needs
    no network. Any folder with a metrics.jsonl will do.

    \b
      millpond report grid-1
      millpond report runs/grid-1 --pictures charts
    """
    from millpond.cli.training import write_report

    write_report(run, run_dir, pictures, json)


@app.command()
def runs(
    run_dir: Annotated[str, typer.Option("--run-dir", metavar="FOLDER", help="Where run folders are.")] = "runs",
    json: JsonOption = False,
) -> None:
    """List the runs: return, best return, steps, speed, state.

    RETURN is that of the newest evaluation, or of training where none was made; BEST is the best evaluation's. A run that
    learns a reward from recorded episodes has no return: its figure is marked and named below. STEPS are agent steps, or
    updates (upd) where nobody acts; SPEED is the mean over the whole run. AGE is the time since the state last changed.
    """
    from millpond.cli.training import print_runs

    print_runs(run_dir, json)


@app.command()
def plan(
    recipe: RecipeArgument = DEFAULT_RECIPE,
    overrides: OverridesArgument = None,
    json: JsonOption = False,
    scale: Annotated[
        str | None,
        typer.Option("--scale", metavar="KEY=a,b,c", help="A table of what other values of one key would do."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="KEY", help="What a key means, its limits, and its value here.")
    ] = None,
    agents_from: Annotated[
        str | None,
        typer.Option(
            "--agents-from", metavar="ENV", help="Ask an environment, or a YAML file, how many agents an env has."
        ),
    ] = None,
    other_machine: Annotated[
        bool,
        typer.Option(
            "--other-machine", help="Plan for another machine: do not ask this one for its GPU, cores, memory."
        ),
    ] = False,
    preset: PresetOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Tiny sizes: one of every level, in seconds.")] = False,
) -> None:
    """Say exactly what a config will do, before it runs.

    Environments and groups, rows, minibatches, gradient updates, steps in both units, memory by field, and advice with
    the override that follows it. Nothing is trained and nothing heavy is imported.

    \b
      millpond plan metta
      millpond plan metta trainer.minibatch_size=8192
      millpond plan metta --scale env.num_agents=3,4,8,24
      millpond plan metta --explain trainer.batch_unit
      millpond plan metta device=cuda --other-machine   # of a run on a machine with a GPU
      millpond plan path/to/puffer.ini --agents-from metta.yaml
    """
    from millpond.cli.planning import print_explanation, print_plan, print_scale

    recipe, arguments = _recipe_first(recipe, overrides)
    preset = _one_preset(preset, debug)
    if explain is not None and (scale or json or agents_from):
        raise typer.BadParameter("--explain stands alone: it explains a key")
    if scale is not None and agents_from:
        raise typer.BadParameter("--scale and --agents-from cannot be joined; set env.num_agents=N instead")
    if explain is not None:
        print_explanation(recipe, arguments, preset, explain)
    elif scale is not None:
        print_scale(recipe, arguments, preset, scale, other_machine, json)
    else:
        print_plan(recipe, arguments, preset, agents_from, other_machine, json)


@app.command(short_help="Put two configs side by side.")
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A recipe or file.")] = "puffer-metta",
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")] = "metta",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[[a:|b:]KEY=VALUE]...", help="Overrides for both, or for one as a:key=value, b:key=value."
        ),
    ] = None,
    agents_from: Annotated[
        str | None,
        typer.Option("--agents-from", metavar="ENV", help="Ask this for the agents of a config that leaves them open."),
    ] = None,
    preset: PresetOption = None,
    json: JsonOption = False,
) -> None:
    """Put two configs side by side: a table, what differs and why it matters, and what each is better for.

    Without arguments: PufferLib's settings for Metta against Metta's own.

    \b
      millpond compare metta mine.yaml
      millpond compare metta metta b:trainer.minibatch_size=8192
      millpond compare puffer.ini metta --agents-from metta.yaml
    """
    from millpond.cli.planning import print_comparison

    print_comparison(first, second, overrides or [], preset, agents_from, json)


@app.command()
def recipes(json: JsonOption = False) -> None:
    """List the recipes: kinds, presets, extras that they need."""
    from millpond.cli.planning import print_recipes

    print_recipes(json)


envs = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
app.add_typer(envs, name="envs", short_help="List the environments, or check one.")


@envs.callback()
def list_envs(
    context: typer.Context,
    games: Annotated[bool, typer.Option("--games", help="Name every Atari game too.")] = False,
    json: JsonOption = False,
) -> None:
    """List the environments: ids, what they show and take, agents, and what to install for the missing ones.

    \b
      millpond envs
      millpond envs check grid
      millpond envs check mypackage.mymodule:make_env
    """
    if context.invoked_subcommand is None:
        from millpond.cli.envs import print_envs

        print_envs(games, json)


@envs.command("check", short_help="Check that an environment keeps the rules.")
def check_env_batch(
    env_id: Annotated[
        str, typer.Argument(metavar="ID", help="An environment's id, or your own as package.module:make_env.")
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPTION=VALUE]...",
            help="Options of the environment, such as num_agents=4; arguments of your own function as kwargs.NAME=VALUE.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, help="Env steps of each play. Without it 300, or fewer where they take over 10 s."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check an environment: spaces, dtypes, seeding, termination against truncation, final observations, determinism, and that
    a policy can act on its observations and learn from them.

    Says what is wrong and how to fix it; exits with 1 where a rule is broken.
    """
    from millpond.cli.envs import print_check

    print_check(env_id, options or [], steps, json)


app.add_typer(lake, name="lake", short_help="Look into replay on disk, check it, export it.")
data = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Look at recorded episodes, or audit them.")
app.add_typer(data, name="data")

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="A file of episodes (.hdf5, .h5, .npz), a folder, a lake, or a name: pendulum."
    ),
]
KeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="FIELD", help="A field of the observations to use, as data.observation_keys; repeat."
    ),
]
ImagesOption = Annotated[bool, typer.Option("--images", help="Use images too, as data.images=true.")]
DropOption = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="FIELD:COLUMN", help="A column to leave out, as data.drop_columns; repeat."),
]


@data.command("info")
def data_info(
    path: DataArgument,
    keys: KeysOption = None,
    images: ImagesOption = False,
    drop: DropOption = None,
    json: JsonOption = False,
) -> None:
    """Say what recorded episodes there are: lengths, returns, fields, and which of them are used.

    \b
      millpond data info pendulum
      millpond data info demonstrations/ --key joint_states --key ee_pos
    """
    from millpond.cli.data import print_info

    print_info(path, keys or [], images, drop or [], json)


@data.command("audit")
def data_audit(
    path: DataArgument,
    keys: KeysOption = None,
    images: ImagesOption = False,
    drop: DropOption = None,
    objective: Annotated[
        Objective | None,
        typer.Option("--objective", help="Exit with 1 where the episodes cannot serve this objective."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find what is wrong with recorded episodes before anything is learned from them.

    Constant returns, successes only, copies, NaN, actions out of range, clocks among the columns, flags that contradict:
    what each means, and what to do. Exits with 1 where the data is broken; warnings and notes leave it at 0.
    """
    from millpond.cli.data import print_audit

    print_audit(path, keys or [], images, drop or [], None if objective is None else objective.value, json)


reward = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Use a learned reward.")
app.add_typer(reward, name="reward")


@reward.command("score")
def reward_score(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of kind reward, by its name or folder.")],
    path: DataArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write: .npz or .hdf5; else NAME-reward.npz.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw reward and its sum over time: .png or .svg.")
    ] = None,
    episodes: Annotated[
        str | None, typer.Option("--episodes", metavar="0,2,5", help="Episodes to show and draw; else the first four.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The best checkpoint instead of the newest.")] = False,
    json: JsonOption = False,
) -> None:
    """Write the learned reward of every step of recorded episodes, for use elsewhere.

    \b
      millpond reward score reward-1 pendulum --plot rewards.png --episodes 0,1
    """
    from millpond.cli.reward import score

    score(run, path, out, plot, episodes, best, json)


experiments = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Questions that need many runs.")
app.add_typer(experiments, name="experiment")


@experiments.callback()
def _experiments() -> None: ...


@experiments.command("mixture-vs-single")
def mixture_vs_single(
    overrides: OverridesArgument = None,
    frames: Annotated[int, typer.Option("--frames", min=1, help="Frames of every run, of all its agents.")] = 1_048_576,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each method in each game.")] = 3,
    games: Annotated[
        str, typer.Option("--games", help="Environments, with commas between.")
    ] = "minatar:breakout,minatar:asterix",
    methods: Annotated[
        str, typer.Option("--methods", help="Of mixture, single, single-resets, no-resets, live.")
    ] = "mixture,single,single-resets,no-resets",
    recipe: Annotated[str, typer.Option("--recipe", help="The mixture that all methods are made from.")] = "mixture",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds, and so resets, of every run.")] = 8,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Greedy episodes that judge a run.")] = 100,
    folder: Annotated[Path, typer.Option("--folder", help="Where runs and results are; the same one goes on.")] = Path(
        "experiments/mixture-vs-single"
    ),
    at_once: Annotated[
        int | None, typer.Option("--at-once", min=1, help="Runs side by side; without it, one per core.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Run nothing; read what is finished.")] = False,
    json: JsonOption = False,
) -> None:
    """Does a mixture beat a single agent at the same number of frames?

    Runs the mixture, one agent alone, one agent with the same resets, and the mixture without resets; a table with
    intervals, curves, and one sentence follow. Stop it at any time: the same command goes on.
    """
    from millpond.cli.experiment import mixture_vs_single as run_experiment

    run_experiment(
        frames=frames,
        seeds=seeds,
        games=games,
        methods=methods,
        recipe=recipe,
        overrides=list(overrides or []),
        rounds=rounds,
        episodes=episodes,
        folder=folder,
        at_once=at_once,
        report_only=report,
        as_json=json,
    )


@app.command(short_help="Measure this machine and a recipe on it.")
def bench(
    recipe: RecipeArgument = DEFAULT_RECIPE,
    overrides: OverridesArgument = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, in seconds, to try the command out; nothing is kept.")
    ] = False,
    iteration: Annotated[
        bool,
        typer.Option(
            "--iteration", help="Only whole iterations (rounds, cycles), of ppo beside their bare arithmetic."
        ),
    ] = False,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="Iterations to time; without it, by their size.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE", help="Where the waterfall goes: .png or .svg; else the cache folder."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure this machine and a recipe on it: limits, every stage alone, whole iterations. About two minutes.

    Stages are shown as shares of what bounds them and of an iteration (of a mixture a round, of reward learning a
    cycle), and an iteration of PPO beside the bare arithmetic of its network. The figures are kept, and `millpond plan`
    then estimates how long a run takes.

    \b
      millpond bench                     # the default recipe, grid
      millpond bench mixture             # a round: collect, pour, learn, fill, the BigAgent
      millpond bench reward              # a cycle: sample, update, target, record
      millpond bench metta --iteration   # the full-size iteration alone
    """
    from millpond.cli.bench import bench as run_bench

    recipe, arguments = _recipe_first(recipe, overrides)
    run_bench(
        recipe,
        arguments,
        quick=quick,
        only_iteration=iteration,
        iterations=iterations,
        picture=picture,
        as_json=json,
    )


@app.command(short_help="Say what this machine has and lacks.")
def doctor(json: JsonOption = False) -> None:
    """Say what this machine has: versions, cores, devices, memory, disk, extras, and what to install for the rest."""
    from millpond.cli.doctor import print_doctor

    print_doctor(json)


def _recipe_first(recipe: str, overrides: list[str] | None) -> tuple[str, list[str]]:
    """Return recipe and overrides; where the first word is an override already, the recipe is the default one."""
    if "=" in recipe:
        return DEFAULT_RECIPE, [recipe, *(overrides or [])]
    return recipe, list(overrides or [])


def _one_preset(preset: str | None, debug: bool) -> str | None:
    if debug and preset not in (None, "debug"):
        raise typer.BadParameter(f"--debug is --preset debug; it cannot be joined with --preset {preset}")
    return "debug" if debug else preset

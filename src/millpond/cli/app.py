"""All commands of `millpond`. Their modules import torch and other heavy packages only when a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond import __version__
from millpond.cli import planning, training
from millpond.cli.bench import bench
from millpond.cli.board import board
from millpond.cli.data import data, reward
from millpond.cli.doctor import doctor
from millpond.cli.envs import envs
from millpond.cli.experiment import experiment
from millpond.cli.export import export
from millpond.cli.lake import lake
from millpond.cli.runs import compare, runs
from millpond.cli.sweep import sweep

app = typer.Typer(
    name="millpond",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""Train reinforcement-learning agents, and know beforehand what a run will do.

    \b
      millpond recipes                  list the recipes
      millpond plan metta               print what a run of a recipe will do
      millpond train grid --debug       run one of every level, in seconds
      millpond train grid               train; Ctrl-C saves, --resume continues
      millpond train gymnasium:CartPole-v1   train on any environment
      millpond runs                     list the runs
      millpond board                    show all runs in the browser, live
      millpond eval RUN                 evaluate a trained policy
      millpond export RUN policy.onnx   write a policy for onnxruntime
      millpond report RUN               write a page with curves, times and a picture
      millpond compare RUN RUN          draw the curves of runs, and show what differs
      millpond compare puffer-metta metta   show two configs side by side
      millpond lake info PATH           describe a lake of transitions
      millpond data audit pendulum      check recorded episodes
      millpond sweep RECIPE SPACE.yaml  search over settings, with several seeds
      millpond experiment FILE.yaml     compare methods over worlds and seeds
      millpond bench                    measure the speed of this machine
      millpond doctor                   show what is installed on this machine

    A RECIPE is a name from `millpond recipes`, an env id (which takes the recipe of its family), a path to a YAML file, or
    a PufferLib .ini file. Override its settings with section.key=value arguments, such as trainer.batch_size=262_144;
    `millpond plan --explain KEY` explains a key, and docs/configuration.md lists all of them. After
    `millpond --install-completion` and a new shell, TAB completes recipes, runs, env ids and keys.""",
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"millpond {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


app.command()(training.train)
app.command("eval", short_help="Play episodes with a run's policy.")(training.evaluate)
app.command(short_help="Write a run's policy to a file for onnxruntime.")(export)
app.command(short_help="Write a run's report: results and curves.")(training.report)
app.command(short_help="List the runs.")(runs)
app.command(short_help="Show all runs in the browser, live.")(board)
app.command()(planning.plan)
app.command(short_help="Compare runs, or two configs.")(compare)
app.command()(planning.recipes)
app.command(short_help="Search over the settings of a recipe.")(sweep)
app.command(short_help="Compare methods over worlds and seeds.")(experiment)
app.command(short_help="Measure this machine and a recipe on it.")(bench)
app.command(short_help="Show what this machine has and lacks.")(doctor)

app.add_typer(envs, name="envs", short_help="List the environments, or check one.")
app.add_typer(lake, name="lake", short_help="Inspect, verify and export replay on disk.")
app.add_typer(data, name="data", short_help="Inspect or audit recorded episodes.")
app.add_typer(reward, name="reward", short_help="Apply a learned reward.")

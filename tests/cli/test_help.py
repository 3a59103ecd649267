"""Every command's help has examples. They are valid, and each is run once, in a folder that has what it names."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from millpond.cli.app import app
from millpond.cli.complete import override_choices
from tests.support.episode_files import make_episodes, write_libero, write_npz

TOP = typer.main.get_command(app)


def commands(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the commands that do something, by their words."""
    if not hasattr(command, "commands"):
        return {path: command}
    below = {p: c for name, child in command.commands.items() for p, c in commands(child, (*path, name)).items()}
    return below | ({path: command} if command.invoke_without_command else {})


COMMANDS = commands(TOP)


def examples(command: Any, *, whole: bool = False) -> list[str]:
    """Return the commands in a help text, without comments, and unless `whole` without what stands before `millpond`."""
    lines = [line.split("  #")[0].strip() for line in (command.help or "").splitlines()]
    lines = [line for line in lines if line.startswith(("millpond ", "torchrun "))]
    return lines if whole else [line[line.index("millpond ") :] for line in lines]


def parse(words: list[str]) -> Any:
    """Parse a command line as the program does, and stop before it is run."""
    command, context = TOP, TOP.make_context("millpond", list(words))
    while hasattr(command, "commands") and (rest := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_of_the_command(path: tuple[str, ...]) -> None:
    assert any(shlex.split(line)[1 : 1 + len(path)] == list(path) for line in examples(COMMANDS[path]))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_parse(path: tuple[str, ...]) -> None:
    for line in examples(COMMANDS[path]):
        context = parse(shlex.split(line)[1:])
        for text in [word for value in context.params.values() if isinstance(value, (list, tuple)) for word in value]:
            key, equals, _ = str(text).partition("=")
            if equals and context.info_name in ("train", "plan", "compare", "bench"):
                assert any(f"{key}=" in override_choices([recipe], key) for recipe in ("grid", "mixture", "reward"))


def test_a_wrong_example_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["plan", "metta", "--no-such-option"])


DATA = Path(__file__).parents[1] / "data"
SHORT = "trainer.max_seconds=3 eval.episodes=1 log.tensorboard=false"
SMALL_GRID = "trainer.num_envs=8 trainer.batch_size=512 trainer.minibatch_size=256 trainer.bptt_horizon=16"
SMALL_AGENTS = (
    "mixture.agents=2 mixture.pond_transitions=256 mixture.big_pond_transitions=200 pqn.num_envs=4 pqn.num_steps=8 "
    "pqn.num_minibatches=2 dqn.batch_size=16 policy.hidden_size=16 env.max_steps=30 eval.episodes=1"
)
SMALL_MIXTURE = (
    f"{SMALL_AGENTS} mixture.total_frames=1024 mixture.collections_per_round=8 mixture.big_updates=20 "
    "lake.acknowledge_every=20 log.tensorboard=false"
)
SMALL_EXPERIMENT = f"{SMALL_AGENTS} --frames 512 --rounds 2 --seeds 1 --episodes 2"
PREPARED = (
    *(
        f"train grid --run grid-{number} {SMALL_GRID} {SHORT} trainer.total_iterations=6 eval.interval=1 seed={number}"
        for number in (1, 2, 3)
    ),
    f"train grid --run faster {SMALL_GRID} {SHORT} trainer.total_timesteps=4_096",
    f"train mixture --run mixture-1 {SMALL_MIXTURE}",
    "train reward --debug --run reward-1",
)
# What is appended to examples of a command, or to one of them, so that they take seconds.
ADDED = {
    "train": SHORT,
    "train --resume faster": "trainer.max_seconds=5",
    "train metta --debug": "",
    "train my_env": f"{SHORT} trainer.total_timesteps=4_096",
    "bench": "--quick",
    "bench metta": "--quick",
    "experiment experiment.yaml": "--episodes 2 trainer.total_timesteps=8_192",
    "experiment mixture-vs-single": f"{SMALL_EXPERIMENT} --worlds minatar:breakout --methods mixture,single",
    "experiment mixture-vs-single --report": "",
}
FILES = {
    "my_env.py": "from ball import Ball as make_env\n",
    "mypackage/__init__.py": "",
    "mypackage/mymodule.py": "import ball\n\n\ndef make_env(max_steps=32):\n    return ball.Ball()\n",
    "mine.yaml": "extends: metta\ntrainer:\n  minibatch_size: 8192\n",
    "experiment.yaml": (
        "description: Does it learn faster?\nrecipe: gym\nworlds: [gymnasium:CartPole-v1]\nseeds: 1\nepisodes: 2\n"
        "methods:\n  usual: {overrides: {}}\n  faster: {overrides: {ppo.learning_rate: 3.0e-3}}\n"
    ),
}


def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        shlex.split(line), cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with runs, files and demonstrations of the names in the examples."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(Path(__file__).parents[2] / "examples" / "ball.py", folder)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "path" / "to").mkdir(parents=True)
    for name in ("puffer.ini", "path/to/puffer.ini"):
        shutil.copy(DATA / "puffer_metta.ini", folder / name)
    shutil.copy(DATA / "metta.yaml", folder)
    (folder / "demonstrations").mkdir()
    write_libero(folder / "demonstrations" / "open_drawer_demo.hdf5", side=16)
    write_libero(folder / "demos.hdf5", side=16)
    episodes = make_episodes(np.random.default_rng(0), (5, 4), {"observation": ((3,), "float32")})
    write_npz(folder / "episodes.npz", episodes)
    for line in PREPARED:
        done = run(folder, f"millpond {line}")
        assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
    return folder


def additions(line: str) -> str:
    """Return what is added to an example: that of the longest beginning that fits."""
    fitting = [start for start in ADDED if line.removeprefix("millpond ").startswith(start)]
    return ADDED[max(fitting, key=len)] if fitting else ""


@pytest.mark.slow
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_run(path: tuple[str, ...], prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(prepared, folder, symlinks=True)
    for line in examples(COMMANDS[path], whole=True):
        before, found, command = line.partition("millpond ")
        done = run(folder, f"{before}{found}{command} {additions(command)}")
        assert done.returncode == 0, f"{line}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr

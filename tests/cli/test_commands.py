"""The command line: output and exit codes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data"


def millpond(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millpond", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_plan_as_json() -> None:
    run = millpond("plan", "metta", "--json")
    assert run.returncode == 0
    assert json.loads(run.stdout)["gradient_updates"] == 32


def test_bad_input_exits_with_two_and_no_traceback() -> None:
    run = millpond("plan", "metta", "trainer.minibatch_size=10000")
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith("millpond: trainer.minibatch_size=10,000 is not a multiple of")
    assert "try trainer.minibatch_size=8192 or 16384" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "nothing"],
        ["plan", "metta", "oops"],
        ["plan", "metta", "--no-such-option"],
        ["plan", "metta", "--preset", "quick"],
        ["plan", "metta", "--debug", "--preset", "fast"],
        ["plan", "metta", "--explain", "trainer.batchsize"],
        ["plan", "metta", "--scale", "env.num_agents"],
        ["plan", "metta", "--agents-from", "grid"],
        ["compare", "metta", "nothing"],
        ["compare", "trainer.batch_size=5"],
        ["no-such-command"],
    ],
)
def test_bad_input_exits_with_two(arguments: list[str]) -> None:
    run = millpond(*arguments)
    assert run.returncode == 2, run.stdout
    assert run.stderr
    assert "Traceback" not in run.stderr


def test_compare_defaults_to_puffer_metta_and_metta() -> None:
    run = millpond("compare")
    assert run.returncode == 0
    assert run.stdout == millpond("compare", "puffer-metta", "metta").stdout
    assert "ALERT: puffer-metta has 64 agents per env, metta has 3" in run.stdout
    assert json.loads(millpond("compare", "--json").stdout)["b"]["segments"] == 8192


def test_agents_from_a_file() -> None:
    run = millpond("plan", "metta", "--agents-from", str(DATA / "metta.yaml"))
    assert run.returncode == 0
    assert "ALERT: the config has 3 agents per env, metta.yaml has 64" in run.stdout


def test_explain_key_and_section() -> None:
    run = millpond("plan", "metta", "--explain", "trainer.async_factor")
    assert "double buffering" in run.stdout
    assert "value here" in run.stdout
    assert "vector.on_crash = stop" in millpond("plan", "metta", "--explain", "vector").stdout


def test_recipes_lists_all_recipes() -> None:
    names = {entry["name"] for entry in json.loads(millpond("recipes", "--json").stdout)}
    assert {"grid", "metta", "puffer-metta", "mixture-seed", "reward-libero"} <= names
    assert "puffer-metta (ppo; presets: debug)" in millpond("recipes").stdout


def test_plain_text_without_a_terminal() -> None:
    assert "\x1b[" not in millpond("plan", "metta").stdout


def test_ascii_output_if_stdout_cannot_encode() -> None:
    run = millpond("plan", "metta", PYTHONIOENCODING="ascii")
    assert run.returncode == 0
    assert run.stdout.isascii()
    assert "+- 8,192 rows x 64 steps" in run.stdout


def test_closed_pipe_is_not_an_error() -> None:
    run = subprocess.run(
        f"{sys.executable} -m millpond plan metta | head -1", shell=True, capture_output=True, text=True, check=False
    )
    assert run.stdout.startswith("metta:")
    assert run.stderr == ""


def test_doctor() -> None:
    run = millpond("doctor", "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["libraries"]["torch"] == importlib.metadata.version("torch")
    assert found["cores"] >= 1
    assert found["devices"][0].startswith("cpu")
    assert set(found["extras"]) == {
        "atari",
        "board",
        "box2d",
        "metta",
        "minatar",
        "mujoco",
        "pettingzoo",
        "trackio",
        "wandb",
        "dev",
    }
    assert "free disk" in millpond("doctor").stdout


def test_doctor_names_versions_outside_the_supported_range(tmp_path: Path) -> None:
    for name, version, needs in (("millpond", "0.1.0", "numpy>=2.0"), ("numpy", "1.26.4", "")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        requires = f"Requires-Dist: {needs}\n" if needs else ""
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
    run = millpond("doctor", PYTHONPATH=os.pathsep.join((str(tmp_path), *sys.path)))
    assert run.returncode == 1
    words = " ".join(run.stdout.split())
    assert "numpy 1.26.4 is not supported: millpond needs numpy>=2.0; pip install 'numpy>=2.0'" in words


def test_envs_lists_and_checks(tmp_path: Path) -> None:
    rows = {row["id"]: row for row in json.loads(millpond("envs", "--json").stdout)}
    assert rows["grid"]["agents"] == "3"
    assert "atari:gravitar" in rows
    assert "broken" in millpond("envs", "check", "recall", "--steps", "50").stdout
    (tmp_path / "mine.py").write_text("import gymnasium\ndef make_env():\n    return gymnasium.make('CartPole-v1')\n")
    run = subprocess.run(
        [sys.executable, "-P", "-c", "from millpond.cli import main; main()", "envs", "check", "mine:make_env"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    wrong = millpond("envs", "check", "os:nope")
    assert wrong.returncode == 1
    assert "module os has no 'nope'" in wrong.stdout


@pytest.mark.parametrize("command", ["plan", "compare", "recipes", "doctor", "envs"])
def test_every_command_has_help(command: str) -> None:
    run = millpond(command, "--help")
    assert run.returncode == 0
    assert len(run.stdout.splitlines()) > 5


def test_recipe_may_be_omitted_before_overrides() -> None:
    found = json.loads(millpond("plan", "trainer.update_epochs=3", "--json").stdout)
    assert (found["recipe"], found["update_epochs"]) == ("grid", 3)


def test_version() -> None:
    assert millpond("--version").stdout.startswith("millpond 0.")

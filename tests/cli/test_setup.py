"""Failed setups: one line or the traceback of the user's code, no folder, and the name is free again."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from millpond.cli import main
from millpond.envs.adapters.minatar import load_game
from millpond.envs.families import FAMILIES

ENVS_SOURCE = '''
import time
import gymnasium
import numpy as np
from millpond.envs.env_batch import EnvError


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}


class BrokenReset(Corridor):
    def reset(self, *, seed=None, options=None):
        raise ValueError("the map file is missing")


class Refusing(Corridor):
    """Resets with seed 0, as when its spaces are read; raises in the vector."""

    def reset(self, *, seed=None, options=None):
        if seed:
            raise EnvError("give it a map")
        return super().reset(seed=seed)


class Slow(Corridor):
    """Fast with seed 0, and slow in the vector."""

    def reset(self, *, seed=None, options=None):
        if seed:
            open("resetting", "w").close()
            time.sleep(60)
        return super().reset(seed=seed)


def no_env():
    raise EnvError("there is no env today")
'''
TINY = ["env.num_agents=1", "env.max_steps=20", "--debug", "--run", "one"]


@dataclass
class CommandResult:
    code: int
    output: str
    errors: str


class Command:
    """The command line within this process, in a temporary folder: importing torch only once saves seconds."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.capsys, self.monkeypatch = folder, capsys, monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path])

    def __call__(self, *arguments: str) -> CommandResult:
        sys.modules.pop("faulty_corridors", None)
        importlib.invalidate_caches()
        self.monkeypatch.setattr(sys, "argv", ["millpond", *arguments])
        self.capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        except Exception:
            traceback.print_exc()
            code = 1
        return CommandResult(code, *self.capsys.readouterr())

    @property
    def runs(self) -> list[str]:
        return [path.name for path in (self.folder / "runs").iterdir()]


@pytest.fixture
def millpond(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    (tmp_path / "faulty_corridors.py").write_text(ENVS_SOURCE)
    (tmp_path / "runs").mkdir()
    return Command(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        (["env.id=faulty_corridors:no_env"], 2, "there is no env today"),
        (["env.id=faulty_corridors:Refusing", "vector.backend=inline"], 2, "give it a map (reset of env 0: seed"),
        (["env.id=faulty_corridors:Refusing", "vector.backend=processes"], 2, "give it a map (reset of env 0: seed"),
        (["env.id=faulty_corridors:Nothing"], 2, "Nothing"),
        (["env.id=faulty_corridors:Corridor", "policy.target=faulty_corridors:Nobody"], 2, "Nobody"),
        (["env.id=faulty_corridors:Corridor", "policy.target=nowhere:Policy"], 2, "nowhere"),
        (["env.id=gymnasium:Nowhere-v0"], 2, "Nowhere"),
        (["env.id=faulty_corridors:Corridor", "device=cuda:99"], 2, "device=cuda:99"),
        (["env.id=faulty_corridors:BrokenReset"], 2, "the map file is missing"),
    ],
)
def test_failed_setup_leaves_no_folder(millpond: Command, settings: list[str], code: int, words: str) -> None:
    run = millpond("train", "grid", *settings, *TINY)
    assert run.code == code, run.errors
    assert words in run.errors
    if code == 2:
        assert run.errors.startswith("millpond: ")
        assert run.errors.count("\n") == 1, run.errors
    assert millpond.runs == []


def test_name_is_free_after_a_failure_and_a_failed_resume_is_recorded(millpond: Command) -> None:
    shown, file = (
        ["env.id=faulty_corridors:Shown", "vector.backend=inline", *TINY],
        millpond.folder / "faulty_corridors.py",
    )
    assert millpond("train", "grid", *shown).code == 2
    file.write_text(f"{ENVS_SOURCE}\n\nShown = Corridor\n")
    run = millpond("train", "grid", *shown)
    assert run.code == 0, run.errors
    file.write_text(f"{ENVS_SOURCE}\n\nShown = Refusing\n")
    resumed = millpond("train", "--resume", "one", "trainer.total_iterations=2")
    assert resumed.code == 2, resumed.errors
    assert "could not be resumed: " in millpond("runs").output
    assert len(list((millpond.folder / "runs" / "one" / "checkpoints").iterdir())) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_signal_during_setup_does_not_block_the_name(millpond: Command, number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "millpond",
        "train",
        "grid",
        "env.id=faulty_corridors:Slow",
        "vector.backend=inline",
        *TINY,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (millpond.folder / "resetting").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    if number == signal.SIGINT:
        assert process.returncode == 130
    else:
        assert "died while the run was being set up: nothing was trained" in millpond("runs").output
        again = millpond("train", "grid", "env.id=faulty_corridors:Refusing", *TINY)
        assert "give it a map" in again.errors
    assert millpond.runs == []


@pytest.fixture
def base(millpond: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command without any extra installed."""
    remove_extras(monkeypatch)
    return millpond


def remove_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = ["mujoco", *(family.module for family in FAMILIES.values() if family.extra)]
    for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
        monkeypatch.delitem(sys.modules, name)
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)  # importing it raises ImportError
    load_game.cache_clear()


def assert_names_the_extra(result: CommandResult, extra: str) -> None:
    assert result.code == 2
    assert result.errors.count("\n") == 1, result.errors
    assert f"needs the extra '{extra}', which is not installed; install it with: " in result.errors
    assert result.errors.endswith(f"pip install 'millpond[{extra}]'\n")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["train", "mixture", "--debug", "--run", "one"], "minatar"),
        (["train", "mettagrid", "--debug", "--run", "one"], "metta"),
        (["train", "mixture-gravitar", "--debug", "--run", "one"], "atari"),
        (["bench", "mixture", "--quick"], "minatar"),
        (["bench", "mettagrid", "--quick"], "metta"),
        (["experiment", "mixture-vs-single", "--seeds", "1"], "minatar"),
        (["envs", "check", "pettingzoo:butterfly.pistonball_v6"], "pettingzoo"),
        (["envs", "check", "mettagrid"], "metta"),
        (["envs", "check", "gymnasium:HalfCheetah-v5"], "mujoco"),
        (["train", "grid", "env.id=gymnasium:HalfCheetah-v5", "--debug", "--run", "one"], "mujoco"),
    ],
)
def test_missing_extra_is_named_in_one_line(base: Command, arguments: list[str], extra: str) -> None:
    assert_names_the_extra(base(*arguments), extra)
    assert base.runs == []


def test_eval_and_resume_need_the_extra_of_the_run(millpond: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = millpond("train", "mixture", "--debug", "--run", "one")
    assert trained.code == 0, trained.errors
    remove_extras(monkeypatch)
    assert_names_the_extra(millpond("eval", "one"), "minatar")
    assert_names_the_extra(millpond("train", "--resume", "one", "mixture.total_frames=256"), "minatar")
    assert "finished" in millpond("runs").output
    report = millpond("report", "one")
    assert report.code == 0, report.errors


def test_recipes_shows_extras_and_if_they_are_installed(base: Command) -> None:
    text = base("recipes").output
    assert re.search(
        r"Needs the extra minatar, which is not installed:\n    .*pip install 'millpond\[minatar\]'\n", text
    )
    rows = {row["name"]: row for row in json.loads(base("recipes", "--json").output)}
    assert {name: (row["extra"], row["extra_installed"]) for name, row in rows.items() if row["extra"]} == {
        **dict.fromkeys(("minatar", "mixture", "mixture-best", "mixture-minatar"), ("minatar", False)),
        **dict.fromkeys(("atari", "mixture-gravitar", "mixture-gravitar-best", "mixture-seed"), ("atari", False)),
        "mettagrid": ("metta", False),
        "mujoco": ("mujoco", False),
    }
    assert rows["grid"]["extra_installed"]
    assert "training needs the extra minatar" in " ".join(base("plan", "mixture").output.split())


@pytest.mark.parametrize("recipe", ["grid", "mixture", "reward"])
@pytest.mark.parametrize("device", ["cuda:99", "mps"])
def test_missing_device_is_refused_by_plan_train_and_bench(millpond: Command, recipe: str, device: str) -> None:
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has it")
    for verb in ("plan", "train", "bench"):
        refused = millpond(verb, recipe, f"device={device}")
        assert refused.code == 2
        assert refused.errors.startswith(f"millpond: device={device}: ")
        assert "try device=c" in refused.errors
        assert refused.errors.count("\n") == 1
        assert ("--other-machine" in refused.errors) == (verb == "plan")
    assert millpond("plan", recipe, f"device={device}", "--other-machine").code == 0
    assert millpond.runs == []


def test_readme_example_runs_in_debug(millpond: Command) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", readme, re.DOTALL)
    assert example is not None
    (millpond.folder / "mine.yaml").write_text(example[1])
    run = millpond("train", "mine.yaml", "--debug", "--run", "first")
    assert run.code == 0, run.errors
    assert len((millpond.folder / "runs" / "first" / "metrics.jsonl").read_text().splitlines()) == 1
    planned = json.loads(millpond("plan", "mine.yaml", "--json").output)
    assert planned["total_agent_steps"] <= 10_000_000  # minutes on two cores
    assert planned["memory_bytes"] < 1 << 30

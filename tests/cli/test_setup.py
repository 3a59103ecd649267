"""A run that cannot be set up: one line or the user's own traceback, no folder, and the name is free again."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

from millpond.cli import main

WORLDS = '''
import time
import gymnasium
import numpy as np
from millpond.envs.errors import EnvError


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
    """Asked for its spaces with seed 0 it answers; in the vector it does not."""

    def reset(self, *, seed=None, options=None):
        if seed:
            raise EnvError("give it a map")
        return super().reset(seed=seed)


class Slow(Corridor):
    def reset(self, *, seed=None, options=None):
        open("resetting", "w").close()
        time.sleep(60)


def no_env():
    raise EnvError("there is no env today")
'''
TINY = ["env.num_agents=1", "env.max_steps=20", "--debug", "--run", "one"]


@dataclass
class Ended:
    code: int
    output: str
    errors: str


class Command:
    """The command line within this process, in a folder of its own: a torch that is imported once saves seconds."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.capsys, self.monkeypatch = folder, capsys, monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path])

    def __call__(self, *arguments: str) -> Ended:
        sys.modules.pop("worlds", None)
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
        return Ended(code, *self.capsys.readouterr())

    @property
    def runs(self) -> list[str]:
        return [path.name for path in (self.folder / "runs").iterdir()]


@pytest.fixture
def millpond(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    (tmp_path / "worlds.py").write_text(WORLDS)
    (tmp_path / "runs").mkdir()
    return Command(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        (["env.id=worlds:no_env"], 2, "there is no env today"),
        (["env.id=worlds:Refusing", "vector.backend=inline"], 2, "give it a map (reset of env 0: seed"),
        (["env.id=worlds:Refusing", "vector.backend=processes"], 2, "give it a map (reset of env 0: seed"),
        (["env.id=worlds:Nothing"], 2, "Nothing"),
        (["env.id=worlds:Corridor", "policy.target=worlds:Nobody"], 2, "Nobody"),
        (["env.id=worlds:Corridor", "policy.target=nowhere:Policy"], 2, "nowhere"),
        (["env.id=gymnasium:Nowhere-v0"], 2, "Nowhere"),
        (["env.id=worlds:Corridor", "device=cuda:99"], 2, "device=cuda:99"),
        (["env.id=worlds:BrokenReset"], 1, "the map file is missing"),
    ],
)
def test_what_cannot_be_set_up_leaves_no_folder(millpond: Command, settings: list[str], code: int, words: str) -> None:
    run = millpond("train", "grid", *settings, *TINY)
    assert run.code == code, run.errors
    assert words in run.errors
    if code == 2:
        assert run.errors.startswith("millpond: ")
        assert run.errors.count("\n") == 1, run.errors
    assert millpond.runs == []


def test_after_a_failure_the_name_is_free_and_a_resumed_run_says_why_it_could_not_go_on(millpond: Command) -> None:
    shown, file = ["env.id=worlds:Shown", "vector.backend=inline", *TINY], millpond.folder / "worlds.py"
    assert millpond("train", "grid", *shown).code == 2
    file.write_text(f"{WORLDS}\n\nShown = Corridor\n")
    run = millpond("train", "grid", *shown)
    assert run.code == 0, run.errors
    file.write_text(f"{WORLDS}\n")
    resumed = millpond("train", "--resume", "one", "trainer.total_iterations=2")
    assert resumed.code == 2, resumed.errors
    assert "(could not be resumed: EnvError: " in millpond("runs").output
    assert len(list((millpond.folder / "runs" / "one" / "checkpoints").iterdir())) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_during_setup_does_not_block_the_name(millpond: Command, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "millpond", "train", "grid", "env.id=worlds:Slow", "vector.backend=inline", *TINY]
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
        assert "there is no env today" in millpond("train", "grid", "env.id=worlds:no_env", *TINY).errors
    assert millpond.runs == []

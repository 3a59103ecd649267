"""A run stays in its folder when an env changes the working directory of the trainer's process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENV = """
import os
import gymnasium
import numpy as np
from gymnasium import spaces

PLACE = "{place}"


def move(place):
    if place == PLACE:
        os.makedirs("elsewhere", exist_ok=True)
        os.chdir("elsewhere")


class Wandering(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        move("init")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(3, np.float32), {{}}

    def step(self, action):
        move("step")
        self.count += 1
        return np.zeros(3, np.float32), 1.0, self.count == 5, False, {{}}
"""
SETTINGS = [
    "env.id=wandering:Wandering", "vector.backend=inline", "trainer.num_envs=2", "trainer.num_workers=1",
    "trainer.async_factor=1", "trainer.bptt_horizon=4", "trainer.batch_size=8", "trainer.minibatch_size=8",
    "trainer.update_epochs=1", "trainer.total_iterations=2", "policy.hidden_size=8", "checkpoint.interval=1",
    "eval.interval=1", "eval.episodes=1",
]  # fmt: skip


def millpond(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-m", "millpond", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("place", ["init", "step"])
def test_env_that_changes_the_working_directory_does_not_move_the_run(tmp_path: Path, place: str) -> None:
    (tmp_path / "wandering.py").write_text(ENV.format(place=place))
    printed = millpond(tmp_path, "train", "grid", *SETTINGS, "--run", "stays")
    run = tmp_path / "runs" / "stays"
    assert "Run folder: runs/stays\nReport: runs/stays/report.html" in printed
    assert sorted(int(path.name) for path in (run / "checkpoints").iterdir()) == [1, 2]
    assert (run / "report.html").is_file()
    assert (tmp_path / "elsewhere").is_dir(), "the env did not move"
    assert not [path for path in (tmp_path / "elsewhere").rglob("*") if path.name != "elsewhere"]

    printed = millpond(tmp_path, "train", "--resume", "stays", "trainer.total_iterations=3")
    assert "run runs/stays" in printed
    assert sorted(int(path.name) for path in (run / "checkpoints").iterdir()) == [1, 2, 3]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3

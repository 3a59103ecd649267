"""A crash of an env ends the run with the backend `threads`, which says so first; worker processes survive it."""

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


class Crashing(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        os.abort()
"""
SETTINGS = [
    "env.id=crashing:Crashing", "trainer.num_envs=4", "trainer.num_workers=2", "trainer.async_factor=1",
    "trainer.bptt_horizon=4", "trainer.batch_size=16", "trainer.minibatch_size=16", "trainer.update_epochs=1",
    "trainer.total_iterations=1", "policy.hidden_size=8",
]  # fmt: skip


@pytest.mark.parametrize(("backend", "killed"), [("threads", True), ("processes", False)])
def test_crash_of_an_env(tmp_path: Path, backend: str, killed: bool) -> None:
    (tmp_path / "crashing.py").write_text(ENV)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "millpond", "train", "grid", *SETTINGS, f"vector.backend={backend}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    said = "cannot be caught and ends the run" in " ".join(done.stdout.split())
    if killed:
        assert said, done.stdout
        assert done.returncode < 0, done.stderr
    else:
        assert not said
        assert done.returncode > 0
        assert "worker" in done.stderr

"""The Python interface, as a user would call it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import millpond
from millpond.config import ConfigError

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
SOURCE = Path(millpond.__file__).parents[1]


def test_plan_train_load_act(tmp_path: Path) -> None:
    assert millpond.plan("metta", {"trainer.minibatch_size": 8_192}).plan.gradient_updates == 64  # type: ignore[union-attr]
    run = millpond.train("grid", {"run_dir": str(tmp_path)}, preset="debug", run="pond")
    assert run.folder == tmp_path / "pond"
    policy = millpond.load(run.folder)
    observation = np.zeros((2, *policy.spec.observation.shape), np.uint8)
    action, state = policy.act(observation)
    assert action.shape == (2,)
    again, _ = policy.act(observation, state)
    assert again.shape == (2,)
    assert state.shape[0] == 2


def test_an_env_and_a_policy_of_ones_own_as_the_page_shows(tmp_path: Path) -> None:
    code, shown = (
        re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
        for language in ("python", "text")
    )
    assert code is not None
    assert shown is not None
    (tmp_path / "ball.py").write_text(code[1], encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "ball.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [lines[0], "...", lines[-1]] == shown[1].splitlines()
    assert (tmp_path / "runs" / "ball" / "metrics.jsonl").is_file()


def test_settings_come_in_every_form() -> None:
    config = {"extends": "grid", "trainer": {"num_envs": 128}}
    forms = [
        millpond.plan(config),
        millpond.plan("grid", {"trainer.num_envs": 128}),
        millpond.plan("grid", ["trainer.num_envs=128"]),
        millpond.plan("grid", **{"trainer.num_envs": 128}),
        millpond.plan("grid", trainer={"num_envs": 128}),
    ]
    assert [planned.plan.num_envs for planned in forms] == [128] * 5  # type: ignore[union-attr]
    assert config == {"extends": "grid", "trainer": {"num_envs": 128}}, "it is left as it was"
    with pytest.raises(ConfigError, match=r"did you mean trainer\.num_envs"):
        millpond.plan({"extends": "grid", "trainer": {"num_env": 128}})


def test_acting_keeps_to_a_mask(tmp_path: Path) -> None:
    run = millpond.train("grid", run_dir=str(tmp_path), preset="debug", run="pond")
    policy = millpond.load(run.folder)
    observation = np.zeros((5, *policy.spec.observation.shape), np.uint8)
    choices = policy.spec.action.sizes[0]
    for only in range(choices):
        mask = np.zeros((5, choices), bool)
        mask[:, only] = True
        action, _ = policy.act(observation, action_mask=mask)
        assert action.tolist() == [only] * 5

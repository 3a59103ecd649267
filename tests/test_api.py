"""The Python interface."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import millpond
from millpond.config import ConfigError
from millpond.errors import MillpondError


def test_plan_train_load_act(tmp_path: Path) -> None:
    assert millpond.plan("metta", {"trainer.minibatch_size": 8_192}).plan.gradient_updates == 64  # type: ignore[union-attr]
    run = millpond.train("grid", overrides={"run_dir": str(tmp_path)}, preset="debug", run="pond")
    assert run.folder == tmp_path / "pond"
    policy = millpond.load(run.folder)
    observation = np.zeros((2, *policy.spec.observation.shape), np.uint8)
    action, state = policy.act(observation)
    assert action.shape == (2,)
    again, _ = policy.act(observation, state)
    assert again.shape == (2,)
    assert state.shape[0] == 2


def test_settings_may_be_keywords_mappings_or_overrides() -> None:
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
    for wrong in ("seed=3", ["seed=3", 4], 4):
        with pytest.raises(MillpondError, match=r"pass a list of texts|4 is not an override"):
            millpond.plan("grid", wrong)  # type: ignore[arg-type]


def test_acting_respects_the_action_mask(tmp_path: Path) -> None:
    run = millpond.train("grid", run_dir=str(tmp_path), preset="debug", run="pond")
    policy = millpond.load(run.folder)
    observation = np.zeros((5, *policy.spec.observation.shape), np.uint8)
    choices = policy.spec.action.sizes[0]
    for only in range(choices):
        mask = np.zeros((5, choices), bool)
        mask[:, only] = True
        action, _ = policy.act(observation, action_mask=mask)
        assert action.tolist() == [only] * 5

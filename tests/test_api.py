"""The Python interface, as a user would call it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import millpond


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

"""Learning on environments with known answers, at the size of a test.

The same recipes at full size, with three seeds each, are in benchmarks/learning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.learning.late_reward import SETTINGS, share_right
from millpond.config import load
from tests.support.ppo_runs import RECIPES, SHORT_RECALL, train_recipe


@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
def test_recurrent_cores_recall_the_cue_and_no_core_guesses(tmp_path: Path, core: str) -> None:
    """One of four cues is asked for 3 to 7 steps later."""
    evaluation = train_recipe("recall", tmp_path, **SHORT_RECALL, **{"policy.core": core}).final_evaluation
    assert evaluation is not None
    right = evaluation.metrics()["eval/env/correct"]
    assert right == evaluation.mean
    if core == "none":
        assert 0.17 < right < 0.33  # four standard deviations of 500 guesses
    else:
        assert right >= 0.95


def value_error(root: Path, **changes: Any) -> float:
    """Return the error of the learned value of the one state; the true value is 1 / (1 - gamma)."""
    size = {"ppo.gamma": 0.9, "trainer.total_timesteps": 25_600, "checkpoint.interval": None}
    trainer = train_recipe("truncation", root, **size, **changes)
    value = float(trainer.policy.value(torch.ones(1, 1), trainer.policy.initial_state(1)))
    return abs(value - 10.0) / 10.0


def test_value_is_right_if_truncation_bootstraps(tmp_path: Path) -> None:
    assert value_error(tmp_path) < 0.02


def test_value_is_wrong_if_truncation_is_treated_as_termination(tmp_path: Path) -> None:
    assert value_error(tmp_path, **{"ppo.bootstrap_truncation": False}) > 0.2


@pytest.mark.parametrize("value_trains_core", [True, False])
def test_large_returns_prevent_learning_if_the_value_trains_the_core(tmp_path: Path, value_trains_core: bool) -> None:
    """With returns of tens and unscaled rewards, the clipped gradient is nearly all that of the value loss."""
    recipe = "../peers/cartpole_lstm"
    changes = {
        "ppo.value_trains_core": value_trains_core,
        "vector.backend": "inline",
        "trainer.total_iterations": 11,
        "eval.interval": None,
        "eval.episodes": 50,
    }
    evaluation = train_recipe(recipe, tmp_path, **changes).final_evaluation
    assert evaluation is not None
    assert evaluation.mean < 60 if value_trains_core else evaluation.mean > 100


def test_benchmark_recipes_are_valid() -> None:
    paths = sorted(RECIPES.glob("*.yaml"))
    assert {path.stem for path in paths} == {"breakout", "cartpole", "late_reward", "pendulum", "recall", "truncation"}
    for path in paths:
        assert load(path).recipe.description


@pytest.mark.slow
def test_credit_passes_the_end_of_a_row_only_if_it_bootstraps_from_a_stored_state(tmp_path: Path) -> None:
    """The first of 16 steps decides, the last pays, and rows have 8 steps."""
    right = {setting: share_right(setting, 1, 16, 60, tmp_path) for setting in SETTINGS}
    assert right.pop("ppo.style=millpond") > 0.9
    assert set(right) == {"ppo.row_state=zero", "ppo.row_end=zero", "ppo.style=puffer"}
    assert all(0.2 < share < 0.8 for share in right.values()), right

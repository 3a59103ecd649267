"""The reward plan: the documents' hierarchy, counted out."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millpond.config import load
from millpond.config.reward import RewardConfig
from millpond.planner import RewardPlan, plan
from millpond.planner.show import show


def reward(recipe: str, overrides: dict[str, Any] | None = None, preset: str | None = None) -> RewardPlan:
    found = plan(recipe, overrides or {}, preset=preset).plan
    assert isinstance(found, RewardPlan)
    return found


def test_the_documents_totals() -> None:
    found = reward("reward-libero")
    assert (found.batches_per_iteration, found.batches_per_cycle, found.batches_per_epoch) == (50, 5_000, 500_000)
    assert found.batches == 5_000_000
    assert found.records_per_cycle == 5_000  # the document says 50,000
    assert found.lines_per_cycle == 50  # a cycle, not an iteration
    assert found.iteration_lines_per_cycle == 100
    assert found.tensorboard_points == 1_000
    assert (found.dataset_episodes, found.dataset_steps) == (379, 101_469)
    assert "5,000,000 batches" in show(plan("reward-libero"))


def test_presets_of_the_documents() -> None:
    assert reward("reward", preset="full").batches == 5_000_000
    assert reward("reward", preset="debug").batches == 1
    fast = reward("reward", preset="fast")
    assert 10 <= fast.cycles <= 20
    assert (fast.iterations, fast.train_batches) == (50, 50)
    assert RewardConfig().epochs == 3


def test_the_end_always_saves() -> None:
    for epochs, save_freq, checkpoints in ((10, 1, 10), (10, 3, 4), (10, 5, 2), (1, 7, 1)):
        found = reward("reward", {"reward.epochs": epochs, "reward.save_freq": save_freq})
        assert found.checkpoints == checkpoints


def test_checkpoint_interval_stands_in_for_save_freq() -> None:
    assert reward("reward", {"reward.save_freq": None, "checkpoint.interval": 2}).save_freq == 2


def test_epochs_can_be_capped() -> None:
    assert reward("reward-libero", {"trainer.total_iterations": 2}).batches == 1_000_000


def test_full_mode_counts_env_steps() -> None:
    found = reward("reward-online")
    assert found.env_steps == 5 * 4 * 20 * 50 + 1_000
    assert found.test_episodes == 5 * 4 * 5
    assert reward("reward").env_steps == 0


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20), st.integers(1, 60), st.integers(1, 9))
def test_the_parts_add_up(epochs: int, cycles: int, iterations: int, batches: int, save_freq: int) -> None:
    found = reward(
        "reward",
        {
            "reward.epochs": epochs,
            "reward.cycles": cycles,
            "reward.iterations": iterations,
            "reward.train_batches": batches,
            "reward.save_freq": save_freq,
        },
    )
    assert (
        found.batches
        == sum(1 for _ in range(epochs * cycles * iterations * batches))
        == found.batches_per_epoch * epochs
    )
    assert found.batches_per_cycle * cycles == found.batches_per_epoch
    saves = {epoch for epoch in range(1, epochs + 1) if epoch % save_freq == 0} | {epochs}
    assert found.checkpoints == len(saves)
    assert found.passes_over_data is not None
    training = 56 - round(56 * 0.2)
    assert abs(found.passes_over_data * training * 200 - found.steps_in_all) < 1e-6 * found.steps_in_all


def test_save_freq_in_the_recipe_is_one() -> None:
    assert load("reward").values["reward"]["save_freq"] == 1


def test_one_of_a_kind_is_not_many() -> None:
    text = show(plan("reward", {"reward.epochs": 1, "reward.cycles": 1, "reward.train_target": 1}))
    assert "1 epoch x 1 cycle x 10 iterations x 50 batches = 500 batches" in " ".join(text.split())
    assert "every 1 update\n" in text


def test_named_episodes_are_held_out() -> None:
    assert reward("reward", {"data.held_out": [3, 5]}).training_episodes == 54

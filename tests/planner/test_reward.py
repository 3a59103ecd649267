"""The reward plan: the documents' hierarchy, counted out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.config import load
from millpond.config.reward import RewardConfig
from millpond.data import DataError
from millpond.planner import RewardPlan, plan
from millpond.planner.text import show
from tests.support.episode_files import (
    WrittenEpisode,
    make_episodes,
    write_lake,
    write_libero,
    write_minari,
    write_npz,
    write_robomimic,
    write_robosuite,
)


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


def episodes_of(lengths: list[int], name: str = "obs") -> list[WrittenEpisode]:
    return make_episodes(np.random.default_rng(1), lengths, {name: ((3,), "float32")})


def write_folder(path: Path, episodes: list[WrittenEpisode]) -> None:
    path.mkdir()
    write_npz(path / "a.npz", episodes[:2])
    write_npz(path / "b.npz", episodes[2:])


@pytest.mark.parametrize(
    ("write", "name", "layout"),
    [
        (write_npz, "mine.npz", "imitation npz"),
        (write_robomimic, "mine.hdf5", "robomimic HDF5"),
        (write_minari, "main_data.hdf5", "Minari HDF5"),
        (write_lake, "lake", "lake"),
        (write_folder, "folder", "imitation npz"),
    ],
)
def test_the_plan_reads_the_data(
    write: Callable[[Path, list[WrittenEpisode]], None], name: str, layout: str, tmp_path: Path
) -> None:
    write(tmp_path / name, episodes_of([20, 30, 25, 40, 35]))
    planned = plan("reward", {"data.path": str(tmp_path / name)})
    found = planned.plan
    assert isinstance(found, RewardPlan)
    assert found.dataset is not None
    assert (found.dataset_episodes, found.dataset_steps, found.dataset.layout) == (5, 150, layout)
    assert (found.training_episodes, found.held_out_episodes) == (4, 1)
    assert (found.dataset.shortest, found.dataset.longest) == (20, 40)
    assert found.batches_per_pass == found.dataset.training_steps / 256
    assert found.passes_over_data == found.batches * 256 / found.dataset.training_steps
    text = show(planned)
    assert f"{tmp_path / name}: {layout}" in " ".join(text.split())
    assert "obs float32[3]; actions: float32[2]" in text
    assert "20 to 40 per episode" in text
    flat = json.loads(json.dumps(planned.to_json()))
    assert flat["dataset_layout"] == layout
    assert "dataset" not in flat


def test_progress_plans_with_successes_alone(tmp_path: Path) -> None:
    write_libero(tmp_path / "a.hdf5", (10, 20, 30, 40), side=4)
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file["data/demo_3/rewards"][...] = 0
    changes = {"data.path": str(tmp_path / "a.hdf5"), "reward.objective": "progress", "data.held_out": [0]}
    found = reward("reward", changes)
    assert found.dataset is not None
    assert (found.training_episodes, found.held_out_episodes, found.dataset.training_steps) == (2, 1, 20 + 30)
    assert "1 left out because they failed" in " ".join(show(plan("reward", changes)).split())


def test_an_objective_that_does_not_fit_is_an_alert(tmp_path: Path) -> None:
    write_robosuite(tmp_path / "old.hdf5", episodes_of([20, 30], "states"), actions=False)
    planned = plan("reward", {"data.path": str(tmp_path / "old.hdf5")})
    (alert,) = planned.alerts
    assert "data/demo_1/actions is missing" in alert
    assert "use reward.objective=progress" in alert
    assert planned.plan.dataset.objectives == ("progress",)  # type: ignore[union-attr]
    assert not plan("reward", {"data.path": str(tmp_path / "old.hdf5"), "reward.objective": "progress"}).alerts


def test_failures_alone_are_an_alert_for_progress(tmp_path: Path) -> None:
    write_libero(tmp_path / "a.hdf5", (10, 20), side=4)
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        for demo in file["data"].values():
            demo["rewards"][...] = 0
    (alert,) = plan("reward", {"data.path": str(tmp_path / "a.hdf5"), "reward.objective": "progress"}).alerts
    assert "no episode succeeded, and progress is learned from successes" in alert


@pytest.mark.parametrize("recipe", ["reward", "reward-libero"])
def test_data_that_is_missing_or_unreadable_has_no_plan(recipe: str, tmp_path: Path) -> None:
    """The sizes that a recipe expects are those of its own data, and never stand in for other data."""
    for name, says in (("none.npz", "no such file or folder"), ("a" * 300, "no such"), ("torn.npz", "cannot be read")):
        (tmp_path / "torn.npz").write_bytes(b"PK not a zip")
        with pytest.raises(DataError, match=rf"{name}.*{says}"):
            plan(recipe, {"data.path": str(tmp_path / name)})


def test_a_recipe_that_extends_another_leaves_its_sizes_behind(tmp_path: Path) -> None:
    write_npz(tmp_path / "mine.npz", episodes_of([20, 30]))
    mine = {"extends": "reward-libero", "data": {"path": str(tmp_path / "mine.npz"), "observation_keys": []}}
    assert load(mine).recipe.data.expected_episodes is None  # type: ignore[union-attr]
    found = plan(mine).plan
    assert isinstance(found, RewardPlan)
    assert found.dataset_episodes == 2
    both = {"extends": mine["extends"], "data": {**mine["data"], "expected_episodes": 3}}  # type: ignore[dict-item]
    with pytest.raises(
        DataError, match=r"data.expected_episodes=3, but .*mine.npz has 2; set data.expected_episodes=2"
    ):
        plan(both)


def test_data_that_is_elsewhere_is_planned_by_the_sizes_of_the_recipe() -> None:
    planned = plan("reward-libero")
    assert isinstance(planned.plan, RewardPlan)
    assert planned.plan.dataset is None
    assert any("data.path=libero is not on this machine" in note for note in planned.loaded.notes)


def test_fast_says_that_it_shortens_full() -> None:
    (note,) = plan("reward", preset="fast").loaded.notes
    assert note == (
        "--preset fast shortens --preset full from 5,000,000 batches to 75,000; without a preset this recipe has 6,000"
    )
    for preset in (None, "full", "debug"):
        assert not plan("reward", preset=preset).loaded.notes

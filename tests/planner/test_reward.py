"""Plans of reward learning: the hierarchy, the data, the presets."""

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
from millpond.planner.planned import show
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
    numbers = plan(recipe, overrides or {}, preset=preset).plan
    assert isinstance(numbers, RewardPlan)
    return numbers


def test_the_numbers_of_the_original_hierarchy() -> None:
    numbers = reward("reward-libero")
    assert (numbers.batches_per_iteration, numbers.batches_per_cycle, numbers.batches_per_epoch) == (50, 5_000, 500_000)
    assert numbers.batches == 5_000_000
    assert numbers.records_per_cycle == 5_000
    assert numbers.lines_per_cycle == 50  # per cycle, not per iteration
    assert numbers.iteration_lines_per_cycle == 100
    assert numbers.tensorboard_points == 1_000
    assert (numbers.dataset_episodes, numbers.dataset_steps) == (379, 101_469)
    assert "5,000,000 batches" in show(plan("reward-libero"))


def test_presets_of_the_packaged_recipes() -> None:
    assert reward("reward", preset="full").batches == 5_000_000
    assert reward("reward", preset="debug").batches == 1
    fast = reward("reward", preset="fast")
    assert 10 <= fast.cycles <= 20
    assert (fast.iterations, fast.train_batches) == (50, 50)
    assert RewardConfig().epochs == 3


def test_the_last_epoch_always_saves() -> None:
    for epochs, save_freq, checkpoints in ((10, 1, 10), (10, 3, 4), (10, 5, 2), (1, 7, 1)):
        numbers = reward("reward", {"reward.epochs": epochs, "reward.save_freq": save_freq})
        assert numbers.checkpoints == checkpoints


def test_checkpoint_interval_replaces_save_freq() -> None:
    assert reward("reward", {"reward.save_freq": None, "checkpoint.interval": 2}).save_freq == 2


def test_total_iterations_limits_the_epochs() -> None:
    assert reward("reward-libero", {"trainer.total_iterations": 2}).batches == 1_000_000


def test_full_mode_counts_env_steps() -> None:
    numbers = reward("reward-online")
    assert numbers.env_steps == 5 * 4 * 20 * 50 + 1_000
    assert numbers.test_episodes == 5 * 4 * 5
    assert reward("reward").env_steps == 0


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20), st.integers(1, 60), st.integers(1, 9))
def test_any_hierarchy_is_consistent(epochs: int, cycles: int, iterations: int, batches: int, save_freq: int) -> None:
    numbers = reward(
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
        numbers.batches
        == sum(1 for _ in range(epochs * cycles * iterations * batches))
        == numbers.batches_per_epoch * epochs
    )
    assert numbers.batches_per_cycle * cycles == numbers.batches_per_epoch
    saves = {epoch for epoch in range(1, epochs + 1) if epoch % save_freq == 0} | {epochs}
    assert numbers.checkpoints == len(saves)
    assert numbers.passes_over_data is not None
    training = 56 - round(56 * 0.2)
    assert abs(numbers.passes_over_data * training * 200 - numbers.steps_in_all) < 1e-6 * numbers.steps_in_all


def test_save_freq_in_the_recipe_is_one() -> None:
    assert load("reward").values["reward"]["save_freq"] == 1


def test_a_single_batch_is_described_in_the_singular() -> None:
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
    numbers = planned.plan
    assert isinstance(numbers, RewardPlan)
    assert numbers.dataset is not None
    assert (numbers.dataset_episodes, numbers.dataset_steps, numbers.dataset.layout) == (5, 150, layout)
    assert (numbers.training_episodes, numbers.held_out_episodes) == (4, 1)
    assert (numbers.dataset.shortest, numbers.dataset.longest) == (20, 40)
    assert numbers.batches_per_pass == numbers.dataset.training_steps / 256
    assert numbers.passes_over_data == numbers.batches * 256 / numbers.dataset.training_steps
    text = show(planned)
    assert f"{tmp_path / name}: {layout}" in " ".join(text.split())
    assert "obs float32[3]; actions: float32[2]" in text
    assert "20 to 40 per episode" in text
    flat = json.loads(json.dumps(planned.to_json()))
    assert flat["dataset_layout"] == layout
    assert "dataset" not in flat


def test_progress_uses_successful_episodes_only(tmp_path: Path) -> None:
    write_libero(tmp_path / "a.hdf5", (10, 20, 30, 40), side=4)
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file["data/demo_3/rewards"][...] = 0
    changes = {"data.path": str(tmp_path / "a.hdf5"), "reward.objective": "progress", "data.held_out": [0]}
    numbers = reward("reward", changes)
    assert numbers.dataset is not None
    assert (numbers.training_episodes, numbers.held_out_episodes, numbers.dataset.training_steps) == (2, 1, 20 + 30)
    assert "1 left out because they failed" in " ".join(show(plan("reward", changes)).split())


def test_an_unsuitable_objective_is_an_alert(tmp_path: Path) -> None:
    write_robosuite(tmp_path / "old.hdf5", episodes_of([20, 30], "states"), actions=False)
    planned = plan("reward", {"data.path": str(tmp_path / "old.hdf5")})
    (alert,) = planned.alerts
    assert "data/demo_1/actions is missing" in alert
    assert "use reward.objective=progress" in alert
    assert planned.plan.dataset.objectives == ("progress",)  # type: ignore[union-attr]
    assert not plan("reward", {"data.path": str(tmp_path / "old.hdf5"), "reward.objective": "progress"}).alerts


def test_progress_with_failed_episodes_only_is_an_alert(tmp_path: Path) -> None:
    write_libero(tmp_path / "a.hdf5", (10, 20), side=4)
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        for demo in file["data"].values():
            demo["rewards"][...] = 0
    (alert,) = plan("reward", {"data.path": str(tmp_path / "a.hdf5"), "reward.objective": "progress"}).alerts
    assert "no episode succeeded, and progress is learned from successes" in alert


@pytest.mark.parametrize("recipe", ["reward", "reward-libero"])
def test_missing_or_unreadable_data_is_refused(recipe: str, tmp_path: Path) -> None:
    """The sizes that a recipe expects belong to its own data and are never used for other data."""
    for name, says in (("none.npz", "no such file or folder"), ("a" * 300, "no such"), ("torn.npz", "cannot be read")):
        (tmp_path / "torn.npz").write_bytes(b"PK not a zip")
        with pytest.raises(DataError, match=rf"{name}.*{says}"):
            plan(recipe, {"data.path": str(tmp_path / name)})


def test_another_data_path_drops_the_expected_sizes(tmp_path: Path) -> None:
    write_npz(tmp_path / "mine.npz", episodes_of([20, 30]))
    mine = {"extends": "reward-libero", "data": {"path": str(tmp_path / "mine.npz"), "observation_keys": []}}
    assert load(mine).recipe.data.expected_episodes is None  # type: ignore[union-attr]
    numbers = plan(mine).plan
    assert isinstance(numbers, RewardPlan)
    assert numbers.dataset_episodes == 2
    both = {"extends": mine["extends"], "data": {**mine["data"], "expected_episodes": 3}}  # type: ignore[dict-item]
    with pytest.raises(
        DataError, match=r"data.expected_episodes=3, but .*mine.npz has 2; set data.expected_episodes=2"
    ):
        plan(both)


def test_data_on_another_machine_is_planned_by_its_expected_sizes() -> None:
    planned = plan("reward-libero")
    assert isinstance(planned.plan, RewardPlan)
    assert planned.plan.dataset is None
    assert any("data.path=libero is not on this machine" in note for note in planned.loaded.notes)


def test_preset_fast_is_explained() -> None:
    (note,) = plan("reward", preset="fast").loaded.notes
    assert note == (
        "--preset fast shortens --preset full from 5,000,000 batches to 75,000; without a preset this recipe has 6,000"
    )
    for preset in (None, "full", "debug"):
        assert not plan("reward", preset=preset).loaded.notes

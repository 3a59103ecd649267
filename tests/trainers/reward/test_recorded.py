"""Reward learning from files as they are on disk: LIBERO with images, other tasks, successes; and scores of episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from millpond.cli import main
from millpond.config import load
from millpond.data import DataError
from millpond.trainers.common.kinds import require_trainer
from millpond.trainers.common.session import start_run
from millpond.trainers.reward.score import score_run
from millpond.trainers.reward.trainer import RewardTrainer
from tests.support.episode_files import WrittenEpisode, make_episodes, write_libero, write_npz, write_robosuite

TINY = {
    "reward.epochs": 1,
    "reward.cycles": 1,
    "reward.iterations": 2,
    "reward.train_batches": 2,
    "reward.hidden_size": 16,
    "reward.episodes_per_batch": 2,
    "reward.steps_per_episode": 4,
    "log.tensorboard": False,
}
KEYS = ["gripper_states", "joint_states"]


def trained(root: Path, name: str, **changes: Any) -> RewardTrainer:
    loaded = load("reward", {**TINY, "run_dir": str(root), **changes})
    require_trainer(loaded)
    trainer = RewardTrainer(loaded, start_run(loaded, name))
    trainer.train()
    return trainer


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["millpond", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_a_libero_file_with_images_trains_and_its_constant_returns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "task_demo.hdf5"
    write_libero(path)
    data = {"data.path": str(path), "data.observation_keys": [*KEYS, "agentview_rgb"], "data.images": True}
    for objective in ("rrd", "lrd"):
        with pytest.raises(DataError, match=r"has the return 1, .*use reward.objective=progress"):
            require_trainer(load("reward", {**TINY, **data, "reward.objective": objective}))
    trainer = trained(tmp_path, "libero", **data, **{"reward.objective": "progress", "data.memory_bytes": 0})
    assert trainer.network.inputs.images == (("agentview_rgb", (128, 128, 3)),)
    assert not trainer.batches.features.cached
    convolution = next(iter(trainer.network.encoders.parameters()))
    assert convolution.grad is not None
    assert convolution.grad.abs().sum() > 0
    assert trainer.held_out is not None
    assert {"voc", "voc_reversed", "cut_value"} <= set(trainer.held_out.learned)


def test_decomposition_of_images_sees_both_frames(tmp_path: Path) -> None:
    path = tmp_path / "task_demo.hdf5"
    write_libero(path)
    with h5py.File(path, "r+") as file:  # returns that differ
        for number, demo in enumerate(file["data"].values()):
            demo["rewards"][0] = number
    data = {"data.path": str(path), "data.observation_keys": ["agentview_rgb"], "data.images": True}
    trainer = trained(tmp_path, "pixels", **data, **{"reward.objective": "lrd"})
    assert trainer.network.normalizer is None  # nothing but images
    assert next(iter(trainer.network.encoders.parameters())).shape[1] == 6


def test_prepared_features_are_those_that_are_read(tmp_path: Path) -> None:
    """In memory or from the file, a batch is the same to the last bit, and so is the run."""
    path = tmp_path / "task_demo.hdf5"
    write_libero(path)
    data = {"data.path": str(path), "data.observation_keys": KEYS, "reward.objective": "progress"}
    prepared = trained(tmp_path, "prepared", **data)
    read = trained(tmp_path, "read", **data, **{"data.memory_bytes": 0})
    assert prepared.batches.features.cached
    assert not read.batches.features.cached
    for one, other in zip(prepared.network.parameters(), read.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_episodes_of_another_task_end_lower(tmp_path: Path) -> None:
    own, other = tmp_path / "own_demo.hdf5", tmp_path / "other_demo.hdf5"
    write_libero(own, lengths=(30, 25, 28, 26))
    write_libero(other, lengths=(20, 22), seed=5)
    with h5py.File(other, "r+") as file:
        for demo in file["data"].values():
            demo["obs/joint_states"][...] = 7.0
    longer = {"reward.train_batches": 60, "reward.learning_rate": 3e-3, "reward.objective": "progress"}
    data = {"data.path": str(own), "data.observation_keys": KEYS, "reward.negatives": str(other)}
    trainer = trained(tmp_path, "negatives", **data, **longer)
    assert trainer.held_out is not None
    learned = trainer.held_out.learned
    assert learned["other_task_value"] < learned["end_value"] - 0.3


def test_success_is_told_from_failure(tmp_path: Path) -> None:
    path = tmp_path / "mixed_demo.hdf5"
    write_libero(path, lengths=(30,) * 10)
    with h5py.File(path, "r+") as file:
        for number, demo in enumerate(file["data"].values()):
            if number % 2:  # never closes its gripper
                demo["rewards"][...], demo["dones"][...] = 0, 0
                demo["obs/gripper_states"][...] = demo["obs/gripper_states"][0]
    changes = {"reward.train_batches": 100, "reward.learning_rate": 3e-3, "reward.steps_per_episode": 16}
    data = {"data.path": str(path), "data.observation_keys": ["gripper_states"], "data.held_out": [0, 1, 2, 3]}
    trainer = trained(tmp_path, "success", **data, **changes, **{"reward.objective": "success"})
    assert trainer.held_out is not None
    assert trainer.held_out.learned["success_auc"] == 1.0


def test_scores_are_written_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = trained(Path("runs"), "scored")
    capsys.readouterr()
    picture = tmp_path / "rewards.png"
    assert command(monkeypatch, "reward", "score", "scored", "pendulum", "--plot", str(picture), "--episodes", "1") == 0
    assert "56 episodes scored by scored (lrd, 4 updates)" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    with np.load("pendulum-reward.npz", allow_pickle=False) as found:
        rewards, lengths, names = found["rewards"], found["lengths"], found["names"]
    assert lengths.tolist() == [200] * 56
    assert rewards.dtype == np.float32
    assert len(rewards) == 56 * 200
    assert len(names) == 56
    from millpond.trainers.reward.evaluation import judge_episode

    expected, _ = judge_episode(trainer.network, trainer.recorded.data, 3, torch.device("cpu"))
    assert np.array_equal(rewards[600:800], expected)

    svg = ("--out", "scores.hdf5", "--plot", "rewards.svg", "--json")
    assert command(monkeypatch, "reward", "score", "scored", "pendulum", *svg) == 0
    assert json.loads(capsys.readouterr().out)["episodes"][3]["steps"] == 200
    with h5py.File("scores.hdf5") as file:
        assert np.array_equal(file["episode_3/reward"][...], expected)
    assert Path("rewards.svg").read_text().lstrip().startswith("<?xml")


def test_a_file_without_some_of_the_discrete_actions_is_scored(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, actions in (("all", 4), ("some", 2), ("more", 6)):
        acts = np.resize(np.arange(actions), 60)
        write_npz(
            tmp_path / f"{name}.npz",
            [
                WrittenEpisode(
                    {"obs": rng.normal(size=(21, 3)).astype("float32")}, acts[at : at + 20], rng.normal(size=20)
                )
                for at in (0, 20, 40)
            ],
        )
    trained(tmp_path, "discrete", **{"data.path": str(tmp_path / "all.npz")})
    scores = score_run("discrete", str(tmp_path / "some.npz"), run_dir=str(tmp_path))
    assert [len(reward) for reward in scores.rewards] == [20, 20, 20]
    with pytest.raises(DataError, match="has 6 actions, run 'discrete' was trained on 4"):
        score_run("discrete", str(tmp_path / "more.npz"), run_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scored", "lift"], "not what run 'scored' was trained on"),
        (["scored", "pendulum", "--episodes", "56"], "the file has 56, counted from 0"),
        (["scored", "pendulum", "--out", "scores.csv"], "must end in .npz"),
        (["none", "pendulum"], "no run 'none'"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    trained(Path("runs"), "scored")
    assert command(monkeypatch, "reward", "score", *arguments) == 2
    assert message in capsys.readouterr().err


def demonstrations(folder: Path) -> None:
    """The same five in two robosuite files: old.hdf5 without actions, new.hdf5 with them."""
    episodes = make_episodes(np.random.default_rng(0), [30, 25, 40, 33, 20], {"states": ((6,), "float64")})
    for episode in episodes:
        episode.observation["states"] += np.linspace(0, 3, len(episode) + 1)[:, None]
    write_robosuite(folder / "old.hdf5", episodes, actions=False)
    write_robosuite(folder / "new.hdf5", episodes)


def test_progress_is_learned_and_scored_without_actions(tmp_path: Path) -> None:
    demonstrations(tmp_path)
    progress = {"reward.objective": "progress"}
    old = trained(tmp_path, "old", **{"data.path": str(tmp_path / "old.hdf5")}, **progress)
    new = trained(tmp_path, "new", **{"data.path": str(tmp_path / "new.hdf5")}, **progress)
    for one, other in zip(old.network.parameters(), new.network.parameters(), strict=True):
        assert torch.equal(one, other)  # progress looks at states alone
    mine, theirs = (score_run("old", str(tmp_path / f"{name}.hdf5"), run_dir=str(tmp_path)) for name in ("old", "new"))
    for one, other in zip(mine.rewards, theirs.rewards, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rewards_of_transitions_name_the_missing_actions(tmp_path: Path) -> None:
    demonstrations(tmp_path)
    path = tmp_path / "old.hdf5"
    with pytest.raises(
        DataError, match=r"old\.hdf5 .*lrd: data/demo_1/actions is missing, .*reward.objective=progress"
    ):
        require_trainer(load("reward", {**TINY, "data.path": str(path)}))
    trained(tmp_path, "pendulum")
    with pytest.raises(DataError, match=r"old\.hdf5: data/demo_1/actions is missing, .*objective=progress"):
        score_run("pendulum", str(path), run_dir=str(tmp_path))

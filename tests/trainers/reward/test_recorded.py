"""Reward learning from recorded files: LIBERO with images, another task, successes and failures."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest
import torch

from millpond.config import load
from millpond.data import DataError
from millpond.trainers.common.session import require_trainer
from tests.support.episode_files import write_libero
from tests.support.reward_runs import TINY_REWARD, train_tiny_reward

KEYS = ["gripper_states", "joint_states"]


def test_a_libero_file_with_images_trains_and_its_constant_returns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "task_demo.hdf5"
    write_libero(path)
    data = {"data.path": str(path), "data.observation_keys": [*KEYS, "agentview_rgb"], "data.images": True}
    for objective in ("rrd", "lrd"):
        with pytest.raises(DataError, match=r"has the return 1, .*use reward.objective=progress"):
            require_trainer(load("reward", {**TINY_REWARD, **data, "reward.objective": objective}))
    trainer = train_tiny_reward(tmp_path, "libero", **data, **{"reward.objective": "progress", "data.memory_bytes": 0})
    assert trainer.network.inputs.images == (("agentview_rgb", (128, 128, 3)),)
    assert not trainer.batches.features.cached
    convolution = next(iter(trainer.network.encoders.parameters()))
    assert convolution.grad is not None
    assert convolution.grad.abs().sum() > 0
    assert trainer.held_out is not None
    assert {"voc", "voc_reversed", "cut_value"} <= set(trainer.held_out.learned)


def test_decomposition_with_images_uses_both_frames(tmp_path: Path) -> None:
    path = tmp_path / "task_demo.hdf5"
    write_libero(path)
    with h5py.File(path, "r+") as file:  # different returns
        for number, demo in enumerate(file["data"].values()):
            demo["rewards"][0] = number
    data = {"data.path": str(path), "data.observation_keys": ["agentview_rgb"], "data.images": True}
    trainer = train_tiny_reward(tmp_path, "pixels", **data, **{"reward.objective": "lrd"})
    assert trainer.network.normalizer is None  # only images
    assert next(iter(trainer.network.encoders.parameters())).shape[1] == 6


def test_cached_features_equal_those_computed_when_sampled(tmp_path: Path) -> None:
    """Batches from memory and from the file are equal bit for bit, and so are the runs."""
    path = tmp_path / "task_demo.hdf5"
    write_libero(path)
    data = {"data.path": str(path), "data.observation_keys": KEYS, "reward.objective": "progress"}
    cached = train_tiny_reward(tmp_path, "cached", **data)
    read = train_tiny_reward(tmp_path, "read", **data, **{"data.memory_bytes": 0})
    assert cached.batches.features.cached
    assert not read.batches.features.cached
    for one, other in zip(cached.network.parameters(), read.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_episodes_of_another_task_end_at_a_lower_value(tmp_path: Path) -> None:
    own, other = tmp_path / "own_demo.hdf5", tmp_path / "other_demo.hdf5"
    write_libero(own, lengths=(30, 25, 28, 26))
    write_libero(other, lengths=(20, 22), seed=5)
    with h5py.File(other, "r+") as file:
        for demo in file["data"].values():
            demo["obs/joint_states"][...] = 7.0
    longer = {"reward.train_batches": 60, "reward.learning_rate": 3e-3, "reward.objective": "progress"}
    data = {"data.path": str(own), "data.observation_keys": KEYS, "reward.negatives": str(other)}
    trainer = train_tiny_reward(tmp_path, "negatives", **data, **longer)
    assert trainer.held_out is not None
    learned = trainer.held_out.learned
    assert learned["other_task_value"] < learned["end_value"] - 0.3


def test_success_is_distinguished_from_failure(tmp_path: Path) -> None:
    path = tmp_path / "mixed_demo.hdf5"
    write_libero(path, lengths=(30,) * 10)
    with h5py.File(path, "r+") as file:
        for number, demo in enumerate(file["data"].values()):
            if number % 2:  # a failure: the gripper never closes
                demo["rewards"][...], demo["dones"][...] = 0, 0
                demo["obs/gripper_states"][...] = demo["obs/gripper_states"][0]
    changes = {"reward.train_batches": 100, "reward.learning_rate": 3e-3, "reward.steps_per_episode": 16}
    data = {"data.path": str(path), "data.observation_keys": ["gripper_states"], "data.held_out": [0, 1, 2, 3]}
    trainer = train_tiny_reward(tmp_path, "success", **data, **changes, **{"reward.objective": "success"})
    assert trainer.held_out is not None
    assert trainer.held_out.learned["success_auc"] == 1.0

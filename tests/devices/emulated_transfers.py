"""Staging blocks, emulated streams, and collections with a policy on a device. Run by test_emulated.py in its own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond.devices.counts import Counts, counting
from millpond.devices.emulated import register
from millpond.devices.emulated_streams import RaceError
from millpond.devices.staging import BlockField, Downloads, Uploads
from millpond.devices.streams import make_event, make_stream, on_stream
from millpond.trainers.common.session import load_to_run, make_trainer, start_run
from millpond.trainers.ppo.trainer import PPOTrainer

register()
DEVICE = torch.device("emulated")
FIELDS = {"number": BlockField((3,), np.float32), "flag": BlockField((2,), np.bool_)}


def test_uploads_are_one_copy_without_waiting() -> None:
    uploads = Uploads(FIELDS, DEVICE)
    with counting() as counts:
        for step in range(3):
            uploads.open()
            uploads.arrays["number"][:] = step
            uploads.arrays["flag"][:] = step == 1
            uploads.send()
            found = uploads.tensors["number"].sum(), uploads.tensors["flag"].any()
            uploads.release()
            assert [one.item() for one in found] == [3.0 * step, step == 1]
    assert (counts.of("upload"), counts.of("blocking upload")) == (3, 0)


def test_part_of_a_block_can_be_sent() -> None:
    uploads = Uploads(FIELDS, DEVICE)
    uploads.open()
    uploads.arrays["number"][:], uploads.arrays["flag"][:] = 7, True
    uploads.send(uploads.offsets["flag"])
    assert uploads.tensors["number"].tolist() == [7.0] * 3
    assert uploads.tensors["flag"].tolist() == [False, False]


def test_downloads_are_one_copy() -> None:
    downloads = Downloads({"action": BlockField((3,), np.int32), "value": BlockField((3,), np.float32)}, DEVICE)
    action, value = torch.arange(3, device=DEVICE), torch.ones(3, device=DEVICE) / 2
    with counting() as counts:
        found = downloads.fetch({"action": action, "value": value})
        assert found["action"].tolist() == [0, 1, 2]
        assert found["action"].dtype == np.int32
        assert found["value"].tolist() == [0.5] * 3
        assert downloads.fetch({"action": action + 1})["action"].tolist() == [1, 2, 3]
    assert counts.of("download") == 2


def test_writing_to_the_host_before_the_copy_ended_is_a_race() -> None:
    uploads = Uploads(FIELDS, DEVICE)
    uploads.send()
    uploads.arrays["number"][:] = 1  # without open()
    with pytest.raises(RaceError, match="overwritten before its asynchronous copy"):
        uploads.open()


def test_copying_over_memory_that_is_read_is_a_race() -> None:
    uploads = Uploads(FIELDS, DEVICE)
    uploads.open()
    uploads.send()
    uploads.tensors["number"].sum()  # without release()
    uploads.open()
    with pytest.raises(RaceError, match="while a kernel may still read it"):
        uploads.send()


def test_reading_before_the_copy_arrived_gives_wrong_numbers() -> None:
    stream, event = make_stream(DEVICE), make_event(DEVICE)
    assert stream is not None
    pinned, target = Uploads(FIELDS, DEVICE)._pinned, torch.zeros(128, dtype=torch.uint8, device=DEVICE)
    with on_stream(stream):
        target.copy_(pinned, non_blocking=True)
    event.record(stream)
    assert int(target.max()) > 0
    event.synchronize()
    assert int(target.max()) == 0


@contextmanager
def trainer_on(device: str, folder: Path, recipe: str, *overrides: str) -> Iterator[PPOTrainer]:
    """Yield the trainer of a recipe's preset `debug`, in plain PyTorch."""
    ours = [f"device={device}", f"run_dir={folder}", "log.tensorboard=false", "trainer.fast=false"]
    loaded = load_to_run(recipe, [*overrides, *ours], "debug", trust=True)
    trainer: Any = make_trainer(loaded, start_run(loaded, f"on-{len(list(folder.iterdir()))}"))
    try:
        yield trainer
    finally:
        trainer.close()


def trained(device: str, folder: Path, recipe: str, *overrides: str) -> tuple[dict[str, torch.Tensor], Counts]:
    """Return the weights after a run, on the CPU, and what the device was asked to do."""
    with trainer_on(device, folder, recipe, *overrides) as trainer, counting() as counts:
        trainer.train()
        return {name: parameter.detach().cpu() for name, parameter in trainer.policy.named_parameters()}, counts


@pytest.mark.parametrize(
    "overrides",
    [
        ["grid", "ppo.normalize_advantage=minibatch", "ppo.lr_schedule=linear"],
        ["metta", "policy.core=gru", "trainer.batch_unit=env_steps", "ppo.ent_coef=0.02"],
        ["gymnasium:CartPole-v1", "policy.core=mingru", "ppo.recompute_advantage=true"],
    ],
)
def test_captured_graphs_train_as_work_that_is_not_captured(overrides: list[str], tmp_path: Path) -> None:
    recipe, *others = overrides
    others += [*SHORT, "trainer.total_iterations=3", "trainer.update_epochs=3"]
    plain, counts = trained("emulated", tmp_path, recipe, *others)
    captured, fewer = trained("emulated", tmp_path, recipe, *others, "trainer.graphs=true")
    for name, weight in plain.items():
        torch.testing.assert_close(captured[name], weight, rtol=1e-5, atol=1e-6)  # the learning rate is in float32
    assert fewer.operations["replay of a graph"] > 20
    assert fewer.of("launch") < 0.75 * counts.of("launch")


SHORT = ["trainer.bptt_horizon=16", "env.max_steps=7"]
CASES = {
    "agents in rows of their own": ["metta", *SHORT],
    "envs in rows, top-up": ["metta", *SHORT, "trainer.batch_unit=env_steps", "policy.core=gru"],
    "two groups": ["grid", *SHORT],
    "masks": [
        "gymnasium:CartPole-v1",
        "env.id=tests.support.custom_envs:Counter",
        "env.options={truncate: true}",
        *SHORT,
    ],
    "no bootstrap": ["grid", *SHORT, "ppo.row_end=zero", "policy.core=none"],
    "centred rewards": ["grid", *SHORT, "ppo.reward_centering=0.1"],
    "normalised vectors": ["gymnasium:CartPole-v1", *SHORT],
}


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_rows_and_updates_equal_those_of_the_cpu(case: str, offload: bool, tmp_path: Path) -> None:
    recipe, *overrides = CASES[case]
    found = []
    for device, more in (("cpu", []), ("emulated", [f"trainer.cpu_offload={str(offload).lower()}"])):
        with trainer_on(device, tmp_path, recipe, *overrides, *more) as trainer:
            with counting() as counts:
                trainer.train()
            arrays = {name: array.cpu() for name, array in trainer.rows.arrays.items()}
            weights = {name: parameter.detach().cpu() for name, parameter in trainer.policy.named_parameters()}
            found.append((arrays, weights))
            if device == "emulated" and not offload:
                steps = trainer.counters.env_steps / trainer.share.envs_per_group
                assert counts.of("blocking upload") < 40  # of updates and evaluations alone
                assert steps <= counts.of("upload") < 2 * steps + 10
    (rows, weights), (others, other_weights) = found
    assert bool(rows["truncated"].any())
    assert ("action_mask" in rows) == (case == "masks")
    for name, array in rows.items():
        at = rows["truncated"] if name == "final_value" else ...  # others are never read
        assert torch.allclose(others[name][at].float(), array[at].float(), rtol=1e-5, atol=1e-5), name
    for name, weight in weights.items():
        torch.testing.assert_close(other_weights[name], weight, rtol=1e-4, atol=1e-5)

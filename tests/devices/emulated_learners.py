"""Mixtures and reward learning on the emulated device: the CPU's numbers, no waits, and no observations that travel twice.

Run by test_emulated.py in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from millpond.devices.counts import Counts, counting
from millpond.devices.emulated import refusing_float64, register
from millpond.devices.sending import BLOCKS, Sender
from millpond.trainers.common.session import load_to_run, make_trainer, start_run
from tests.support.mixture_runs import ANNEALED, BLOCKS_LIVE, LIVE, SMALL

register()
DEVICE = torch.device("emulated")
MASKED = {
    "env.id": "tests.support.corridor:Doors",
    "env.options": "{limit: 7, image: false}",
    "env.frame_stack": 1,
    "env.max_steps": 7,
}
VECTORS = {"env.id": "gymnasium:CartPole-v1", "env.frame_stack": 1, "env.max_steps": 9}
MIXTURES: dict[str, dict[str, Any]] = {
    "images, n-step": {"dqn.n_step": 3},
    "vectors, agents in one operation": VECTORS,
    "masks": MASKED,
    "live, retrace": {**LIVE, **BLOCKS_LIVE},
    "annealed, resets, shifts": ANNEALED,
}
REWARDS: dict[str, list[str]] = {
    "sac": ["env.id=gymnasium:Pendulum-v1", "env.max_steps=11"],
    "dqn": ["agent.algorithm=dqn", "env.id=gymnasium:CartPole-v1", "reward.objective=lrd"],
}
SMALL_REWARD = ["reward.cycles=2", "reward.iterations=2", "reward.train_batches=3", "agent.batch_size=16"]


@contextmanager
def trainer_on(device: str, folder: Path, recipe: str, *overrides: str) -> Iterator[Any]:
    """Yield the trainer of a recipe's preset `debug`, in plain PyTorch."""
    ours = [f"device={device}", f"run_dir={folder}", "log.tensorboard=false", "trainer.fast=false"]
    loaded = load_to_run(recipe, [*overrides, *ours], "debug", trust=True)
    trainer: Any = make_trainer(loaded, start_run(loaded, f"on-{len(list(folder.iterdir()))}"))
    try:
        yield trainer
    finally:
        trainer.close()


def train_on_both(folder: Path, recipe: str, *overrides: str) -> tuple[dict[str, Tensor], dict[str, Tensor], Counts]:
    """Train on the CPU and on the emulated device; return the weights of both, and the counts of the latter."""
    weights = []
    for device in ("cpu", "emulated"):
        with trainer_on(device, folder, recipe, *overrides) as trainer:
            with counting(lambda: str(trainer.timer.current.path)) as counts:
                trainer.train()
            weights.append(
                {
                    f"{part}/{name}": tensor.detach().cpu().clone()
                    for part, owner in trainer.parts.weights.items()
                    for name, tensor in owner.state_dict().items()
                }
            )
    return weights[0], weights[1], counts


def require_no_waits(counts: Counts, phases: dict[str, int]) -> None:
    """Assert that phases make no syncs and no uploads that the host waits for, and as many downloads at most."""
    for phase, downloads in phases.items():
        totals = counts.totals(phase)
        assert totals["launch"] > 0, phase
        assert (totals["sync"], totals["blocking upload"]) == (0, 0), (phase, totals)
        assert totals["download"] <= downloads, (phase, totals)


def as_overrides(changes: dict[str, Any]) -> list[str]:
    return [f"{key}={'null' if value is None else value}" for key, value in changes.items()]


@pytest.mark.parametrize("case", MIXTURES)
def test_mixtures_equal_those_of_the_cpu_and_never_wait(case: str, tmp_path: Path) -> None:
    changes = {**SMALL, **MIXTURES[case]}
    weights, others, counts = train_on_both(tmp_path, "mixture", *as_overrides(changes))
    assert weights.keys() == others.keys() >= {"big/output.weight", "agent0/output.weight"}
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")  # noqa: B023
    require_no_waits(counts, {"learn": 0, "train_big": 0})
    collect = counts.totals("collect")
    steps = collect["download"]  # the actions of a step, and nothing else
    assert collect["sync"] == 0
    assert 0 < steps <= collect["upload"] <= 2 * steps
    assert counts.of("download", "pour") == counts.of("blocking upload", "pour") == 0


@pytest.mark.parametrize("case", REWARDS)
def test_reward_learning_equals_that_of_the_cpu_and_never_waits(case: str, tmp_path: Path) -> None:
    weights, others, counts = train_on_both(tmp_path, "reward-online", *SMALL_REWARD, *REWARDS[case])
    assert weights.keys() == others.keys() >= {"reward/layers.0.weight", "target/layers.0.weight"}
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")  # noqa: B023
    require_no_waits(counts, {"train": 0})
    assert counts.of("upload", "train") == 2 * 2 * 2 * 3  # of the reward network's batch, and of the agent's
    assert counts.of("blocking upload", "act") == 0


def test_arrays_are_sent_in_one_copy_that_the_host_does_not_wait_for() -> None:
    send = Sender(DEVICE)
    with counting() as counts:
        sent = [send({"number": np.arange(3.0) + k, "flag": np.array([k == 1, True])}) for k in range(3 * BLOCKS)]
    assert counts.totals()["upload"] == 3 * BLOCKS
    assert counts.of("blocking upload") == counts.of("sync") == counts.of("download") == 0
    for k, tensors in enumerate(sent):  # earlier ones stay as they were sent
        assert tensors["number"].tolist() == [k, k + 1.0, k + 2.0]
        assert tensors["flag"].tolist() == [k == 1, True]


def test_larger_arrays_than_before_can_be_sent() -> None:
    send = Sender(DEVICE)
    for size in (3, 1_000, 10):
        array = np.arange(size, dtype=np.int64)
        assert send({"array": array})["array"].tolist() == array.tolist()
    empty = send({"none": np.zeros((0, 4), np.uint8), "one": np.ones(1, np.float32)})
    assert empty["none"].shape == (0, 4)
    assert empty["one"].tolist() == [1.0]


@pytest.mark.parametrize("case", ["images, n-step", "live, retrace"])
def test_mixtures_need_no_float64_on_the_device(case: str, tmp_path: Path) -> None:
    with (
        refusing_float64(),
        trainer_on("emulated", tmp_path, "mixture", *as_overrides({**SMALL, **MIXTURES[case]})) as t,
    ):
        t.train()
        assert t.loop.done

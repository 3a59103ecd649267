"""The bare arithmetic equals the trainer's, and the plain network has memory."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from millpond.bench.arithmetic import Network, PlainNetwork, ReadyBatch, make_ready_batches
from millpond.bench.measure import Effort
from millpond.config import load
from millpond.envs.registry import describe
from millpond.losses import Coefficients
from millpond.rollout.micro_batch import Advantages, gather
from millpond.rollout.sampling import Draw
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.trainer import PPOTrainer
from millpond.trainers.ppo.update import train_minibatch


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PPOTrainer]:
    """A trainer after one iteration, with full rows."""
    folder: Path = tmp_path_factory.mktemp("runs")
    loaded = load("grid", {"run_dir": str(folder), "log.tensorboard": False}, "debug")
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = PPOTrainer(loaded, start_run(loaded, "bare"))
        trainer.train()
    yield trainer
    trainer.close()


def test_bare_update_equals_the_update_of_the_trainer(trainer: PPOTrainer) -> None:
    bare, real = (Network.of_trainer(trainer, Effort.quick()) for _ in range(2))
    rows, plan, ppo = trainer.rows, trainer.share, trainer.recipe.ppo
    picked, ones = torch.arange(plan.minibatch_segments), np.ones(plan.minibatch_segments, np.float32)
    valid_steps = rows["alive"][: plan.segments].sum(dim=(1, 2))
    advantage = torch.randn(rows["value"][: plan.segments].shape)
    advantages = Advantages(advantage, advantage, np.zeros(plan.segments), torch.zeros(()), valid_steps)
    minibatch = gather(rows, advantages, picked, ones, trainer.device)
    bare.train(ReadyBatch(minibatch, valid_steps[picked].sum(), make_ready_batches(trainer)[0].observation, None))

    train_minibatch(
        real.updater,
        real.optimizer,
        rows,
        advantages,
        Draw(picked.numpy(), ones),
        Coefficients(ppo.clip_coef, ppo.vf_clip_coef, ppo.vf_coef, ppo.ent_coef, ppo.max_grad_norm),
        micro_batch_rows=plan.minibatch_segments,
        device=trainer.device,
    )
    moved = 0.0
    for mine, theirs, before in zip(*(network.policy.parameters() for network in (bare, real, trainer)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
        moved += float((mine - before).abs().sum().detach())
    assert moved > 0  # an optimiser that does nothing would pass


def test_seconds_are_scaled_to_a_full_iteration(trainer: PPOTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two forward passes and one update are run; with a fixed clock, the scale is the count of an iteration."""
    network = Network.of_trainer(trainer, Effort(calls=2, updates=1))
    calls: list[str] = []
    monkeypatch.setattr(network, "act", lambda ready: calls.append("act"))
    monkeypatch.setattr(network, "train", lambda ready: calls.append("train"))
    monkeypatch.setattr("millpond.bench.arithmetic.timed", lambda work: (work(), 1.0)[1])
    acting, training = network.seconds(make_ready_batches(trainer))
    plan = trainer.share
    assert calls == ["act", "act", "train"]
    assert acting == plan.agent_steps / (plan.envs_per_group * plan.num_agents) / 2
    assert training == plan.gradient_updates


@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
@pytest.mark.parametrize("one_hot", [False, True])
def test_plain_network_unrolls_to_the_values_and_log_probs_of_acting(core: str, one_hot: bool) -> None:
    spec = describe("grid", {})
    torch.manual_seed(0)
    network = PlainNetwork(spec, core, 16, one_hot=one_hot)
    seen = torch.randint(0, 4, (3, 5, *spec.observation.shape), dtype=torch.uint8)  # [B, T, ...]
    state, generator = network.initial_state(3), torch.Generator().manual_seed(0)
    acted = []
    with torch.no_grad():
        for t in range(5):
            acted.append(network.act(seen[:, t], state, action_mask=None, generator=generator))
            state = acted[-1].state
        action = torch.stack([act.action for act in acted], 1)
        unrolled = network.unroll(seen, network.initial_state(3), torch.zeros(3, 5, dtype=torch.bool), action)
    torch.testing.assert_close(unrolled.value, torch.stack([act.value for act in acted], 1))
    torch.testing.assert_close(unrolled.log_prob, torch.stack([act.log_prob for act in acted], 1))

"""Settings that change between iterations, centred rewards, gradient TD(lambda): in runs, exact on resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond.config import load
from millpond.store import Checkpoints
from millpond.trainers.common.session import resume_run, start_run
from millpond.trainers.ppo.trainer import PPOTrainer
from tests.support.ppo_runs import SMALL, train_small
from tests.support.records import records

GTD = {"ppo.critic": "gtd_lambda", "ppo.vf_clip_coef": None}
REFRESHED = {"ppo.recompute_advantage": True, "ppo.refresh_values": True, "ppo.normalize_advantage": "minibatch"}
METTA = {
    **GTD,
    **REFRESHED,
    "ppo.reward_centering": 0.001,
    "ppo.gamma": 1.0,
    "ppo.sampling": "sequential",
    "ppo.log_ratio_clamp": 10,
    "ppo.optimizer": "schedule_free_adamw",
    "ppo.warmup_updates": 6,
}
SCHEDULES = {
    "schedules.ppo.ent_coef.end": 0.0,
    "schedules.ppo.gamma.end": 0.5,
    "schedules.ppo.gae_lambda.end": 0.5,
    "schedules.ppo.learning_rate.kind": "cosine",
    "schedules.ppo.learning_rate.end": 1e-5,
    "schedules.ppo.learning_rate.warmup": 0.5,
    "schedules.ppo.adam_beta1.end": 0.5,
}


class Noting(PPOTrainer):
    """Notes the settings that each update sees."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noted: list[tuple[Any, ...]] = []

    def _update(self, at: Any, draw: Any, advantages: Any) -> None:
        super()._update(at, draw, advantages)
        group = self.optimizer.param_groups[0]
        self.noted.append((group["lr"], group["betas"][0], self.now.ppo.ent_coef, self.now.ppo.gamma))


def test_scheduled_values_reach_the_update_and_the_records(tmp_path: Path) -> None:
    loaded = load("grid", {**SMALL, **SCHEDULES, "run_dir": str(tmp_path)})
    trainer = Noting(loaded, start_run(loaded, "run"))
    try:
        trainer.train()
    finally:
        trainer.close()
    by_iteration = trainer.noted[:: trainer.plan.gradient_updates]
    gamma = [one[3] for one in by_iteration]
    assert gamma == pytest.approx([0.977, 0.977 - 0.477 / 4, 0.977 - 0.477 / 2, 0.977 - 0.477 * 3 / 4])
    assert [one[2] for one in by_iteration] == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    assert [one[1] for one in by_iteration] == pytest.approx([0.9, 0.8, 0.7, 0.6])
    rate = [one[0] for one in by_iteration]
    assert rate == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, (1e-3 + 1e-5) / 2])
    recorded = records(tmp_path / "run")
    assert [one["schedule/ppo.gamma"] for one in recorded] == pytest.approx(gamma)
    assert [one["schedule/ppo.learning_rate"] for one in recorded] == pytest.approx(rate)


def test_a_schedule_of_gamma_changes_what_is_learned(tmp_path: Path) -> None:
    train_small(tmp_path, "constant")
    train_small(tmp_path, "changed", **{"schedules.ppo.gamma.end": 0.5})
    ours, others = ([one["value_loss"] for one in records(tmp_path / name)] for name in ("constant", "changed"))
    assert ours[0] == others[0]
    assert ours[1] != others[1]


@pytest.mark.parametrize(
    "changes", [METTA, {**SCHEDULES, "ppo.reward_centering": 0.01}], ids=["metta-2026", "schedules"]
)
def test_a_run_cut_off_after_any_checkpoint_resumes_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    train_small(tmp_path, "uncut", **changes)
    for kept in (1, 2, 3):
        shutil.copytree(tmp_path / "uncut", tmp_path / "cut")
        checkpoints = Checkpoints(tmp_path / "cut" / "checkpoints")
        for updates in checkpoints.updates()[kept:]:
            shutil.rmtree(checkpoints.path(updates))
        loaded, run = resume_run("cut", [], str(tmp_path))
        trainer = PPOTrainer(loaded, run)
        try:
            trainer.train()
        finally:
            trainer.close()
        ours, theirs = records(tmp_path / "cut"), records(tmp_path / "uncut")
        assert ours == theirs
        last = max(checkpoints.updates())
        weights = [
            Checkpoints(tmp_path / name / "checkpoints").load(last).weights["policy"] for name in ("cut", "uncut")
        ]
        for name, tensor in weights[1].items():
            assert torch.equal(weights[0][name], tensor), name
        shutil.rmtree(tmp_path / "cut")


class Rewards(PPOTrainer):
    """Keeps the rewards, what was subtracted from them, and who was alive, of every iteration."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: list[tuple[Any, ...]] = []

    def _record_collection(self, collected: Any, advantages: Any) -> None:
        super()._record_collection(collected, advantages)
        names = ("reward", "reward_baseline", "alive")
        arrays = (self.rows[name][: self.share.segments].numpy().copy() for name in names)
        self.kept.append((*arrays, [*self.collector._rounds], self.collector.average_reward.copy()))


def test_each_agents_mean_follows_its_own_rewards_in_the_order_of_time(tmp_path: Path) -> None:
    loaded = load("grid", {**SMALL, "ppo.reward_centering": 0.1, "run_dir": str(tmp_path)})
    trainer = Rewards(loaded, start_run(loaded, "run"))
    try:
        trainer.train()
    finally:
        trainer.close()
    mean = np.zeros((6, 3), np.float32)
    for reward, baseline, alive, rounds, after in trainer.kept:
        for one in rounds:
            for offset in range(one.num_envs):
                env, row = (one.first_env + offset) % 6, one.first_row + offset
                for t in range(8):
                    np.testing.assert_allclose(baseline[row, t], mean[env], rtol=1e-5, atol=1e-7)
                    mean[env] += np.where(alive[row, t], 0.1 * (reward[row, t] - mean[env]), 0.0)
        np.testing.assert_allclose(after, mean, rtol=1e-5, atol=1e-7)
    assert mean.any()
    assert [one["average_reward"] for one in records(tmp_path / "run")][-1] == pytest.approx(mean.mean(), rel=1e-4)


def test_centred_rewards_change_advantages_and_not_the_recorded_rewards(tmp_path: Path) -> None:
    train_small(tmp_path, "plain")
    train_small(tmp_path, "centred", **{"ppo.reward_centering": 0.5})
    ours, others = records(tmp_path / "plain"), records(tmp_path / "centred")
    assert ours[0]["reward_per_agent_step"] == others[0]["reward_per_agent_step"] > 0
    assert ours[0]["value_loss"] != others[0]["value_loss"]


def test_advantages_are_of_the_newest_values_if_these_are_refreshed(tmp_path: Path) -> None:
    class Checked(PPOTrainer):
        def _update(self, at: Any, draw: Any, advantages: Any) -> None:
            rows = torch.from_numpy(draw.rows)
            batch = self.rows.sequences(["observation", "initial_state", "terminated", "truncated"], rows, self.device)
            stored = self.rows["value"][rows]
            ends = batch["terminated"] | batch["truncated"]
            reset = torch.cat((torch.zeros_like(ends[:, :1]), ends[:, :-1]), 1)
            action = self.rows.sequences(["action"], rows, self.device)["action"]
            with torch.no_grad():
                value = self.policy.unroll(batch["observation"], batch["initial_state"], reset, action).value
            value = value.view(len(rows), -1, 8).transpose(1, 2)
            torch.testing.assert_close(stored, value, rtol=1e-4, atol=1e-5)
            super()._update(at, draw, advantages)

    for name, fast in (("fast", True), ("plain", False)):
        loaded = load("grid", {**SMALL, **REFRESHED, "trainer.fast": fast, "run_dir": str(tmp_path)})
        trainer = Checked(loaded, start_run(loaded, name))
        try:
            trainer.train()
        finally:
            trainer.close()
    ours, others = records(tmp_path / "fast"), records(tmp_path / "plain")
    for name in ("policy_loss", "value_loss", "grad_norm"):
        assert [one[name] for one in ours] == pytest.approx([one[name] for one in others], rel=1e-3, abs=1e-5)


def test_gradient_td_says_that_its_losses_are_plain_and_is_the_same_without_compiled_parts(tmp_path: Path) -> None:
    said = []
    for name, fast in (("fast", True), ("plain", False)):
        said.append(train_small(tmp_path, name, **METTA, **{"trainer.fast": fast}).opening())
    assert any("gradient TD(lambda)" in line for line in said[0])
    assert not any("gradient TD(lambda)" in line for line in said[1])
    ours, others = records(tmp_path / "fast"), records(tmp_path / "plain")
    for name in ("policy_loss", "value_loss", "gtd_aux_loss", "grad_norm"):
        assert [one[name] for one in ours] == pytest.approx([one[name] for one in others], rel=1e-3, abs=1e-5)


def test_micro_batches_do_not_change_gradient_td(tmp_path: Path) -> None:
    for name, largest in (("whole", None), ("parts", 16)):
        train_small(tmp_path, name, **METTA, **{"trainer.max_minibatch_size": largest})
    ours, others = records(tmp_path / "whole"), records(tmp_path / "parts")
    for name in ("policy_loss", "value_loss", "gtd_aux_loss", "grad_norm"):
        assert [one[name] for one in ours] == pytest.approx([one[name] for one in others], rel=1e-3, abs=1e-5)

"""Rewards that a network predicts: which episodes it learns from, which rewards train the policy, and resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond.config import ConfigError, load
from millpond.config.check import refuse_violations
from millpond.config.rank_rules import rank_rules
from millpond.errors import MillpondError
from millpond.kernels.advantage import advantage_reference
from millpond.planner import PPOPlan, plan_loaded
from millpond.rollout.following import Filled
from millpond.store import Checkpoints, Run
from millpond.trainers.common.session import resume_run, start_run
from millpond.trainers.ppo.advantages import INPUTS
from millpond.trainers.ppo.reward_model import OnlineRewardModel
from millpond.trainers.ppo.trainer import PPOTrainer
from tests.support.ppo_runs import SMALL, train_small
from tests.support.records import records

ONLINE = {
    "ppo.reward_model": "online",
    "reward_model.min_episodes": 30,
    "reward_model.updates": 3,
    "reward_model.records": 6_000,
    "reward_model.hidden_size": 8,
    "env.episodic": True,
}
AGENT_ROWS = {"trainer.batch_unit": "agent_steps", "trainer.batch_size": 8 * 40, "trainer.minibatch_size": 8 * 8}
ENV_ROWS = {"trainer.batch_unit": "env_steps", "trainer.batch_size": 8 * 16}
ITERATIONS = 8


class Watched(PPOTrainer):
    """Keeps the episodes that ended, and compares every iteration's advantages and predictions with their definitions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ended: list[tuple[float, int]] = []  # return of an agent, and length
        self.predicted: list[bool] = []  # of each iteration: by the network, not the env

    def _collect(self) -> Any:
        collected = super()._collect()
        self.ended += [(total, episode.length) for episode in collected.episodes for total in episode.returns]
        for part in self.reward_model.next_observations.transitions(self.rows):  # type: ignore[union-attr]
            self._compare_predictions(part)
        return collected

    def _compare_predictions(self, part: Filled) -> None:
        model, per_env = self.reward_model, self.rows.rows_per_env
        assert model is not None
        learned, reward = (
            self.rows[name][part.rows].numpy().reshape(-1, per_env, 8, self.rows.agents_per_row).swapaxes(2, 3)
            for name in ("learned_reward", "reward")
        )
        expected = model.network.reward(
            model._batch(
                *(
                    array.reshape(-1, *array.shape[2:])
                    for array in (part.steps["observation"], part.steps["action"], part.next_observation)
                )
            )
        )
        by_network = not isinstance(model, OnlineRewardModel) or model.learns
        wanted = expected.detach().numpy().reshape(len(part.lanes), 8) if by_network else reward.reshape(-1, 8)
        np.testing.assert_allclose(learned.reshape(-1, 8), wanted, rtol=1e-5, atol=1e-6)
        self.predicted.append(by_network)

    def _update(self, at: Any, draw: Any, advantages: Any) -> None:
        if at.begins("iteration"):
            rows = {name: self.rows[name][: self.share.segments].numpy() for name in INPUTS}
            rows["reward"] = self.rows["learned_reward"][: self.share.segments].numpy()
            expected = advantage_reference(**rows, gamma=self.recipe.ppo.gamma, lam=self.recipe.ppo.gae_lambda)
            np.testing.assert_allclose(advantages.raw.numpy(), expected, rtol=1e-4, atol=1e-5)
        super()._update(at, draw, advantages)


def watch(root: Path, **changes: Any) -> Watched:
    settings = {**SMALL, **ONLINE, "run_dir": str(root), "trainer.total_iterations": ITERATIONS, **changes}
    loaded = load("grid", settings)
    trainer = Watched(loaded, start_run(loaded, "run"))
    try:
        trainer.train()
    finally:
        trainer.close()
    return trainer


@pytest.mark.parametrize("rows", [AGENT_ROWS, ENV_ROWS], ids=["agent rows", "env rows"])
def test_model_stores_every_finished_episode_and_its_rewards_give_the_advantages(
    tmp_path: Path, rows: dict[str, Any]
) -> None:
    """Episodes of 20 steps go on over rows of 8, over top-up rounds, and over iterations."""
    trainer = watch(tmp_path, **rows)
    model = trainer.reward_model
    assert isinstance(model, OnlineRewardModel)
    _, steps, total = model.store.table()
    assert len(steps) > 20
    stored = sorted((round(float(one), 4), int(length)) for one, length in zip(total, steps, strict=True))
    assert stored == sorted((round(one, 4), length) for one, length in trainer.ended)
    assert False in trainer.predicted
    assert True in trainer.predicted
    written = records(tmp_path / "run")
    assert "R_loss" not in written[0]
    assert "R_loss" in written[-1]
    assert written[-1]["reward_model/episodes"] == len(steps)


def test_observation_after_a_row_is_the_first_of_the_row_that_follows(tmp_path: Path) -> None:
    trainer = watch(tmp_path, **{"trainer.total_iterations": 1}, **AGENT_ROWS, **{"trainer.num_envs": 4})
    parts = trainer.reward_model.next_observations.transitions(trainer.rows)  # type: ignore[union-attr]
    first, compared = {lane: part for part in parts[:2] for lane in part.lanes.tolist()}, 0
    for part in parts[2:]:
        for index, lane in enumerate(part.lanes.tolist()):
            before = first[lane]
            at = before.lanes.tolist().index(lane)
            if not before.steps["ended"][at, -1]:
                compared += 1
                np.testing.assert_array_equal(before.next_observation[at, -1], part.steps["observation"][index, 0])
            first[lane] = part
    assert compared > 10


@pytest.mark.parametrize("fast", [True, False])
def test_a_run_cut_off_after_any_checkpoint_resumes_bit_for_bit(tmp_path: Path, fast: bool) -> None:
    train_small(tmp_path, "uncut", **ONLINE, **AGENT_ROWS, **{"trainer.fast": fast})
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
        assert records(tmp_path / "cut") == records(tmp_path / "uncut")
        last = max(checkpoints.updates())
        for part in ("policy", "reward"):
            ours, theirs = (
                Checkpoints(tmp_path / name / "checkpoints").load(last).weights[part] for name in ("cut", "uncut")
            )
            assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
        shutil.rmtree(tmp_path / "cut")


def test_plan_counts_the_bytes_of_the_model(tmp_path: Path) -> None:
    loaded = load("grid", {**SMALL, **ONLINE, **AGENT_ROWS, "run_dir": str(tmp_path)})
    plan = plan_loaded(loaded).plan
    assert isinstance(plan, PPOPlan)
    trainer = PPOTrainer(loaded, start_run(loaded, "run"))
    model = trainer.reward_model
    assert isinstance(model, OnlineRewardModel)
    weights = sum(parameter.nbytes for parameter in model.network.parameters())
    assert plan.reward_model_bytes == model.store.nbytes + 4 * weights
    assert plan.buffer_bytes == trainer.rows.nbytes
    trainer.close()


def reward_run(root: Path, **changes: Any) -> Run:
    """Train a reward network on the packaged Pendulum episodes for a moment."""
    from millpond.trainers.reward.trainer import RewardTrainer

    sizes = {"reward.epochs": 1, "reward.cycles": 1, "reward.iterations": 1, "reward.train_batches": 5}
    loaded = load(
        "reward", {**sizes, "reward.hidden_size": 16, "run_dir": str(root), "log.tensorboard": False, **changes}
    )
    trainer = RewardTrainer(loaded, start_run(loaded, "reward"))
    try:
        trainer.train()
    finally:
        trainer.close()
    return trainer.run


PENDULUM = {
    "env.id": "gymnasium:Pendulum-v1",
    "env.num_agents": 1,
    "env.max_steps": None,
    "env.stagger": False,
    "policy.core": "none",
    "vector.backend": "inline",
    "trainer.batch_unit": "agent_steps",
    "trainer.num_envs": 4,
    "trainer.batch_size": 8 * 16,
    "trainer.total_iterations": 2,
}


@pytest.mark.parametrize("objective", ["lrd", "progress"])
def test_network_of_a_reward_run_gives_the_rewards_and_is_kept_with_the_run(tmp_path: Path, objective: str) -> None:
    source = reward_run(tmp_path, **{"reward.objective": objective})
    changes = {**PENDULUM, "ppo.reward_model": str(source.folder), "env.episodic": False}
    settings = {key: value for key, value in SMALL.items() if not key.startswith("env.")}
    loaded = load("grid", {**settings, **changes, "run_dir": str(tmp_path)})
    trainer = Watched(loaded, start_run(loaded, "run"))
    try:
        trainer.train()
        assert trainer.reward_model is not None
        weights = source.checkpoint().weights["reward"]
        assert all(
            torch.equal(weights[name], tensor) for name, tensor in trainer.reward_model.network.state_dict().items()
        )
    finally:
        trainer.close()
    assert trainer.predicted == [True] * len(trainer.predicted)
    shutil.rmtree(source.folder)  # the run has a copy
    again, run = resume_run("run", ["trainer.total_iterations=3"], str(tmp_path))
    resumed = Watched(again, run)
    try:
        resumed.train()
    finally:
        resumed.close()
    assert resumed.predicted


def test_reward_run_of_another_env_is_refused(tmp_path: Path) -> None:
    source = reward_run(tmp_path)
    loaded = load("grid", {**SMALL, "ppo.reward_model": str(source.folder), "run_dir": str(tmp_path)})
    with pytest.raises(
        MillpondError, match=r"does not take the 124 numbers of an observation and the \d+ of an action"
    ):
        PPOTrainer(loaded, start_run(loaded, "run"))


def test_combinations_that_have_no_meaning_are_refused_with_a_fix() -> None:
    with pytest.raises(ConfigError, match=r"ppo.reward_centering=0.001 subtracts .* try ppo.reward_centering=null"):
        load("metta-2026", ["ppo.reward_model=online"])
    with pytest.raises(ConfigError, match="learned by one process, and there are 2 ranks; start it without torchrun"):
        refuse_violations(load("grid", ["ppo.reward_model=online"]).recipe, rank_rules(2), "grid")

"""Full mode: agent and reward network learn together in an environment that pays its return at the end of an episode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond.config import load
from millpond.errors import MillpondError
from millpond.planner import RewardPlan, plan_loaded
from millpond.replay.pond import Pond
from millpond.replay.schema import Field, Schema
from millpond.replay.steps import Steps
from millpond.rewards.network import RewardInputs, RewardNetwork
from millpond.rewards.objectives import decomposition_loss
from millpond.store import Checkpoints
from millpond.store.checkpoint import read_checkpoint
from millpond.trainers.common.play import evaluate_run
from millpond.trainers.common.session import resume_run, start_run
from millpond.trainers.reward.agent import PondBatches
from millpond.trainers.reward.trainer import RewardTrainer

TINY = {
    "env.max_steps": 20,
    "reward.epochs": 2,
    "reward.cycles": 2,
    "reward.iterations": 2,
    "reward.train_batches": 3,
    "reward.hidden_size": 16,
    "reward.steps_per_episode": 8,
    "reward.train_target": 5,
    "agent.num_envs": 2,
    "agent.warmup_steps": 45,
    "agent.steps_per_iteration": 7,
    "agent.batch_size": 16,
    "agent.replay_transitions": 400,
    "agent.test_episodes": 2,
    "log.tensorboard": False,
}


def run(root: Path, name: str, **changes: Any) -> RewardTrainer:
    loaded = load("reward-online", {**TINY, "run_dir": str(root), **changes})
    trainer = RewardTrainer(loaded, start_run(loaded, name))
    try:
        trainer.train()
    finally:
        trainer.close()
    return trainer


def records(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds" and "time/" not in k} for line in lines]


@pytest.mark.parametrize(("env", "learner"), [("Pendulum-v1", "SAC"), ("CartPole-v1", "DQN")])
def test_a_run_matches_its_plan(tmp_path: Path, env: str, learner: str) -> None:
    changes = {"env.id": f"gymnasium:{env}", "agent.algorithm": "auto"}
    trainer = run(tmp_path, "counted", **changes)
    plan = plan_loaded(load("reward-online", {**TINY, **changes})).plan
    assert isinstance(plan, RewardPlan)
    assert trainer.agent is not None
    assert type(trainer.agent.learner).__name__ == learner
    assert trainer.counters.env_steps == plan.env_steps == (8 * 7 + 45) * 2
    assert trainer.counters.updates == plan.batches == trainer.agent.learner.updates == 24
    written = records(trainer.run.folder)
    assert len(written) == plan.tensorboard_points == 4
    assert {"R_loss", "q_loss", "eval/episode_return", "episode_return"} <= set(written[-1])
    assert trainer.network.normalizer is not None
    assert trainer.network.normalizer.count == plan.env_steps


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_the_loaded_agent_repeats_its_test_rollouts(tmp_path: Path, env: str) -> None:
    """Equal episodes and equal actions: the mean action of SAC, the greedy action of DQN."""
    trainer = run(tmp_path, "played", **{"env.id": f"gymnasium:{env}", "agent.algorithm": "auto"})
    assert trainer.agent is not None
    assert trainer.tested is not None
    evaluation, policy = evaluate_run(str(trainer.run.folder), episodes=2)
    assert policy.updates == 24
    assert evaluation == trainer.tested
    observation = torch.randn(5, *policy.spec.observation.shape)
    action, _ = policy.act(observation)
    player = trainer.agent.player
    expected = player.act(observation, player.initial_state(5), deterministic=True).action
    assert torch.equal(action, expected)
    assert any("millpond eval " in line for line in trainer.summary())


def test_the_agent_learns_from_predicted_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner receives rewards of the target network; with `world` the stored ones."""
    for learn_from in ("predicted", "world"):
        loaded = load("reward-online", {**TINY, "run_dir": str(tmp_path), "agent.learn_from": learn_from})
        trainer = RewardTrainer(loaded, start_run(loaded, learn_from))
        agent = trainer.agent
        assert agent is not None
        calls: list[Any] = []
        update = agent.learner.update

        def recording_update(batch: Any, reward: Any = None, calls: Any = calls, update: Any = update) -> Any:
            calls.append((batch, reward))
            return update(batch, reward)

        monkeypatch.setattr(agent.learner, "update", recording_update)
        trainer.play(1)
        trainer.close()
        batch, reward = calls[0]
        if learn_from == "world":
            assert reward is None
            assert set((batch.reward != 0).tolist()) == {True, False}  # only at the ends of episodes
        else:
            assert reward.shape == batch.reward.shape
            assert (reward != 0).all()


@pytest.mark.parametrize("ring_size", [20, 22])
def test_pond_batches_hold_whole_episodes_and_their_returns(ring_size: int) -> None:
    """Two lanes whose rings overwrite their oldest episode. With 22 records the last episode goes past the ring's end."""
    schema = Schema((Field("observation", (1,), "float32"),), Field("action", (1,), "float32"))
    pond = Pond.init(schema, 2 * ring_size, lanes=2)
    clock = 0.0
    rng = np.random.default_rng(0)
    for _ in range(9):
        shape = (4, 2)
        ends = np.zeros(shape, bool)
        ends[3] = True  # every episode has four steps and a final frame
        frames = clock + np.arange(5)[:, None] + np.array([0.0, 1000.0])
        reward = np.where(ends, 10.0 + clock, 0.0)
        pond.add(
            Steps(
                frames[:4, :, None],
                rng.normal(size=(*shape, 1)),
                reward,
                ends,
                ~ends & False,
                frames[4:, :, None][0],
                ends,
            )
        )
        clock += 100.0
    network = RewardNetwork("lrd", RewardInputs(1, 1), 8, normalize=False)
    batches = PondBatches(pond, network, per_batch=6, steps=4)
    batches.refresh()
    assert batches.episodes == 8  # a ring holds four episodes of five records
    assert sorted(batches.mean_return.tolist()) == sorted(2 * [(10 + at * 100) / 4 for at in range(5, 9)])
    episodes, steps = batches.sampler(rng)
    batch = batches._batch(batches._send(episodes, steps))
    assert torch.equal(batch.next_observation, batch.observation + 1)
    # all four steps are sampled, so lrd is the loss on whole episodes
    rng = np.random.default_rng(3)
    state = rng.bit_generator.state
    loss = batches.loss(rng)
    rng.bit_generator.state = state
    episodes, steps = batches.sampler(rng)
    reward = network.outputs(batches._batch(batches._send(episodes, steps))).view(steps.shape)
    whole = decomposition_loss(reward, torch.from_numpy(batches.mean_return[episodes]).float())
    assert torch.allclose(loss, whole, rtol=1e-5)


def test_invalid_settings_of_the_agent_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MillpondError, match=r"agent\.warmup_steps"):
        run(tmp_path, "short", **{"env.max_steps": 200})
    with pytest.raises(MillpondError, match=r"set agent\.algorithm=sac"):
        run(tmp_path, "wrong", **{"agent.algorithm": "dqn"})


def test_an_env_that_can_save_its_state_resumes_bit_for_bit(tmp_path: Path) -> None:
    env = {"env.id": "truncation", "agent.algorithm": "auto"}
    whole = run(tmp_path, "whole", **env)
    loaded = load("reward-online", {**TINY, "run_dir": str(tmp_path), **env})
    stopped = RewardTrainer(loaded, start_run(loaded, "stopped"))
    update = stopped._update

    def stopping_update() -> torch.Tensor:
        if stopped.counters.updates == 10:  # in the middle of an iteration
            stopped.loop.stop("test")
        return update()

    stopped._update = stopping_update  # type: ignore[method-assign]
    stopped.train()
    stopped.close()
    assert not stopped.loop.done
    loaded, resumed = resume_run("stopped", [], str(tmp_path))
    again = RewardTrainer(loaded, resumed)
    again.train()
    again.close()
    assert records(whole.run.folder) == records(resumed.folder)
    states = []
    for folder in (whole.run.folder, resumed.folder):
        checkpoints = Checkpoints(folder / "checkpoints")
        states.append(read_checkpoint(checkpoints.path(checkpoints.updates()[-1])))
    for part, tensors in states[0].weights.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, states[1].weights[part][name]), name

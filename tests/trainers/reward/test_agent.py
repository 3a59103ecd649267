"""Full mode: agent and reward network learn together in an environment that gives its return only at the end."""

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


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


@pytest.mark.parametrize(("env_batch", "learner"), [("Pendulum-v1", "SAC"), ("CartPole-v1", "DQN")])
def test_a_run_does_what_the_plan_says(tmp_path: Path, env_batch: str, learner: str) -> None:
    changes = {"env.id": f"gymnasium:{env_batch}", "agent.algorithm": "auto"}
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


@pytest.mark.parametrize("env_batch", ["Pendulum-v1", "CartPole-v1"])
def test_the_agent_is_loaded_and_evaluated_again(tmp_path: Path, env_batch: str) -> None:
    """Its test rollouts, episode by episode, and the same actions: the middle of SAC's, the best of DQN's."""
    trainer = run(tmp_path, "played", **{"env.id": f"gymnasium:{env_batch}", "agent.algorithm": "auto"})
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
    """Rewards that the learner is given are the target network's; with `env_batch` they are the stored ones."""
    for learn_from in ("predicted", "world"):
        loaded = load("reward-online", {**TINY, "run_dir": str(tmp_path), "agent.learn_from": learn_from})
        trainer = RewardTrainer(loaded, start_run(loaded, learn_from))
        agent = trainer.agent
        assert agent is not None
        given: list[Any] = []
        update = agent.learner.update

        def watched(batch: Any, reward: Any = None, given: Any = given, update: Any = update) -> Any:
            given.append((batch, reward))
            return update(batch, reward)

        monkeypatch.setattr(agent.learner, "update", watched)
        trainer.play(1)
        trainer.close()
        batch, reward = given[0]
        if learn_from == "world":
            assert reward is None
            assert set((batch.reward != 0).tolist()) == {True, False}  # held back to the ends of episodes
        else:
            assert reward.shape == batch.reward.shape
            assert (reward != 0).all()


def test_a_pond_gives_whole_episodes_and_their_returns() -> None:
    """Two lanes, rings that overwrite their oldest episode; next observations across the ring's end."""
    pond = Pond.init(Schema((Field("observation", (1,), "float32"),), Field("action", (1,), "float32")), 40, lanes=2)
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
    assert batches.episodes == 8  # a ring of 20 rows holds four episodes of five
    assert sorted(batches.mean_return.tolist()) == sorted(2 * [(10 + at * 100) / 4 for at in range(5, 9)])
    episodes, steps = batches.sampler(rng)
    batch = batches._batch(episodes, steps)
    assert torch.equal(batch.next_observation, batch.observation + 1)
    # all four steps are drawn, so lrd is the loss on whole episodes
    rng = np.random.default_rng(3)
    state = rng.bit_generator.state
    loss = batches.loss(rng)
    rng.bit_generator.state = state
    episodes, steps = batches.sampler(rng)
    reward_of = network.outputs(batches._batch(episodes, steps)).view(steps.shape)
    whole = decomposition_loss(reward_of, torch.from_numpy(batches.mean_return[episodes]).float())
    assert torch.allclose(loss, whole, rtol=1e-5)


def test_what_cannot_be_played_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MillpondError, match=r"agent\.warmup_steps"):
        run(tmp_path, "short", **{"env.max_steps": 200})
    with pytest.raises(MillpondError, match=r"set agent\.algorithm=sac"):
        run(tmp_path, "wrong", **{"agent.algorithm": "dqn"})


def test_an_env_that_can_save_its_state_resumes_bit_for_bit(tmp_path: Path) -> None:
    env_batch = {"env.id": "truncation", "agent.algorithm": "auto"}
    whole = run(tmp_path, "whole", **env_batch)
    loaded = load("reward-online", {**TINY, "run_dir": str(tmp_path), **env_batch})
    cut = RewardTrainer(loaded, start_run(loaded, "cut"))
    update = cut._update

    def watched() -> torch.Tensor:
        if cut.counters.updates == 10:  # in the middle of an iteration
            cut.loop.stop("test")
        return update()

    cut._update = watched  # type: ignore[method-assign]
    cut.train()
    cut.close()
    assert not cut.loop.done
    loaded, resumed = resume_run("cut", [], str(tmp_path))
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

"""Rewards delayed to the end of the episode: per agent, in every backend, with saving, after clipping and scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millpond.config.recipe import EnvConfig, VectorConfig
from millpond.envs.check import check_env
from millpond.envs.env_batch import EnvError, spawn_seeds
from millpond.envs.registry import describe, make_env_batch
from millpond.trainers.common.envs import build_vector

GRID = {"num_agents": 3, "max_steps": 12, "width": 6, "height": 6, "walls": 0, "mines": 8, "generators": 2, "altars": 2}


def play(env_batch: Any, steps: int, seed: int = 0) -> tuple[Any, Any]:
    """Return rewards and ends [T, N, A] of a random player."""
    rng, rewards, ends = np.random.default_rng(seed), [], []
    sizes = env_batch.spec.action.sizes
    for _ in range(steps):
        env_batch.buffers.action[...] = rng.integers(0, sizes[0], env_batch.buffers.action.shape)
        env_batch.step(0, env_batch.num_envs)
        rewards.append(env_batch.buffers.reward.copy())
        ends.append(env_batch.buffers.terminated | env_batch.buffers.truncated)
    return np.array(rewards), np.array(ends)


def summed(reward: Any, ended: Any) -> Any:
    """Compute the delayed rewards, one agent at a time."""
    expected = np.zeros_like(reward)
    for env in range(reward.shape[1]):
        for agent in range(reward.shape[2]):
            held = 0.0
            for t in range(len(reward)):
                held += float(reward[t, env, agent])
                if ended[t, env, agent]:
                    expected[t, env, agent], held = held, 0.0
    return expected


@pytest.mark.parametrize("more", [{}, {"reward_scale": 2.0, "reward_clip": 0.15}])
def test_sum_of_rewards_comes_at_the_end_of_the_episode(more: dict[str, float]) -> None:
    plain, held = (make_env_batch("grid", 4, {**GRID, **more, **options}) for options in ({}, {"episodic": True}))
    for env_batch in (plain, held):
        env_batch.reset(spawn_seeds(3, 4))
    reward, ended = play(plain, 40)
    given, ended_too = play(held, 40)
    assert np.array_equal(ended, ended_too)
    np.testing.assert_allclose(given, summed(reward, ended), atol=1e-5)
    assert not given[~ended].any()
    assert len(np.unique(given[ended])) > 3  # agents have sums of their own
    assert [e.returns for e in plain.episodes()] == [e.returns for e in held.episodes()]


def test_reset_forgets_delayed_rewards() -> None:
    env_batch = make_env_batch("truncation", 1, {"episodic": True, "max_steps": 4})
    for _ in range(2):
        env_batch.reset(np.zeros(1, np.uint64))
        for _ in range(3):
            env_batch.step(0, 1)
    env_batch.step(0, 1)
    assert env_batch.buffers.reward.tolist() == [[4.0]]


def test_only_envs_that_step_accumulate_rewards() -> None:
    env_batch = make_env_batch("truncation", 2, {"episodic": True, "max_steps": 4})
    env_batch.reset(np.zeros(2, np.uint64))
    for _ in range(4):
        env_batch.step(1, 2)
    assert env_batch.buffers.reward[:, 0].tolist() == [0.0, 4.0]


def test_delayed_rewards_are_saved() -> None:
    env_batch = make_env_batch("grid", 4, {**GRID, "episodic": True})
    env_batch.reset(spawn_seeds(3, 4))
    play(env_batch, 7)
    saved = env_batch.save_state()
    uncut, _ = play(env_batch, 20, seed=5)
    other = make_env_batch("grid", 4, {**GRID, "episodic": True})
    other.load_state(saved)
    again, _ = play(other, 20, seed=5)
    assert np.array_equal(uncut, again)
    assert uncut.any()
    plain = make_env_batch("grid", 4, GRID)
    plain.reset(spawn_seeds(3, 4))
    with pytest.raises(EnvError, match=r"no 'episodic.held'"):
        other.load_state(plain.save_state())


def test_unsavable_env_still_refuses_to_save() -> None:
    env_batch = make_env_batch("gymnasium:CartPole-v1", 1, {"episodic": True})
    assert not env_batch.spec.savable
    with pytest.raises(EnvError, match="cannot be saved"):
        env_batch.save_state()


def test_episodic_wrapper_changes_nothing_but_rewards() -> None:
    assert describe("grid", {"episodic": True}) == describe("grid", {})
    env_batch = make_env_batch("grid", 2, {"episodic": True})
    env_batch.reset(spawn_seeds(0, 2))
    assert env_batch.render_rgb(0).ndim == 3  # type: ignore[attr-defined]
    env_batch.close()
    with pytest.raises(EnvError, match="option episodic='yes' must be bool"):
        make_env_batch("grid", 1, {"episodic": "yes"})


def test_episodic_envs_pass_the_checks() -> None:
    findings = check_env("gymnasium:CartPole-v1", {"episodic": True})
    assert {finding.status for finding in findings} == {"ok"}


@pytest.mark.parametrize("backend", ["inline", "threads", "processes"])
def test_delayed_rewards_are_the_same_in_every_backend(backend: Any) -> None:
    env = EnvConfig(id="gymnasium:CartPole-v1", episodic=True)
    sums: dict[int, float] = {}
    with build_vector(env, VectorConfig(backend=backend), num_envs=4, groups=2, num_workers=2, stacked=True) as vector:
        vector.reset(1)
        for _ in range(60):
            for _ in range(2):
                batch = vector.recv()
                ended = batch.terminated | batch.truncated
                assert not batch.reward[~ended].any()
                for episode in batch.episodes:
                    sums[episode.env] = float(batch.reward[episode.env - batch.first, 0])
                    assert sums[episode.env] == episode.returns[0] == episode.length
                vector.send(np.zeros_like(batch.action))
    assert set(sums) == {0, 1, 2, 3}

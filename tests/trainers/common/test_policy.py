"""Loaded policies predict on what an env returns, in any space, single and in batches, and remember with their state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import millpond
from millpond.envs.env_batch import EnvError
from millpond.store import RunError
from tests.support import custom_envs
from tests.support.ball_env import TINY, Ball


def train(folder: Path, **arguments: Any) -> millpond.Run:
    sizes = {
        **TINY,
        "vector.backend": "inline",
        "trainer.total_iterations": 1,
        "checkpoint.interval": None,
        "run_dir": str(folder),
    }
    return millpond.train(run="pond", overrides={**sizes, **arguments.pop("settings", {})}, **arguments)


def batch_of(values: list[Any]) -> Any:
    """Return values of one space with one more axis in every array."""
    if isinstance(values[0], Mapping):
        return {key: batch_of([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(batch_of(list(parts)) for parts in zip(*values, strict=True))
    return np.stack([np.asarray(value) for value in values])


@pytest.mark.parametrize("shown", ["seven bytes", "one number", "a tuple", "an image", "a discrete"])
def test_every_space_is_predicted_alone_as_in_a_batch(tmp_path: Path, shown: str) -> None:
    run = train(tmp_path, env=custom_envs.make_strange, settings={"env.options": {"shown": shown}})
    policy, env = millpond.load(run), custom_envs.make_strange(shown)
    env.reset(seed=3)
    observations = [env.observation_space.sample() for _ in range(4)]
    alone = [policy.predict(observation)[0] for observation in observations]
    assert all(isinstance(action, np.integer) and env.action_space.contains(action) for action in alone)
    together, state = policy.predict(batch_of(observations))
    assert together.tolist() == alone
    assert state is None, "the recipe gym has no memory"


class Vectors(Ball):
    """Takes a mixed action: a choice and a vector that is bounded."""

    action_space = spaces.Dict({"push": spaces.Discrete(2), "force": spaces.Box(0.0, 0.1, (2,), np.float32)})

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return super().step(action["push"])


def test_actions_have_the_structure_and_the_bounds_of_the_space(tmp_path: Path) -> None:
    policy = train(tmp_path, env=Vectors).policy()
    action, _ = policy.predict(np.zeros(1, np.float32), deterministic=False)
    assert Vectors.action_space.contains({**action, "push": int(action["push"])})
    batch, _ = policy.predict(np.zeros((50, 1), np.float32), deterministic=False)
    assert (batch["push"].shape, batch["force"].shape) == ((50,), (50, 2))
    assert batch["force"].min() >= 0.0
    assert batch["force"].max() <= np.float32(0.1)


def test_state_remembers_and_an_episode_start_forgets(tmp_path: Path) -> None:
    policy = train(tmp_path, env=Ball, settings={"policy.core": "gru"}).policy()
    observation = np.ones((2, 1), np.float32)
    _, first = policy.predict(observation)
    assert first is not None
    _, second = policy.predict(observation, first)
    assert not np.allclose(first, second)
    _, half = policy.predict(observation, first, episode_start=np.array([True, False]))
    np.testing.assert_array_equal(half, np.stack([first[0], second[1]]))
    np.testing.assert_array_equal(policy.predict(observation, first, True)[1], first)
    with pytest.raises(RunError, match=r"the state has shape \(2, 1, 8\), and 1 observation need \(1, 1, 8\)"):
        policy.predict(observation[0], first)


def test_observation_of_another_shape_is_refused_with_the_space(tmp_path: Path) -> None:
    policy = train(tmp_path, env=Ball).policy()
    with pytest.raises(EnvError, match=r"neither a value of .*Ball's space Box\(-2.0, 2.0, \(1,\), float32\)"):
        policy.predict(np.zeros((2, 2, 1), np.float32))
    for wrong in (np.zeros(3, np.float32), np.zeros((3, 2), np.float32)):
        with pytest.raises(EnvError, match=r"an observation with shape \(3,.*neither a value of"):
            policy.predict(wrong)


def test_wrong_observations_are_those_of_the_caller_and_empty_batches_are_refused(tmp_path: Path) -> None:
    run = train(tmp_path, env=custom_envs.make_strange, settings={"env.options": {"shown": "a discrete"}})
    policy = run.policy()
    with pytest.raises(EnvError, match=r"^object:|^tests\..*predict was called with 77 \(int\) as an observation"):
        policy.predict(77)
    with pytest.raises(EnvError, match="a batch of 0 observations"):
        policy.predict(np.zeros(0, np.int64))
    with pytest.raises(RunError, match="episodes='3' must be a whole number"):
        millpond.evaluate(policy, episodes="3")  # type: ignore[arg-type]


class Masked(Ball):
    """Shows its mask beside the observation, which allows one action."""

    observation_space = spaces.Dict(
        {"observation": spaces.Box(-2, 2, (1,), np.float32), "action_mask": spaces.Box(0, 1, (2,), np.int8)}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, infos = super().reset(seed=seed)
        return {"observation": observation, "action_mask": np.array([1, 1], np.int8)}, infos

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return {"observation": observation, "action_mask": np.array([1, 1], np.int8)}, *rest


def test_mask_within_an_observation_and_as_an_argument_are_respected(tmp_path: Path) -> None:
    policy = train(tmp_path, env=Masked).policy()
    for only in (0, 1):
        mask = np.eye(2, dtype=np.int8)[only]
        shown = {"observation": np.zeros(1, np.float32), "action_mask": mask}
        assert policy.predict(shown)[0] == only
        assert policy.predict(np.zeros(1, np.float32), action_mask=mask)[0] == only


def test_evaluation_is_sampled_or_deterministic_as_asked_and_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, env=Ball, settings={"eval.deterministic": True})
    by_recipe, asked = millpond.evaluate(run, episodes=3), millpond.evaluate(run, episodes=3, deterministic=False)
    assert (by_recipe.deterministic, asked.deterministic) == (True, False)
    assert by_recipe.mean == pytest.approx(np.mean(by_recipe.returns))
    assert by_recipe.low <= by_recipe.mean <= by_recipe.high
    printed = capsys.readouterr().out
    assert "3 episodes, most likely actions (deterministic): return" in printed
    assert "3 episodes, sampled actions: return" in printed
    assert by_recipe.returns == millpond.evaluate(run.policy(), episodes=3).returns


def test_observation_with_nan_is_refused(tmp_path: Path) -> None:
    policy = train(tmp_path, env=Ball).policy()
    assert repr(policy).startswith("<LoadedPolicy of tests.support.ball_env:Ball: newest checkpoint, after ")
    with pytest.raises(RunError, match="an observation has NaN"):
        policy.predict(np.array([[0.5], [np.nan]], np.float32))


def test_evaluation_plays_in_another_env_that_shows_and_takes_the_same(tmp_path: Path) -> None:
    run = train(tmp_path, env=Ball)
    assert millpond.evaluate(run, episodes=2, env=lambda: Ball(3)).lengths == (3, 3)
    assert millpond.evaluate(run, episodes=2, **{"env.max_steps": 5}).lengths == (5, 5)
    with pytest.raises(
        RunError, match=r"has observations observation \(vector, float32 \(4,\)\); the policy .* \(1,\)"
    ):
        millpond.evaluate(run, episodes=2, env="gymnasium:CartPole-v1")
    with pytest.raises(RunError, match=r"ppo.gamma cannot change in an evaluation; only settings of the env can"):
        millpond.evaluate(run, episodes=2, overrides=["ppo.gamma=0.9"])


def test_gymnasium_wrapped_policy_plays_an_episode(tmp_path: Path) -> None:
    policy, env = train(tmp_path, env=Ball).policy(), gymnasium.wrappers.TimeLimit(Ball(), 4)
    observation, _ = env.reset(seed=1)
    state, over, steps = None, False, 0
    while not over:
        action, state = policy.predict(observation, state, deterministic=False)
        observation, _, terminated, truncated, _ = env.step(action)
        over, steps = terminated or truncated, steps + 1
    assert steps == 4


@pytest.mark.parametrize("acting", ["choices", "numbers", "both"])
def test_agents_with_different_spaces_play_an_episode_by_their_names(tmp_path: Path, acting: str) -> None:
    """The env itself refuses an action that is not in its agent's space, and a masked one."""
    run = train(tmp_path, env=custom_envs.Teams, settings={"env.options": {"acting": acting}, "policy.core": "gru"})
    policy, env = millpond.load(run), custom_envs.Teams(acting)
    observations, infos = env.reset(seed=3)
    state = None
    while env.agents:
        masks = {agent: info["action_mask"] for agent, info in infos.items() if "action_mask" in info}
        seen = {agent: observations[agent] for agent in env.agents}
        actions, state = policy.predict(seen, state, deterministic=False, action_mask=masks)
        observations, _, _, _, infos = env.step(actions)
    assert env.clock == 5
    with pytest.raises(EnvError, match="different spaces: pass a dict of observations by agent"):
        policy.predict(seen["chaser_0"]["near"])

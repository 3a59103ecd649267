from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest

from millpond.envs.adapters.gymnasium import DiscreteMembership, LoopOptions, gymnasium_maker, step_of
from millpond.envs.env_batch import EnvError, spawn_seeds
from millpond.envs.random_play import play
from millpond.envs.registry import make_env_batch
from millpond.envs.spaces import read_part
from tests.support import custom_envs

OWN = custom_envs.__name__


def test_cartpole_matches_gymnasium_and_reports_final_observations():
    env_batch = make_env_batch("gymnasium:CartPole-v1", 3, {})
    assert env_batch.spec.action.sizes == (2,)
    assert env_batch.spec.max_steps == 500
    env_batch.reset(np.array([11, 12, 13], np.uint64))
    plain = gymnasium.make("CartPole-v1")
    shown, _ = plain.reset(seed=12)
    np.testing.assert_array_equal(env_batch.buffers.observation[1, 0], shown)
    random, ended, total, length = np.random.default_rng(0), 0, 0.0, 0
    for _ in range(200):
        env_batch.buffers.action[:, 0] = random.integers(0, 2, 3)
        env_batch.step(0, 3)
        shown, reward, terminated, truncated, _ = plain.step(int(env_batch.buffers.action[1, 0]))
        total, length = total + float(reward), length + 1
        assert env_batch.buffers.reward[1, 0] == reward
        assert (env_batch.buffers.terminated[1, 0], env_batch.buffers.truncated[1, 0]) == (terminated, truncated)
        episodes = [episode for episode in env_batch.episodes() if episode.env == 1]
        assert bool(episodes) == (terminated or truncated)
        if episodes:
            np.testing.assert_array_equal(env_batch.buffers.final_observation[1, 0], shown)
            assert (episodes[0].returns, episodes[0].length) == ((total,), length)
            shown, _ = plain.reset()
            ended, total, length = ended + 1, 0.0, 0
        np.testing.assert_array_equal(env_batch.buffers.observation[1, 0], shown)
    assert ended >= 3
    env_batch.close()


def test_pendulum_takes_continuous_actions_and_truncates():
    env_batch = make_env_batch("gymnasium:Pendulum-v1", 2, {"max_steps": 20})
    assert (env_batch.spec.action.kind, env_batch.spec.action.low, env_batch.spec.action.high) == (
        "continuous",
        (-2.0,),
        (2.0,),
    )
    assert env_batch.buffers.action.dtype == np.float32
    one = play(env_batch, spawn_seeds(0, 2), 45)
    assert one.truncated.sum() == 4
    assert not one.terminated.any()
    assert [episode.length for episode in one.episodes] == [20] * 4
    env_batch.close()


def test_standard_wrappers_are_stepped_in_one_call_and_truncate_by_their_own_counter():
    env = gymnasium.make("Pendulum-v1", max_episode_steps=3, disable_env_checker=True)
    step, action = step_of(env), np.zeros(1, np.float32)
    for _ in range(2):
        env.reset(seed=5)
        assert [step(action)[3] for _ in range(3)] == [False, False, True]
        assert env._elapsed_steps == 3
    plain = gymnasium.make("Pendulum-v1", max_episode_steps=3)
    plain.reset(seed=5)
    env.reset(seed=5)
    np.testing.assert_array_equal(step(action)[0], plain.step(action)[0])


@pytest.mark.parametrize("dtype", [np.int64, np.int8])
def test_quick_membership_answers_like_gymnasium(dtype):
    space = gymnasium.spaces.Discrete(3, start=-1, dtype=dtype)
    values = [*range(-3, 5), 10**30, True, 1.0, np.nan, "1", None, np.float32(1), np.array(1), np.array([1])]
    values += [kind(value) for kind in (np.int64, np.int32, np.int8) for value in (-2, -1, 0, 1, 2)] + [
        np.uint64(2**63)
    ]
    quick = DiscreteMembership(space)
    assert [quick(value) for value in values] == [space.contains(value) for value in values]


def test_envs_of_gymnasium_ask_the_quick_membership_and_still_refuse_bad_actions():
    env = gymnasium_maker("CartPole-v1", LoopOptions())()
    assert isinstance(env.action_space.contains, DiscreteMembership)
    copied = copy.deepcopy(env)
    assert copied.action_space.contains.space is copied.action_space
    assert 1 in copied.action_space
    env.reset(seed=5)
    with pytest.raises(AssertionError, match="invalid"):
        env.step(2)


@pytest.mark.parametrize("wrap", [gymnasium.wrappers.ClipAction, gymnasium.wrappers.RecordEpisodeStatistics])
def test_other_wrappers_are_stepped_through(wrap):
    env = wrap(gymnasium.make("Pendulum-v1"))
    assert step_of(env) == env.step
    checked = gymnasium.make("Pendulum-v1", disable_env_checker=False)  # with a checker below the two standard wrappers
    checked.reset(seed=5)
    assert step_of(checked)(np.zeros(1, np.float32))[3] is False


def test_halfcheetah_matches_gymnasium():
    pytest.importorskip("mujoco")
    env_batch = make_env_batch("gymnasium:HalfCheetah-v5", 2, {})
    assert (env_batch.spec.observation.shape, env_batch.spec.action.shape) == ((17,), (6,))
    assert (env_batch.spec.action.low, env_batch.spec.max_steps) == ((-1.0,) * 6, 1_000)
    env_batch.reset(np.array([3, 4], np.uint64))
    plain = gymnasium.make("HalfCheetah-v5")
    shown, _ = plain.reset(seed=4)
    random = np.random.default_rng(0)
    for _ in range(20):
        np.testing.assert_array_equal(env_batch.buffers.observation[1, 0], shown.astype(np.float32))
        env_batch.buffers.action[:, 0] = random.uniform(-1, 1, (2, 6))
        env_batch.step(0, 2)
        shown, reward, _, _, _ = plain.step(env_batch.buffers.action[1, 0])
        assert env_batch.buffers.reward[1, 0] == np.float32(reward)
    env_batch.close()


def test_actions_are_clipped_only_if_requested():
    for clip, expected in ((False, 9.0), (True, 2.0)):
        env_batch = make_env_batch("gymnasium:Pendulum-v1", 1, {"clip_actions": clip})
        env_batch.buffers.action[:] = 9.0
        assert env_batch._spaces.action.read(env_batch.buffers.action[0, 0]).tolist() == [expected]
        env_batch.close()


def test_nested_observations_are_packed_masks_concatenated_and_infos_averaged():
    env_batch = make_env_batch(f"{OWN}:Counter", 2, {"kwargs": {"length": 4}})
    assert [part.name for part in env_batch.spec.observation.parts] == ["count", "kind", "pair/0", "pair/1"]
    assert env_batch.spec.observation.dtype == "uint8"  # parts of several dtypes: bytes
    assert env_batch.spec.action.sizes == (3, 2)
    assert env_batch.buffers.action_mask.shape == (2, 1, 5)
    env_batch.reset(np.array([1, 2], np.uint64))
    assert env_batch.buffers.action_mask[0, 0].tolist() == [True, True, True, True, False]
    env_batch.buffers.action[:, 0] = [2, 1]
    env_batch.step(0, 2)
    count, kind, binary, several = (
        read_part(env_batch.buffers.observation, env_batch.spec.observation, part)
        for part in env_batch.spec.observation.parts
    )
    assert count.dtype == np.float32
    assert count[:, 0, 0].tolist() == [1.0, 1.0]
    assert kind[0, 0].tolist() == [0, 1, 0]
    assert binary[0, 0].tolist() == [1, 1]
    assert several[0, 0].tolist() == [0, 1, 0, 1, 0]  # one of 2, then one of 3
    assert env_batch.buffers.action_mask[0, 0].tolist() == [True, False, True, True, False]
    for _ in range(3):
        env_batch.step(0, 2)
    assert env_batch.buffers.terminated.all()
    final = read_part(
        env_batch.buffers.final_observation, env_batch.spec.observation, env_batch.spec.observation.parts[0]
    )
    first = read_part(env_batch.buffers.observation, env_batch.spec.observation, env_batch.spec.observation.parts[0])
    assert (final[0, 0, 0], first[0, 0, 0]) == (4.0, 0.0)
    assert env_batch.buffers.final_action_mask[0, 0].tolist() == [True, True, True, True, False]
    episode = env_batch.episodes()[0]
    assert episode.returns == (8.0,)
    assert episode.info == {"count": 2.5, "half": 1.25}
    env_batch.close()


@pytest.mark.parametrize(("how", "count"), [("mean", 2.5), ("last", 4.0), ("max", 4.0), ("sum", 10.0)])
def test_infos_are_aggregated_as_configured(how, count):
    env_batch = make_env_batch(f"{OWN}:Counter", 1, {"kwargs": {"length": 4}, "info": how})
    env_batch.reset(np.array([1], np.uint64))
    for _ in range(4):
        env_batch.step(0, 1)
    assert env_batch.episodes()[0].info["count"] == count
    env_batch.close()


def test_images_become_channels_first_and_masks_come_from_a_method():
    env_batch = make_env_batch(f"{OWN}:Masked", 2, {})
    part = env_batch.spec.observation.parts[0]
    assert (part.kind, part.shape, part.high) == ("pixels", (3, 10, 12), 255.0)
    env_batch.reset(np.array([1, 2], np.uint64))
    assert env_batch.buffers.action_mask[1, 0].tolist() == [False, False, True, False]
    same = custom_envs.Masked()
    shown, _ = same.reset(seed=2)
    np.testing.assert_array_equal(env_batch.buffers.observation[1, 0], shown.transpose(2, 0, 1))
    env_batch.buffers.action[:] = 2  # the space begins at 10
    env_batch.step(0, 2)
    assert env_batch.buffers.reward.tolist() == [[1.0], [1.0]]
    env_batch.close()


def test_error_of_an_env_names_the_env_and_its_step():
    env_batch = make_env_batch(f"{OWN}:Raising", 2, {})
    env_batch.reset(np.array([1, 2], np.uint64))
    for _ in range(3):
        env_batch.step(0, 2)
    with pytest.raises(RuntimeError, match="the wheel came off") as caught:
        env_batch.step(1, 2)
    assert "in env 1 of" in caught.value.__notes__[0]
    assert "3 steps into its episode" in caught.value.__notes__[0]
    env_batch.close()


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("gymnasium:Nope-v1", {}, "not known to Gymnasium"),
        ("gymnasium:CartPole-v1", {"kwargs": {"wheels": 3}}, "does not take kwargs {'wheels': 3}"),
        ("gymnasium:CartPole-v1", {"kwarg": {}}, "no option 'kwarg'; did you mean 'kwargs'"),
        (f"{OWN}:OldApi", {}, r"reset\(\) must return \(observation, infos\)"),
    ],
)
def test_envs_that_cannot_be_made_say_why(env_id, options, message):
    with pytest.raises(EnvError, match=message):
        make_env_batch(env_id, 1, options)

from __future__ import annotations

import numpy as np
import pytest

from millpond.envs.env_batch import EnvError
from millpond.envs.registry import make_env_batch
from millpond.envs.spaces import read_part
from millpond.envs.spec import ActionSpec
from tests.support import custom_envs

OWN = custom_envs.__name__


def test_agents_that_leave_are_masked_and_the_episode_continues_until_none_is_left():
    env_batch = make_env_batch(f"{OWN}:Leaving", 2, {})
    buffers = env_batch.buffers
    assert env_batch.spec.num_agents == 3
    assert env_batch.spec.action == ActionSpec.discrete(2)
    env_batch.reset(np.array([3, 4], np.uint64))
    assert buffers.alive.all()
    assert buffers.observation[0, :, 0].tolist() == [1.0, 2.0, 3.0]
    start = buffers.observation[0, 0, 2]
    buffers.action[:] = 1
    env_batch.step(0, 2)
    assert not (buffers.terminated | buffers.truncated).any()
    env_batch.step(0, 2)  # the first leaves
    assert buffers.terminated[0].tolist() == [True, False, False]
    assert buffers.alive[0].tolist() == [False, True, True]
    assert buffers.final_observation[0, 0].tolist() == [1.0, 2.0, start]
    assert buffers.observation[0, 0].tolist() == [0.0, 0.0, 0.0]
    assert env_batch.episodes() == []
    env_batch.step(0, 2)  # the second leaves
    assert buffers.terminated[0].tolist() == [False, True, False]
    assert buffers.reward[0].tolist() == [0.0, 2.0, 2.0]
    assert buffers.alive[0].tolist() == [False, False, True]
    env_batch.step(0, 2)  # the third is truncated, and the next episode begins at once
    assert buffers.terminated[0].tolist() == [False, False, False]
    assert buffers.truncated[0].tolist() == [False, False, True]
    assert buffers.final_observation[0, 2].tolist() == [3.0, 4.0, start]
    assert buffers.alive.all()
    assert buffers.observation[0, :, 1].tolist() == [0.0, 0.0, 0.0]
    episodes = env_batch.episodes()
    assert [episode.env for episode in episodes] == [0, 1]
    assert (episodes[0].returns, episodes[0].length) == ((4.0, 6.0, 8.0), 4)
    assert episodes[0].info["clock"] == pytest.approx((3 * 1 + 3 * 2 + 2 * 3 + 1 * 4) / 9)
    env_batch.close()


def test_a_step_limit_truncates_the_agents_that_are_left():
    env_batch = make_env_batch(f"{OWN}:Leaving", 1, {"max_steps": 3})
    buffers = env_batch.buffers
    assert env_batch.spec.max_steps == 3
    env_batch.reset(np.array([3], np.uint64))
    start = buffers.observation[0, 0, 2]
    for _ in range(3):
        env_batch.step(0, 1)
    assert buffers.terminated[0].tolist() == [False, True, False]  # the first left before, the second just now
    assert buffers.truncated[0].tolist() == [False, False, True]
    assert buffers.final_observation[0, 2].tolist() == [3.0, 3.0, start]
    assert buffers.alive.all()  # the next episode has begun
    assert [episode.length for episode in env_batch.episodes()] == [3]


def test_different_numbers_of_choices_are_padded_and_masked():
    env_batch = make_env_batch(f"{OWN}:Leaving", 1, {"kwargs": {"different": True}})
    spec, buffers = env_batch.spec, env_batch.buffers
    assert (spec.action, spec.action_masks) == (ActionSpec.discrete(3), True)
    assert spec.agent_names == ("one", "two", "three")
    env_batch.reset(np.array([3], np.uint64))
    assert buffers.action_mask[0].tolist() == [[True, True, False], [True, True, True], [True, True, False]]
    assert buffers.observation[0, :, 3:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]  # three types
    buffers.action[:] = 1
    env_batch.step(0, 1)
    env_batch.step(0, 1)  # the first leaves: its padded option stays forbidden
    assert buffers.action_mask[0, 0].tolist() == [True, True, False]


def test_agents_with_different_spaces_share_padded_observations_and_their_type():
    env_batch = make_env_batch(f"{OWN}:Teams", 1, {})
    spec, buffers = env_batch.spec.observation, env_batch.buffers
    assert [(part.name, part.shape, part.dtype) for part in spec.parts] == [
        ("near", (3,), "float32"),
        ("kind", (2,), "uint8"),
        ("agent", (2,), "uint8"),
    ]
    env_batch.reset(np.array([3], np.uint64))
    near, kind, agent = (read_part(buffers.observation[0], spec, part) for part in spec.parts)
    start = near[0, 0]
    assert near.tolist() == [[start, 0, 0], [start, 0, 7], [start, 0, 7]]
    assert kind.tolist() == [[0, 0], [1, 0], [0, 1]]
    assert agent.tolist() == [[1, 0], [0, 1], [0, 1]]  # chasers are of one type


def test_choices_of_different_agents_are_masked_and_read_by_each():
    env_batch = make_env_batch(f"{OWN}:Teams", 1, {})
    buffers = env_batch.buffers
    assert (env_batch.spec.action, env_batch.spec.action_masks) == (ActionSpec.multidiscrete((4, 3)), True)
    env_batch.reset(np.array([3], np.uint64))
    assert buffers.action_mask[0].astype(int).tolist() == [
        [1, 1, 1, 0, 1, 0, 0],  # the env forbids option 3; of the choice that the runner lacks, option 0 is left
        [1, 1, 0, 0, 1, 1, 1],
        [1, 1, 0, 0, 1, 1, 1],
    ]
    buffers.action[0] = [[2, 0], [1, 2], [0, 1]]
    env_batch.step(0, 1)
    taken = env_batch.envs[0].taken
    assert (taken["runner"], taken["chaser_0"].tolist(), taken["chaser_1"].tolist()) == (2, [1, 2], [0, 1])
    env_batch.step(0, 1)
    env_batch.step(0, 1)  # the runner leaves
    assert buffers.final_action_mask[0, 0].astype(int).tolist() == [1, 1, 1, 0, 1, 0, 0]


def test_numbers_with_different_bounds_are_stored_in_units_and_those_that_are_missing_masked():
    env_batch = make_env_batch(f"{OWN}:Teams", 1, {"kwargs": {"acting": "numbers"}})
    buffers = env_batch.buffers
    assert env_batch.spec.action == ActionSpec.mixed((), (-1.0, -1.0), (1.0, 1.0))
    env_batch.reset(np.array([3], np.uint64))
    assert buffers.action_mask[0].tolist() == [[True, False], [True, True], [True, True]]
    buffers.action[0] = [[0.5, 0.0], [0.25, -1.0], [0.0, 1.0]]
    env_batch.step(0, 1)
    taken = env_batch.envs[0].taken
    assert taken["runner"].tolist() == [7.5]  # of 0..10
    assert taken["chaser_0"].tolist() == [0.25, -1.0]


def test_choices_and_numbers_of_different_agents_share_one_action():
    env_batch = make_env_batch(f"{OWN}:Teams", 1, {"kwargs": {"acting": "both"}})
    buffers = env_batch.buffers
    assert env_batch.spec.action == ActionSpec.mixed((3,), (-1.0, -1.0), (1.0, 1.0))
    env_batch.reset(np.array([3], np.uint64))
    assert buffers.action_mask[0].astype(int).tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]]
    buffers.action[0] = [[2, 0, 0], [0, 0.5, -0.5], [0, 1, 1]]
    env_batch.step(0, 1)
    taken = env_batch.envs[0].taken
    assert (taken["runner"], taken["chaser_0"].tolist()) == (3, [0.5, -0.5])


def test_env_without_possible_agents_is_refused():
    with pytest.raises(EnvError, match="has no possible_agents"):
        make_env_batch("pettingzoo:test.example_envs.generated_agents_parallel_v0", 1, {})


def test_missing_modules_are_named():
    with pytest.raises(EnvError, match=r"did you mean pettingzoo:butterfly\.pistonball_v6"):
        make_env_batch("pettingzoo:butterfly.pistonbal_v6", 1, {})
    with pytest.raises(EnvError, match=r"no module pettingzoo\.nowhere_v0, nor nowhere_v0"):
        make_env_batch("pettingzoo:nowhere_v0", 1, {})
    with pytest.raises(EnvError, match="has no parallel_env"):
        make_env_batch("pettingzoo:utils", 1, {})


def test_agents_of_mpe_are_padded_and_named():
    pytest.importorskip("mpe2")
    spec = make_env_batch("pettingzoo:mpe2.simple_speaker_listener_v4", 1, {}).spec
    assert [(part.name, part.shape) for part in spec.observation.parts] == [("observation", (11,)), ("agent", (2,))]
    assert (spec.action, spec.action_masks) == (ActionSpec.discrete(5), True)
    assert list(spec.named_agents) == ["speaker_0", "listener_0"]

from __future__ import annotations

import numpy as np
import pytest

from millpond.envs.env_batch import EnvError, spawn_seeds
from millpond.envs.probes import RecallEnvs, TruncationEnvs
from millpond.envs.random_play import play, play_on


def test_memory_is_always_right_and_guessing_is_right_by_chance():
    env_batch = RecallEnvs(64, {})
    shares = {}
    for remembers in (True, False):
        env_batch.reset(spawn_seeds(0, 64))
        memory, right, asked = np.zeros(64, np.int64), 0.0, 0
        random = np.random.default_rng(0)
        for _ in range(300):
            cue = env_batch.buffers.observation[:, 0, :4]
            memory = np.where(cue.any(1), cue.argmax(1), memory)
            env_batch.buffers.action[:, 0] = memory if remembers else random.integers(0, 4, 64)
            env_batch.step(0, 64)
            right += env_batch.buffers.reward.sum()
            asked += int(env_batch.buffers.terminated.sum())
        shares[remembers] = right / asked
        assert not env_batch.buffers.truncated.any()
        assert np.mean([episode.info["correct"] for episode in env_batch.episodes()]) == pytest.approx(right / asked)
    assert shares[True] == 1.0
    assert 0.15 < shares[False] < 0.35


def test_the_cue_is_shown_once_and_the_question_comes_after_8_to_32_steps():
    one = play(RecallEnvs(32, {}), spawn_seeds(1, 32), 400)
    lengths = {episode.length for episode in one.episodes}
    assert lengths == set(range(9, 34))  # one step more than the delay: the answer
    begins = np.concatenate([np.ones((1, 32), bool), one.ended[:-1, :, 0]])
    shown = one.observation[:-1, :, 0]
    assert (shown[begins][:, :4].sum(1) == 1).all()
    assert (shown[~begins][:, :4] == 0).all()
    np.testing.assert_array_equal(shown[..., 4].astype(bool), one.ended[..., 0])  # asked, answered, over


def test_slices_step_alone_and_a_saved_state_continues():
    seeds = spawn_seeds(2, 5)
    assert play(RecallEnvs(5, {}), seeds, 60, cut=2).differs_from(play(RecallEnvs(5, {}), seeds, 60)) is None
    env_batch, other = RecallEnvs(5, {}), RecallEnvs(5, {})
    play(env_batch, seeds, 17)
    other.load_state(env_batch.save_state())
    onward = [play_on(w, [np.random.default_rng(3) for _ in range(5)], 60) for w in (env_batch, other)]
    assert onward[1].differs_from(onward[0]) is None
    assert onward[1].episodes == onward[0].episodes


def test_invalid_delays_are_refused():
    with pytest.raises(EnvError, match="max_delay=3 must be at least min_delay=8"):
        RecallEnvs(1, {"max_delay": 3})


def test_value_is_that_of_an_endless_reward_only_if_truncation_bootstraps():
    one = play(TruncationEnvs(4, {}), spawn_seeds(0, 4), 200)
    assert (one.reward == 1.0).all()
    assert not one.terminated.any()
    gamma, endless = 0.9, 10.0
    for bootstraps in (True, False):
        value = 0.0  # of the one state there is, by sweeps over what was seen
        for _ in range(200):
            ends = one.truncated[..., 0]
            future = np.where(ends & (not bootstraps), 0.0, value)
            value = float((one.reward[..., 0] + gamma * future).mean())
        assert (abs(value - endless) < 1e-6) is bootstraps


def test_episodes_have_the_configured_length_and_a_saved_state_continues():
    env_batch, other = TruncationEnvs(3, {"max_steps": 5}), TruncationEnvs(3, {"max_steps": 5})
    one = play(env_batch, np.array([0, 1, 7], np.uint64), 12)
    assert one.truncated[:, 0, 0].nonzero()[0].tolist() == [4, 9]
    assert one.truncated[:, 1, 0].nonzero()[0].tolist() == [3, 8]
    other.load_state(env_batch.save_state())
    onward = [play_on(w, [np.random.default_rng(3) for _ in range(3)], 20) for w in (env_batch, other)]
    assert onward[1].differs_from(onward[0]) is None

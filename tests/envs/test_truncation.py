from __future__ import annotations

import numpy as np

from millpond.envs.random_play import play, play_on
from millpond.envs.seeds import spawn_seeds
from millpond.envs.truncation import TruncationEnvs


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

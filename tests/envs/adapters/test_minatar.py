from __future__ import annotations

import numpy as np
import pytest

from millpond.envs.adapters.minatar import GAMES, MinAtarEnvs, describe, load_game
from millpond.envs.env_batch import EnvError, spawn_seeds
from millpond.envs.random_play import play, play_on


@pytest.mark.parametrize("game", sorted(GAMES))
def test_spec_matches_the_game_and_a_saved_state_continues_bit_for_bit(game):
    env = load_game(game).Env(ramping=True)
    channels, actions = GAMES[game]
    assert tuple(env.state_shape()) == (10, 10, channels)
    assert tuple(env.minimal_action_set()) == actions

    env_batch = MinAtarEnvs(game, 3, {"max_steps": 120})
    one = play(env_batch, spawn_seeds(0, 3), 150)
    assert one.observation.max() == 1
    saved = env_batch.save_state()
    other = MinAtarEnvs(game, 3, {"max_steps": 120})
    other.load_state(saved)
    onward = [play_on(w, [np.random.default_rng(i) for i in range(3)], 300) for w in (env_batch, other)]
    assert onward[1].differs_from(onward[0]) is None
    assert onward[1].episodes == onward[0].episodes
    assert one.ended.any() or onward[0].ended.any()


def test_breakout_matches_minatars_own_wrapper():
    minatar = pytest.importorskip("minatar")
    env_batch = MinAtarEnvs("breakout", 2, {})
    assert describe("breakout", {}).action.sizes == (3,)
    env_batch.reset(np.array([7, 8], np.uint64))
    plain = minatar.Environment("breakout")
    plain.seed(8)
    plain.reset()
    random, ended = np.random.default_rng(1), 0
    for _ in range(400):
        np.testing.assert_array_equal(env_batch.buffers.observation[1, 0], plain.state().transpose(2, 0, 1))
        env_batch.buffers.action[:, 0] = random.integers(0, 3, 2)
        env_batch.step(0, 2)
        reward, over = plain.act((0, 1, 3)[env_batch.buffers.action[1, 0]])
        assert env_batch.buffers.reward[1, 0] == reward
        assert bool(env_batch.buffers.terminated[1, 0]) == over
        if over:
            np.testing.assert_array_equal(env_batch.buffers.final_observation[1, 0], plain.state().transpose(2, 0, 1))
            plain.reset()
            ended += 1
    assert ended >= 5


def test_a_reset_forgets_the_last_action():
    """Actions are sticky most of the time here, so an old one would be played."""
    options = {"sticky_action_probability": 0.95}
    used, fresh = MinAtarEnvs("breakout", 4, options), MinAtarEnvs("breakout", 4, options)
    used.reset(spawn_seeds(1, 4))
    for _ in range(60):
        used.buffers.action[:] = 1
        used.step(0, 4)
    again, first = (play(env_batch, spawn_seeds(2, 4), 40) for env_batch in (used, fresh))
    assert again.differs_from(first) is None


def test_64_bit_seeds_give_different_episodes():
    low, high = (play(MinAtarEnvs("asterix", 1, {}), np.array([s], np.uint64), 60) for s in (5, 5 + 2**32))
    assert low.differs_from(high) is not None


def test_unknown_game_is_refused():
    with pytest.raises(EnvError, match="not a game of MinAtar; the games are: asterix, breakout"):
        describe("pong", {})

from __future__ import annotations

import numpy as np
import pytest

from millpond.envs.adapters.atari import MINIMAL_ACTIONS, AtariEnvs, describe
from millpond.envs.env_batch import EnvError, draw, spawn_seeds
from millpond.envs.random_play import play

ale_py = pytest.importorskip("ale_py")


def test_gravitar_steps_and_repeats_from_its_seed():
    env_batch = AtariEnvs("gravitar", 2, {"num_threads": 1, "max_steps": 20})
    assert env_batch.spec.observation.shape == (1, 84, 84)
    assert (env_batch.spec.action.sizes, env_batch.spec.frame_skip, env_batch.spec.partial_step) == ((18,), 4, False)
    one = play(env_batch, spawn_seeds(0, 2), 45)
    assert one.observation.std() > 0
    assert one.truncated.sum() == 4
    assert not one.terminated.any()
    assert [episode.length for episode in one.episodes] == [20] * 4
    assert play(env_batch, spawn_seeds(0, 2), 45).differs_from(one) is None
    alone = AtariEnvs("gravitar", 1, {"num_threads": 1, "max_steps": 20})
    assert play(alone, spawn_seeds(0, 2)[1:], 45).differs_from(one.env(1)) is None
    env_batch.close()
    alone.close()


def test_final_observation_is_the_last_frame_of_the_episode():
    """The emulator's next-step mode returns the last frame of an episode and resets one step later."""
    options = {"num_threads": 1, "repeat_action_probability": 0.0, "noop_max": 0, "max_steps": 200}
    env_batch = AtariEnvs("breakout", 1, {**options, "episodic_life": False})
    env_batch.reset(np.array([3], np.uint64))
    seed = (draw(np.array([3], np.uint64)) >> np.uint64(33)).astype(np.int64)
    plain = ale_py.vector_env.AtariVectorEnv(
        "breakout",
        1,
        num_threads=1,
        stack_num=1,
        noop_max=0,
        reward_clipping=False,
        use_fire_reset=False,
        max_num_frames_per_episode=800,
        autoreset_mode="NextStep",
    )
    shown, _ = plain.reset(seed=seed)
    random = np.random.default_rng(0)
    for _ in range(200):
        np.testing.assert_array_equal(env_batch.buffers.observation[:, 0], shown)
        env_batch.buffers.action[:, 0] = random.integers(0, 4)
        shown, reward, terminated, truncated, _ = plain.step(env_batch.buffers.action[:, 0].copy())
        env_batch.step(0, 1)
        assert env_batch.buffers.reward[0, 0] == reward[0]
        assert (env_batch.buffers.terminated[0, 0], env_batch.buffers.truncated[0, 0]) == (terminated[0], truncated[0])
        if terminated[0] or truncated[0]:
            np.testing.assert_array_equal(env_batch.buffers.final_observation[:, 0], shown)
            assert (env_batch.buffers.observation != env_batch.buffers.final_observation).any()
            break
    else:
        pytest.fail("no episode ended")
    env_batch.close()
    plain.close()


def test_rewards_are_clipped_only_if_requested():
    best = {}
    for clip in (False, True):
        env_batch = AtariEnvs("space_invaders", 4, {"num_threads": 1, "reward_clipping": clip})
        best[clip] = play(env_batch, spawn_seeds(1, 4), 100).reward.max()
        env_batch.close()
    assert best[True] == 1.0
    assert best[False] >= 5.0


def test_colour_and_stacks_become_planes():
    env_batch = AtariEnvs(
        "breakout", 2, {"num_threads": 1, "grayscale": False, "stack_num": 2, "height": 40, "width": 30}
    )
    assert env_batch.spec.observation.shape == (6, 40, 30)
    env_batch.reset(spawn_seeds(0, 2))
    plain = ale_py.vector_env.AtariVectorEnv(
        "breakout",
        2,
        num_threads=1,
        stack_num=2,
        grayscale=False,
        img_height=40,
        img_width=30,
        use_fire_reset=False,
        repeat_action_probability=0.25,
    )
    plain.reset(seed=(draw(spawn_seeds(0, 2)) >> np.uint64(33)).astype(np.int64))
    for _ in range(5):
        env_batch.buffers.action[:] = 1
        env_batch.step(0, 2)
        frames = plain.step(np.ones(2, np.int32))[0]
    assert frames.shape == (2, 2, 40, 30, 3)
    for frame in range(2):
        for colour in range(3):
            plane = env_batch.buffers.observation[:, 0, frame * 3 + colour]
            np.testing.assert_array_equal(plane, frames[:, frame, :, :, colour])
    np.testing.assert_array_equal(env_batch.render_rgb(1), frames[1, 1])
    env_batch.close()
    plain.close()


def test_a_slice_cannot_be_stepped_alone():
    env_batch = AtariEnvs("pong", 2, {"num_threads": 1})
    with pytest.raises(EnvError, match=r"cannot step envs 0\.\.0 alone"):
        env_batch.step(0, 1)
    env_batch.close()


def check_action_sets(games):
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    for game in games:
        emulator = ale_py.ALEInterface()
        emulator.loadROM(ale_py.roms.get_rom_path(game))
        assert len(emulator.getMinimalActionSet()) == MINIMAL_ACTIONS[game], game


def test_table_of_action_sets_matches_the_emulator():
    one_of_each = {size: game for game, size in MINIMAL_ACTIONS.items()}
    check_action_sets(["gravitar", *one_of_each.values()])


@pytest.mark.slow
def test_whole_table_of_action_sets_matches_the_emulator():
    check_action_sets(MINIMAL_ACTIONS)


def test_an_unknown_game_gets_a_hint():
    with pytest.raises(EnvError, match=r"did you mean .*ms_pacman"):
        describe("MsPacman", {})

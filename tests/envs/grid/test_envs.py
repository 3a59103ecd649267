from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from millpond.envs.env_batch import EnvError, spawn_seeds
from millpond.envs.grid.envs import TILE, GridEnvs, ScriptedPlayer, play_baseline
from millpond.envs.grid.game import ALTAR, ALTAR_COOLING, GENERATOR, MINE, WALL, GridOptions
from millpond.envs.random_play import play, play_on
from millpond.envs.render import render_rgb, write_gif
from tests.support.grid_reference import ReferenceEnv

SMALL = {"width": 8, "height": 7, "walls": 6, "mines": 2, "generators": 2, "altars": 2, "max_steps": 40}


@st.composite
def options(draw: st.DrawFn) -> dict[str, object]:
    """Draw options of every kind, also crowded maps."""
    width, height = draw(st.integers(5, 14)), draw(st.integers(5, 14))
    mines, generators, altars = (draw(st.integers(1, 2)) for _ in range(3))
    room = width * height // 3 - mines - generators - altars
    return {
        "width": width,
        "height": height,
        "mines": mines,
        "generators": generators,
        "altars": altars,
        "walls": draw(st.integers(0, room)),
        "num_agents": draw(st.integers(1, width * height // 6)),
        "obs_size": draw(st.sampled_from([3, 5, 7, 11])),
        "max_steps": draw(st.integers(1, 60)),
        "capacity": draw(st.integers(1, 4)),
        "altar_cooldown": draw(st.integers(0, 6)),
        "stagger": draw(st.booleans()),
    }


def made(rules: dict[str, object], num_envs: int, seed: int) -> GridEnvs:
    env_batch = GridEnvs(num_envs, rules)
    env_batch.reset(spawn_seeds(seed, num_envs))
    return env_batch


@settings(max_examples=40, deadline=None)
@given(options(), st.integers(0, 2**32), st.sampled_from(["random", "greedy"]))
def test_steps_rewards_and_observations_match_the_reference(rules, seed, name):
    env_batch = made(rules, 3, seed)
    player = ScriptedPlayer(name, env_batch, seed)
    plain = [ReferenceEnv(env_batch, env) for env in range(3)]
    for _ in range(50):
        player.act(0, 3)
        clock_before = env_batch.state.clock.copy()
        env_batch.step(0, 3)
        for env in range(3):
            rewards = plain[env].step(env_batch.buffers.action[env].tolist())
            np.testing.assert_array_equal(env_batch.buffers.reward[env], np.array(rewards, np.float32))
            over = clock_before[env] + 1 >= env_batch.options.max_steps
            assert env_batch.buffers.truncated[env].tolist() == [over] * env_batch.options.num_agents
            shown = env_batch.buffers.final_observation if over else env_batch.buffers.observation
            for agent in range(env_batch.options.num_agents):
                np.testing.assert_array_equal(shown[env, agent], plain[env].observation(agent))
            if over:
                plain[env] = ReferenceEnv(env_batch, env)  # the next episode
                for agent in range(env_batch.options.num_agents):
                    np.testing.assert_array_equal(
                        env_batch.buffers.observation[env, agent], plain[env].observation(agent)
                    )
    assert not env_batch.buffers.terminated.any()
    assert env_batch.buffers.alive.all()


@settings(max_examples=60, deadline=None)
@given(options(), st.integers(0, 2**32))
def test_every_object_on_a_map_is_reachable_and_counts_match_the_options(rules, seed):
    env_batch = made(rules, 4, seed)
    for env in range(4):
        plain = ReferenceEnv(env_batch, env)
        assert plain.reachable()
        asked = env_batch.options
        for code, count in (
            (MINE, asked.mines),
            (GENERATOR, asked.generators),
            (ALTAR, asked.altars),
            (WALL, asked.walls),
        ):
            assert np.count_nonzero(plain.cells == code) == count
        assert len(set(plain.agents)) == asked.num_agents


@settings(max_examples=30, deadline=None)
@given(options(), st.integers(0, 2**32))
def test_resources_are_conserved_and_agents_never_share_a_cell(rules, seed):
    env_batch = made({**rules, "max_steps": 1_000, "stagger": False}, 2, seed)
    player = ScriptedPlayer("greedy", env_batch, seed)
    for _ in range(80):
        player.act(0, 2)
        env_batch.step(0, 2)
    kept = env_batch.state.inventory.sum(1)
    ores, batteries, hearts = env_batch.state.made.T
    np.testing.assert_array_equal(kept[:, 0], ores - batteries)
    np.testing.assert_array_equal(kept[:, 1], batteries - hearts)
    np.testing.assert_array_equal(kept[:, 2], hearts)
    assert (env_batch.state.inventory[:, :, :2] <= env_batch.options.capacity).all()
    for env in range(2):
        plain = ReferenceEnv(env_batch, env)
        assert len(set(plain.agents)) == env_batch.options.num_agents
        cooling = {place for place, left in plain.cooldown.items() if left}
        assert cooling == set(zip(*np.nonzero(plain.cells == ALTAR_COOLING), strict=True))


@settings(max_examples=15, deadline=None)
@given(options(), st.integers(0, 2**32), st.integers(1, 4))
def test_stepping_two_slices_equals_stepping_all(rules, seed, cut):
    seeds = spawn_seeds(seed, 5)
    whole = play(GridEnvs(5, rules), seeds, 40)
    parts = play(GridEnvs(5, rules), seeds, 40, cut=cut)
    assert parts.differs_from(whole) is None
    by_env = [sorted(played.episodes, key=lambda e: e.env) for played in (parts, whole)]  # a stable sort
    assert by_env[0] == by_env[1]


def test_two_threads_may_step_two_slices_at_once():
    one, two = made(SMALL, 64, 7), made(SMALL, 64, 7)
    random = np.random.default_rng(0)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(200):
            actions = random.integers(0, 5, one.buffers.action.shape)
            for env_batch in (one, two):
                env_batch.buffers.action[:] = actions
            one.step(0, 64)
            for done in [pool.submit(two.step, 0, 31), pool.submit(two.step, 31, 64)]:
                done.result()
    for name, array in one.state._asdict().items():
        np.testing.assert_array_equal(array, getattr(two.state, name), err_msg=name)
    np.testing.assert_array_equal(one.buffers.observation, two.buffers.observation)
    ended = [{(e.env, e.returns, e.length) for e in env_batch.episodes()} for env_batch in (one, two)]
    assert ended[0] == ended[1]
    assert len(ended[0]) >= 64 * 4


@settings(max_examples=15, deadline=None)
@given(options(), st.integers(0, 2**32))
def test_an_env_depends_on_its_own_seed_and_actions_alone(rules, seed):
    seeds = spawn_seeds(seed, 4)
    batch = play(GridEnvs(4, rules), seeds, 40)
    alone = play(GridEnvs(1, rules), seeds[2:3], 40)
    assert alone.differs_from(batch.env(2)) is None


@settings(max_examples=15, deadline=None)
@given(options(), st.integers(0, 2**32), st.integers(0, 70))
def test_saved_state_continues_bit_for_bit_in_another_batch(rules, seed, steps):
    first = made(rules, 3, seed)
    play_on(first, [np.random.default_rng(i) for i in range(3)], steps) if steps else None
    saved = first.save_state()
    other = GridEnvs(3, rules)
    other.load_state(saved)
    np.testing.assert_array_equal(other.buffers.observation, first.buffers.observation)
    onward = [play_on(env_batch, [np.random.default_rng(9) for _ in range(3)], 40) for env_batch in (first, other)]
    assert onward[1].differs_from(onward[0]) is None
    assert onward[1].episodes == onward[0].episodes
    for name, array in first.save_state().items():
        np.testing.assert_array_equal(array, other.save_state()[name], err_msg=name)


def test_saved_state_holds_episodes_not_yet_returned():
    env_batch = made({**SMALL, "max_steps": 5, "stagger": False}, 2, 0)
    for _ in range(5):
        env_batch.step(0, 2)
    other = GridEnvs(2, {**SMALL, "max_steps": 5, "stagger": False})
    other.load_state(env_batch.save_state())
    assert len(env_batch.episodes()) == 2
    assert [episode.env for episode in other.episodes()] == [0, 1]
    assert other.episodes() == []


def test_state_of_another_size_is_refused_with_the_sizes():
    env_batch = made(SMALL, 2, 0)
    with pytest.raises(EnvError, match=r"grid\.random of uint64 \(2,\).*needs uint64 \(3,\)"):
        GridEnvs(3, SMALL).load_state(env_batch.save_state())
    with pytest.raises(EnvError, match=r"has no 'grid\.random'"):
        env_batch.load_state({})


def test_stagger_spreads_the_first_truncations():
    for stagger, distinct in ((True, 10), (False, 1)):
        env_batch = made({**SMALL, "max_steps": 100, "stagger": stagger}, 32, 3)
        lengths = set()
        for _ in range(100):
            env_batch.step(0, 32)
            lengths |= {episode.length for episode in env_batch.episodes()}
        assert len(lengths) >= distinct
        assert (lengths == {100}) is (not stagger)


def test_episode_reports_return_length_and_resources_made():
    env_batch = made({**SMALL, "stagger": False}, 4, 1)
    player = ScriptedPlayer("greedy", env_batch, 1)
    rewards = np.zeros((4, 3))
    for _ in range(40):
        player.act(0, 4)
        env_batch.step(0, 4)
        rewards += env_batch.buffers.reward
    episodes = env_batch.episodes()
    assert [episode.env for episode in episodes] == [0, 1, 2, 3]
    for episode in episodes:
        np.testing.assert_allclose(episode.returns, rewards[episode.env], rtol=1e-5)
        assert episode.length == 40
        rules, info = env_batch.options, episode.info
        worth = info["ores"] * rules.reward_ore + info["batteries"] * rules.reward_battery
        assert sum(episode.returns) == pytest.approx(worth + info["hearts"] * rules.reward_heart, rel=1e-5)
    assert sum(episode.info["hearts"] for episode in episodes) > 0


def test_new_episodes_have_new_maps():
    env_batch = made({**SMALL, "max_steps": 1}, 1, 0)
    maps = set()
    for _ in range(10):
        env_batch.step(0, 1)
        maps.add(env_batch.state.cells[0].tobytes())
    assert len(maps) == 10


def test_invalid_action_is_refused():
    env_batch = made(SMALL, 3, 0)
    env_batch.buffers.action[2, 1] = 5
    with pytest.raises(EnvError, match=r"env 2 was given the actions \[0, 5, 0\].*0\.\.4 \(noop, north"):
        env_batch.step(0, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"obs_size": 10}, "obs_size=10 must be odd .* try 9 or 11"),
        ({"num_agents": 0}, "num_agents=0 must be at least 1"),
        ({"walls": 200}, "must be at most a third .* remove 44"),
        ({"num_agents": 97}, "num_agents=97 must be at most a sixth"),
        ({"altar_cooldown": -1}, "altar_cooldown=-1 must not be negative"),
        ({"num_agent": 3}, "no option 'num_agent'; did you mean 'num_agents'"),
        ({"max_steps": 10.0}, "max_steps=10.0 must be int, not float"),
        ({"capacity": 300}, "capacity=300 must be at most 255"),
    ],
)
def test_invalid_options_are_refused_with_a_reason(wrong, message):
    with pytest.raises(EnvError, match=message):
        GridEnvs(1, wrong)


def test_defaults_match_the_documentation():
    defaults = GridOptions()
    assert (defaults.num_agents, defaults.obs_size, defaults.max_steps) == (3, 11, 1_000)
    assert defaults.width >= 24
    assert defaults.height >= 24
    spec = GridEnvs(1, {}).spec
    assert spec.observation.shape == (124,)
    assert spec.observation.nbytes == 124
    assert [(part.name, part.offset, part.shape) for part in spec.observation.parts] == [
        ("cells", 0, (11, 11)),
        ("inventory", 121, (3,)),
    ]


def env_of_one() -> GridEnvs:
    env_batch = GridEnvs(1, {"width": 9, "height": 6, "walls": 4, "mines": 1, "generators": 1, "altars": 1})
    env_batch.reset(np.array([5], np.uint64))
    return env_batch


def test_text_shows_every_object_and_agent_at_its_position():
    env_batch = env_of_one()
    lines = env_batch.render_text(0).splitlines()
    assert len(lines) == 6 + 1
    assert all(len(line) == 9 for line in lines[:6])
    drawn = "".join(lines[:6])
    assert [drawn.count(character) for character in "#mgaz012"] == [4, 1, 1, 1, 0, 1, 1, 1]
    assert "0: ore 0 battery 0 heart 0" in lines[6]


def test_rgb_has_one_tile_per_cell_and_changes_when_an_agent_moves():
    env_batch = env_of_one()
    before = render_rgb(env_batch, 0)
    assert before.shape == (6 * TILE, 9 * TILE, 3)
    assert before.dtype == np.uint8
    ScriptedPlayer("greedy", env_batch).act(0, 1)
    env_batch.step(0, 1)
    assert (env_batch.render_rgb(0) != before).any()


def test_gif_holds_every_frame_of_an_episode(tmp_path):
    env_batch = env_of_one()
    player, frames = ScriptedPlayer("greedy", env_batch), []
    for _ in range(12):
        frames.append(env_batch.render_rgb(0))
        player.act(0, 1)
        env_batch.step(0, 1)
    write_gif(frames, tmp_path / "episode.gif")
    with Image.open(tmp_path / "episode.gif") as image:
        assert image.n_frames == 12
        assert image.size == (9 * TILE, 6 * TILE)


def test_greedy_is_far_above_random():
    random, greedy = (play_baseline(name, {}, num_envs=16) for name in ("random", "greedy"))
    assert greedy["episode_return"] > 10 * random["episode_return"]
    assert greedy["hearts"] > 10 * random["hearts"]
    assert random["hearts"] > 0  # chance finds the whole chain, so there is something to learn from


def test_greedy_walks_a_shortest_path_and_uses_the_object():
    rules = {"num_agents": 1, "width": 7, "height": 5, "walls": 0, "mines": 1, "generators": 1, "altars": 1}
    env_batch = GridEnvs(32, {**rules, "capacity": 1, "stagger": False})
    env_batch.reset(np.arange(32, dtype=np.uint64))
    player = ScriptedPlayer("greedy", env_batch)
    for _ in range(3 * 12):
        player.act(0, 32)
        env_batch.step(0, 32)
    # On an open map of 7x5 no two places are more than 10 steps apart, so 36 steps are enough for the whole chain.
    assert (env_batch.state.made[:, 2] >= 1).all()


def test_players_repeat():
    scores = [play_baseline("random", {"max_steps": 50}, num_envs=8, seed=4) for _ in range(2)]
    assert scores[0] == scores[1]


def test_an_unknown_player_is_refused():
    with pytest.raises(ValueError, match="'clever' must be 'random' or 'greedy'"):
        ScriptedPlayer("clever", GridEnvs(1, {}))  # type: ignore[arg-type]

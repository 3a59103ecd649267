from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.envs.errors import EnvError
from millpond.envs.grid.players import Player
from millpond.envs.grid.spec import ALTAR, ALTAR_COOLING, GENERATOR, MINE, WALL, GridOptions
from millpond.envs.grid.world import GridWorld
from millpond.envs.sampling import play, play_on
from millpond.envs.seeds import spawn_seeds

from .reference import ReferenceEnv

SMALL = {"width": 8, "height": 7, "walls": 6, "mines": 2, "generators": 2, "altars": 2, "max_steps": 40}


@st.composite
def options(draw: st.DrawFn) -> dict[str, object]:
    """Rules of every shape, crowded ones too."""
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


def made(rules: dict[str, object], num_envs: int, seed: int) -> GridWorld:
    world = GridWorld(num_envs, rules)
    world.reset(spawn_seeds(seed, num_envs))
    return world


@settings(max_examples=40, deadline=None)
@given(options(), st.integers(0, 2**32), st.sampled_from(["random", "greedy"]))
def test_steps_rewards_and_observations_are_those_of_the_plain_rules(rules, seed, name):
    world = made(rules, 3, seed)
    player = Player(name, world, seed)
    plain = [ReferenceEnv(world, env) for env in range(3)]
    for _ in range(50):
        player.act(0, 3)
        clock_before = world.state.clock.copy()
        world.step(0, 3)
        for env in range(3):
            rewards = plain[env].step(world.buffers.action[env].tolist())
            np.testing.assert_array_equal(world.buffers.reward[env], np.array(rewards, np.float32))
            over = clock_before[env] + 1 >= world.options.max_steps
            assert world.buffers.truncated[env].tolist() == [over] * world.options.num_agents
            shown = world.buffers.final_observation if over else world.buffers.observation
            for agent in range(world.options.num_agents):
                np.testing.assert_array_equal(shown[env, agent], plain[env].observation(agent))
            if over:
                plain[env] = ReferenceEnv(world, env)  # the next episode
                for agent in range(world.options.num_agents):
                    np.testing.assert_array_equal(world.buffers.observation[env, agent], plain[env].observation(agent))
    assert not world.buffers.terminated.any()
    assert world.buffers.alive.all()


@settings(max_examples=60, deadline=None)
@given(options(), st.integers(0, 2**32))
def test_everything_on_a_map_can_be_reached_and_is_there_in_the_number_asked_for(rules, seed):
    world = made(rules, 4, seed)
    for env in range(4):
        plain = ReferenceEnv(world, env)
        assert plain.reachable()
        asked = world.options
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
    world = made({**rules, "max_steps": 1_000, "stagger": False}, 2, seed)
    player = Player("greedy", world, seed)
    for _ in range(80):
        player.act(0, 2)
        world.step(0, 2)
    kept = world.state.inventory.sum(1)
    ores, batteries, hearts = world.state.made.T
    np.testing.assert_array_equal(kept[:, 0], ores - batteries)
    np.testing.assert_array_equal(kept[:, 1], batteries - hearts)
    np.testing.assert_array_equal(kept[:, 2], hearts)
    assert (world.state.inventory[:, :, :2] <= world.options.capacity).all()
    for env in range(2):
        plain = ReferenceEnv(world, env)
        assert len(set(plain.agents)) == world.options.num_agents
        cooling = {place for place, left in plain.cooldown.items() if left}
        assert cooling == set(zip(*np.nonzero(plain.cells == ALTAR_COOLING), strict=True))


@settings(max_examples=15, deadline=None)
@given(options(), st.integers(0, 2**32), st.integers(1, 4))
def test_stepping_in_two_parts_is_stepping_all(rules, seed, cut):
    seeds = spawn_seeds(seed, 5)
    whole = play(GridWorld(5, rules), seeds, 40)
    parts = play(GridWorld(5, rules), seeds, 40, cut=cut)
    assert parts.differs_from(whole) is None
    by_env = [sorted(played.episodes, key=lambda e: e.env) for played in (parts, whole)]  # a stable sort
    assert by_env[0] == by_env[1]


def test_two_threads_may_step_two_parts_at_once():
    one, two = made(SMALL, 64, 7), made(SMALL, 64, 7)
    random = np.random.default_rng(0)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(200):
            actions = random.integers(0, 5, one.buffers.action.shape)
            for world in (one, two):
                world.buffers.action[:] = actions
            one.step(0, 64)
            for done in [pool.submit(two.step, 0, 31), pool.submit(two.step, 31, 64)]:
                done.result()
    for name, array in one.state._asdict().items():
        np.testing.assert_array_equal(array, getattr(two.state, name), err_msg=name)
    np.testing.assert_array_equal(one.buffers.observation, two.buffers.observation)
    ended = [{(e.env, e.returns, e.length) for e in world.episodes()} for world in (one, two)]
    assert ended[0] == ended[1]
    assert len(ended[0]) >= 64 * 4


@settings(max_examples=15, deadline=None)
@given(options(), st.integers(0, 2**32))
def test_an_env_depends_on_its_own_seed_and_actions_alone(rules, seed):
    seeds = spawn_seeds(seed, 4)
    batch = play(GridWorld(4, rules), seeds, 40)
    alone = play(GridWorld(1, rules), seeds[2:3], 40)
    assert alone.differs_from(batch.env(2)) is None


@settings(max_examples=15, deadline=None)
@given(options(), st.integers(0, 2**32), st.integers(0, 70))
def test_a_saved_state_goes_on_bit_for_bit_in_another_world(rules, seed, steps):
    first = made(rules, 3, seed)
    play_on(first, [np.random.default_rng(i) for i in range(3)], steps) if steps else None
    saved = first.save_state()
    other = GridWorld(3, rules)
    other.load_state(saved)
    np.testing.assert_array_equal(other.buffers.observation, first.buffers.observation)
    onward = [play_on(world, [np.random.default_rng(9) for _ in range(3)], 40) for world in (first, other)]
    assert onward[1].differs_from(onward[0]) is None
    assert onward[1].episodes == onward[0].episodes
    for name, array in first.save_state().items():
        np.testing.assert_array_equal(array, other.save_state()[name], err_msg=name)


def test_a_saved_state_keeps_episodes_that_were_not_yet_handed_over():
    world = made({**SMALL, "max_steps": 5, "stagger": False}, 2, 0)
    for _ in range(5):
        world.step(0, 2)
    other = GridWorld(2, {**SMALL, "max_steps": 5, "stagger": False})
    other.load_state(world.save_state())
    assert len(world.episodes()) == 2
    assert [episode.env for episode in other.episodes()] == [0, 1]
    assert other.episodes() == []


def test_a_state_of_another_size_is_refused_with_the_sizes():
    world = made(SMALL, 2, 0)
    with pytest.raises(EnvError, match=r"grid\.random of uint64 \(2,\).*needs uint64 \(3,\)"):
        GridWorld(3, SMALL).load_state(world.save_state())
    with pytest.raises(EnvError, match=r"has no 'grid\.random'"):
        world.load_state({})


def test_stagger_spreads_the_first_truncations_and_off_brings_them_at_once():
    for stagger, distinct in ((True, 10), (False, 1)):
        world = made({**SMALL, "max_steps": 100, "stagger": stagger}, 32, 3)
        lengths = set()
        for _ in range(100):
            world.step(0, 32)
            lengths |= {episode.length for episode in world.episodes()}
        assert len(lengths) >= distinct
        assert (lengths == {100}) is (not stagger)


def test_an_episode_reports_its_return_length_and_what_was_made():
    world = made({**SMALL, "stagger": False}, 4, 1)
    player = Player("greedy", world, 1)
    rewards = np.zeros((4, 3))
    for _ in range(40):
        player.act(0, 4)
        world.step(0, 4)
        rewards += world.buffers.reward
    episodes = world.episodes()
    assert [episode.env for episode in episodes] == [0, 1, 2, 3]
    for episode in episodes:
        np.testing.assert_allclose(episode.returns, rewards[episode.env], rtol=1e-5)
        assert episode.length == 40
        rules, info = world.options, episode.info
        worth = info["ores"] * rules.reward_ore + info["batteries"] * rules.reward_battery
        assert sum(episode.returns) == pytest.approx(worth + info["hearts"] * rules.reward_heart, rel=1e-5)
    assert sum(episode.info["hearts"] for episode in episodes) > 0


def test_new_episodes_have_new_maps():
    world = made({**SMALL, "max_steps": 1}, 1, 0)
    maps = set()
    for _ in range(10):
        world.step(0, 1)
        maps.add(world.state.cells[0].tobytes())
    assert len(maps) == 10


def test_an_action_that_there_is_not_is_refused():
    world = made(SMALL, 3, 0)
    world.buffers.action[2, 1] = 5
    with pytest.raises(EnvError, match=r"env 2 was given the actions \[0, 5, 0\].*0\.\.4 \(noop, north"):
        world.step(0, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"obs_size": 10}, "obs_size=10 must be odd .* try 9 or 11"),
        ({"num_agents": 0}, "num_agents=0 must be at least 1"),
        ({"walls": 200}, "must be at most a third .* take 44 away"),
        ({"num_agents": 97}, "num_agents=97 must be at most a sixth"),
        ({"altar_cooldown": -1}, "altar_cooldown=-1 must not be negative"),
        ({"num_agent": 3}, "no option 'num_agent'; did you mean 'num_agents'"),
        ({"max_steps": 10.0}, "max_steps=10.0 must be int, not float"),
        ({"capacity": 300}, "capacity=300 must be at most 255"),
    ],
)
def test_wrong_options_are_refused_with_a_reason(wrong, message):
    with pytest.raises(EnvError, match=message):
        GridWorld(1, wrong)


def test_defaults_are_those_of_the_documents():
    defaults = GridOptions()
    assert (defaults.num_agents, defaults.obs_size, defaults.max_steps) == (3, 11, 1_000)
    assert defaults.width >= 24
    assert defaults.height >= 24
    spec = GridWorld(1, {}).spec
    assert spec.observation.shape == (124,)
    assert spec.observation.nbytes == 124
    assert [(part.name, part.offset, part.shape) for part in spec.observation.parts] == [
        ("cells", 0, (11, 11)),
        ("inventory", 121, (3,)),
    ]

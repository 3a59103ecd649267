from __future__ import annotations

import numpy as np
import pytest
import yaml

from millpond.envs.env_batch import EnvError, draw, spawn_seeds
from millpond.envs.mettagrid import Forage, MettaGridEnvs, describe, forage_config
from millpond.envs.random_play import play

pytest.importorskip("mettagrid", reason="MettaGrid has wheels for Python 3.11 and 3.12 only")


def make_small(agents: int = 2):
    return forage_config(Forage(num_agents=agents, obs_size=5, num_tokens=50, max_steps=30, size=9))


def test_spec_without_mettagrid_matches_the_real_scenario():
    env_batch = MettaGridEnvs(1, {})
    assert env_batch.spec == describe({})
    assert env_batch.spec.observation.shape == (200, 3)
    assert (env_batch.spec.num_agents, env_batch.spec.max_steps, env_batch.spec.action.sizes) == (3, 1_000, (5,))
    env_batch.close()


def test_core_matches_mettagrids_own_simulation():
    from mettagrid.simulator import Simulator

    env_batch = MettaGridEnvs(2, {"max_steps": 40})
    env_batch.reset(np.array([5, 6], np.uint64))
    stream = np.array([6], np.uint64)
    map_seed, core_seed = (int(draw(stream)[0] >> np.uint64(33)) for _ in range(2))
    config = forage_config(Forage(max_steps=40))
    config.game.map_builder.seed = map_seed
    plain = Simulator().new_simulation(config, core_seed)
    core, random = plain._c_sim, np.random.default_rng(0)
    returns = np.zeros(3)
    for step in range(40):
        np.testing.assert_array_equal(env_batch.buffers.observation[1], core.observations())
        env_batch.buffers.action[:] = random.integers(0, 5, (2, 3))
        core.actions()[:] = env_batch.buffers.action[1]
        plain.step()
        env_batch.step(0, 2)
        np.testing.assert_array_equal(env_batch.buffers.reward[1], core.rewards())
        returns += env_batch.buffers.reward[1]
        assert env_batch.buffers.truncated.all() == (step == 39)
    # Where MettaGrid calls the limit the end, it is a truncation here, with the true final observation.
    assert core.terminals().all()
    assert not env_batch.buffers.terminated.any()
    np.testing.assert_array_equal(env_batch.buffers.final_observation[1], core.observations())
    assert (env_batch.buffers.observation[1] != env_batch.buffers.final_observation[1]).any()
    episode = next(e for e in env_batch.episodes() if e.env == 1)
    np.testing.assert_allclose(episode.returns, returns, rtol=1e-5, atol=1e-6)
    assert episode.length == 40
    assert episode.info["cell.unique_visited"] > 1.0
    env_batch.close()


def test_play_repeats_in_slices_and_at_any_index():
    seeds = spawn_seeds(1, 3)
    whole, parts = (play(MettaGridEnvs(3, {"max_steps": 25}), seeds, 60, cut=cut) for cut in (None, 1))
    assert parts.differs_from(whole) is None
    alone = play(MettaGridEnvs(1, {"max_steps": 25}), seeds[2:], 60)
    assert alone.differs_from(whole.env(2)) is None
    assert len(whole.episodes) == 6
    first_map, second_map = whole.observation[0, 0], whole.observation[25, 0]
    assert (first_map != second_map).any()


def test_random_play_is_rewarded():
    one = play(MettaGridEnvs(4, {}), spawn_seeds(0, 4), 200)
    assert one.reward.max() > 0


def test_custom_config_loads_from_yaml_and_by_dotted_path(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(make_small().model_dump(mode="json"), sort_keys=False))
    dotted = f"{__name__}:make_small"
    played = []
    for options in ({"config": str(path)}, {"config": dotted}, {"config": dotted, "kwargs": {"agents": 2}}):
        spec = describe(options)
        assert (spec.num_agents, spec.observation.shape, spec.max_steps) == (2, (50, 3), 30)
        played.append(play(MettaGridEnvs(2, options), spawn_seeds(3, 2), 40))
    assert played[0].differs_from(played[1]) is None
    assert played[0].truncated.any()


def test_vibes_are_a_second_choice():
    env_batch = MettaGridEnvs(1, {"vibes": True})
    assert env_batch.spec.action.kind == "multidiscrete"
    assert env_batch.spec.action.sizes[0] == 5
    env_batch.reset(np.array([1], np.uint64))
    before = env_batch.buffers.observation.copy()
    env_batch.buffers.action[0, :, 1] = [7, 0, 0]
    env_batch.step(0, 1)
    kept = MettaGridEnvs(1, {"vibes": True})
    kept.reset(np.array([1], np.uint64))
    np.testing.assert_array_equal(kept.buffers.observation, before)
    kept.step(0, 1)
    assert (kept.buffers.observation[0, 0] != env_batch.buffers.observation[0, 0]).any()  # the agent sees its vibe


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": "nowhere.yaml"}, "'nowhere.yaml' is not a file"),
        ({"config": "nowhere"}, "must be a YAML or JSON file, or a function"),
        ({"config": f"{__name__}:make_small", "num_agents": 64}, "num_agents=64, but the config .* has 2; set env.num"),
        ({"config": "builtins:dict", "kwargs": {"a": 1}}, "builtins:dict returned a dict, not a MettaGridConfig"),
        ({"obs_size": 4}, "obs_size=4 must be odd"),
        ({"kwargs": {"a": 1}}, "kwargs are for a config that is a function"),
    ],
)
def test_invalid_options_are_refused_with_a_reason(options, message):
    with pytest.raises(EnvError, match=message):
        MettaGridEnvs(1, options)


def test_file_that_is_not_a_config_is_refused(tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("game: {num_agents: 0}")
    with pytest.raises(EnvError, match=r"(?s)is not a MettaGridConfig: .*num_agents"):
        MettaGridEnvs(1, {"config": str(path)})


def test_invalid_action_is_refused():
    env_batch = MettaGridEnvs(2, {})
    env_batch.reset(spawn_seeds(0, 2))
    env_batch.buffers.action[1, 2] = 5
    with pytest.raises(EnvError, match=r"env 1 was given the actions \[0, 0, 5\].*below \[5\]"):
        env_batch.step(0, 2)

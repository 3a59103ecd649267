from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest

from millpond.envs.env_batch import Buffers, EnvError, spawn_seeds
from millpond.envs.families import BOX2D_ENVS, MUJOCO_ENVS, extra_of
from millpond.envs.registry import describe, known_ids, list_envs, make_env_batch, prepare
from tests.support import custom_envs

NEEDS_METTAGRID = pytest.mark.skipif(
    find_spec("mettagrid") is None, reason="MettaGrid has wheels for Python 3.11 and 3.12 only"
)
LIGHT = ["grid", "recall", "truncation", "mettagrid", "atari:gravitar", "minatar:breakout"]
OWN = custom_envs.__name__


@pytest.mark.parametrize(
    "env_id",
    [
        *(env_id for env_id in LIGHT if env_id != "mettagrid"),
        pytest.param("mettagrid", marks=NEEDS_METTAGRID),
        "gymnasium:CartPole-v1",
    ],
)
def test_env_batch_matches_describe_and_writes_into_the_given_buffers(env_id):
    spec = describe(env_id, {})
    buffers = Buffers.allocate(spec, 2)
    env_batch = make_env_batch(env_id, 2, {}, buffers)
    assert env_batch.spec == spec
    assert env_batch.spec.id == env_id
    assert env_batch.buffers is buffers
    env_batch.reset(spawn_seeds(0, 2))
    assert buffers.alive.all()
    assert buffers.observation.any()
    env_batch.step(0, 2)
    env_batch.close()


def test_buffers_may_be_slices_of_larger_ones():
    spec = describe("grid", {})
    large = Buffers.allocate(spec, 6)
    env_batch = make_env_batch("grid", 2, {}, large.envs(2, 4))
    env_batch.reset(spawn_seeds(0, 2))
    env_batch.step(0, 2)
    assert large.observation[2:4].any()
    assert not large.observation[:2].any()
    assert not large.observation[4:].any()


def test_describing_imports_nothing_heavy():
    code = (
        "import sys; from millpond.envs.registry import describe, known_ids; known_ids()\n"
        f"for env_id in {LIGHT}: describe(env_id, {{}})\n"
        "print([name for name in ('numba', 'torch', 'mettagrid', 'ale_py', 'minatar', 'gymnasium', 'matplotlib') "
        "if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "env_ids",
    [
        [*(env_id for env_id in LIGHT if env_id != "mettagrid"), "gymnasium:CartPole-v1"],
        pytest.param(["mettagrid"], marks=NEEDS_METTAGRID),
    ],
)
def test_making_envs_never_imports_torch(env_ids):
    code = (
        "import sys; from millpond.envs.registry import make_env_batch\n"
        f"for env_id in {env_ids}: make_env_batch(env_id, 1, {{}}).close()\n"
        "print([name for name in ('torch', 'pandas', 'seaborn') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("gird", "there is no env 'gird'; did you mean 'grid'"),
        ("ataris", "did you mean 'atari:NAME'"),
        ("zzz", "there is no env 'zzz'. Ids are grid, recall"),
        ("nowhere.at_all:make", "there is no module 'nowhere'"),
        ("gymnasium:", "did you mean 'gymnasium:NAME'"),
        ("json:nothing", "module json has no 'nothing'"),
    ],
)
def test_an_unknown_id_gets_a_hint(env_id, message):
    with pytest.raises(EnvError, match=message):
        make_env_batch(env_id, 1, {})


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("mettagrid", "mettagrid", "metta"),
        ("atari:gravitar", "ale_py", "atari"),
        ("minatar:breakout", "minatar", "minatar"),
        ("pettingzoo:butterfly.pistonball_v6", "pettingzoo", "pettingzoo"),
        ("gymnasium:HalfCheetah-v5", "mujoco", "mujoco"),
        ("gymnasium:LunarLander-v3", "Box2D", "box2d"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(env_id, module, extra, monkeypatch):
    from millpond.envs.adapters.minatar import load_game
    from millpond.envs.registry import install_command_for

    load_game.cache_clear()
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # what Python does for a module that must not be found
    with pytest.raises(EnvError, match=rf"needs the extra '{extra}'.*pip install 'millpond\[{extra}\]'"):
        make_env_batch(env_id, 1, {})
    assert install_command_for(env_id).endswith(f"pip install 'millpond[{extra}]'")


def test_only_mujoco_and_box2d_envs_of_gymnasium_need_an_extra():
    assert extra_of("gymnasium:HalfCheetah-v5") == ("mujoco", "mujoco")
    assert extra_of("gymnasium:LunarLander-v3") == ("box2d", "Box2D")
    for package, listed in (("mujoco", MUJOCO_ENVS), ("box2d", BOX2D_ENVS)):
        by_entry_point = {
            name
            for name, spec in gymnasium.registry.items()
            if str(spec.entry_point).startswith(f"gymnasium.envs.{package}.")
        }
        assert by_entry_point == listed
    for env_id in ("gymnasium:CartPole-v1", "gymnasium:Pendulum-v1", "gymnasium:NoSuch-v0", "gymnasium:os:Env-v0"):
        assert extra_of(env_id) is None


def test_rewards_are_scaled_and_clipped_only_if_requested_and_returns_are_unchanged():
    def played(options):
        env_batch = make_env_batch("truncation", 2, options)
        env_batch.reset(np.zeros(2, np.uint64))
        for _ in range(8):
            env_batch.step(0, 1)
        return env_batch.buffers.reward[:, 0].tolist(), env_batch.episodes()[0].returns

    assert played({}) == ([1.0, 0.0], (8.0,))
    assert played({"reward_scale": 0.5}) == ([0.5, 0.0], (8.0,))
    assert played({"reward_clip": 0.25, "reward_scale": 2.0}) == ([0.5, 0.0], (8.0,))
    with pytest.raises(EnvError, match=r"reward_clip=0\.0 must be above 0"):
        make_env_batch("truncation", 1, {"reward_clip": 0.0})
    with pytest.raises(EnvError, match=r"reward_scale=0\.0 must be finite and not 0"):
        describe("truncation", {"reward_scale": 0})


def test_reward_wrapper_changes_nothing_but_rewards():
    env_batch = make_env_batch("grid", 2, {"reward_scale": 3.0})
    env_batch.reset(spawn_seeds(0, 2))
    saved = env_batch.save_state()
    env_batch.step(0, 2)
    env_batch.load_state(saved)
    assert env_batch.render_rgb(0).ndim == 3
    assert make_env_batch("grid", 2, {}).spec == env_batch.spec


def test_specs_can_be_sent_to_a_worker_and_ids_are_known():
    for env_id in LIGHT:
        spec = describe(env_id, {})
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert env_id in known_ids()
    prepare("grid", {})
    with pytest.raises(EnvError, match="num_envs=0 must be at least 1"):
        make_env_batch("grid", 0, {})


def test_seeds_must_be_one_per_env():
    env_batch = make_env_batch("recall", 3, {})
    with pytest.raises(ValueError, match="3 non-negative integers"):
        env_batch.reset(np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match="non-negative"):
        env_batch.reset(np.array([-1, 0, 1]))


def test_every_known_id_is_listed_with_its_spaces():
    rows = {row.id: row for row in list_envs(games=True)}
    assert set(rows) == set(known_ids())
    assert rows["grid"].observation == "cells 11x11 uint8 + inventory 3 uint8"
    assert (rows["grid"].action, rows["grid"].agents, rows["grid"].savable) == ("5 choices", "3", "yes")
    assert rows["atari:gravitar"].action == "18 choices"


def test_the_short_list_shows_one_game_of_each_family():
    assert [row.id for row in list_envs()] == [
        "grid",
        "recall",
        "truncation",
        "mettagrid",
        "minatar:breakout",
        "atari:gravitar",
        "gymnasium:ID",
        "pettingzoo:MODULE",
        "package.module:make_env",
    ]


def test_function_with_num_envs_makes_a_whole_batch_in_the_given_buffers():
    path = f"{OWN}:make_constant_env"
    spec = describe(path, {"kwargs": {"length": 3}})
    assert spec.max_steps == 3
    buffers = Buffers.allocate(spec, 4)
    env_batch = make_env_batch(path, 4, {"kwargs": {"length": 3}}, buffers)
    env_batch.reset(np.array([1, 2, 3, 100], np.uint64))
    assert buffers.observation[:, 0, 0].tolist() == [1.0, 2.0, 3.0, 3.0]
    assert env_batch.buffers is buffers


def test_max_steps_limits_a_custom_env():
    env_batch = make_env_batch(f"{OWN}:Counter", 2, {"kwargs": {"length": 50}, "max_steps": 6})
    assert env_batch.spec.max_steps == 6
    env_batch.reset(np.array([1, 2], np.uint64))
    for _ in range(6):
        env_batch.step(0, 2)
    assert env_batch.buffers.truncated.all()
    assert not env_batch.buffers.terminated.any()
    env_batch.close()


def test_turn_based_pettingzoo_env_is_refused_with_a_fix(monkeypatch):
    class ByTurns:
        def agent_iter(self):
            return iter(())

    monkeypatch.setattr(custom_envs, "by_turns", ByTurns, raising=False)
    with pytest.raises(EnvError, match="aec_to_parallel"):
        make_env_batch(f"{OWN}:by_turns", 1, {})


def test_objects_that_are_not_envs_are_refused(monkeypatch):
    monkeypatch.setattr(custom_envs, "half", lambda num_envs, buffers: object(), raising=False)
    with pytest.raises(EnvError, match="must make an EnvBatch, but its result has no 'spec'"):
        make_env_batch(f"{OWN}:half", 1, {})
    stubborn = lambda num_envs, buffers: custom_envs.Constant(num_envs, None, 3)  # noqa: E731
    monkeypatch.setattr(custom_envs, "stubborn", stubborn, raising=False)
    buffers = Buffers.allocate(describe(f"{OWN}:stubborn", {}), 1)
    with pytest.raises(EnvError, match="must write into the buffers it is given"):
        make_env_batch(f"{OWN}:stubborn", 1, {}, buffers)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"shown": "int64", "size": 3}, "got an unexpected keyword argument 'size'"),
        ({}, "missing a required argument: 'shown'"),
    ],
)
def test_unknown_and_missing_arguments_are_named(kwargs, says):
    with pytest.raises(EnvError, match=rf"takes \(shown: .*{says}; its arguments are env.options.NAME=VALUE"):
        make_env_batch(f"{OWN}:make_strange", 1, {"kwargs": kwargs})

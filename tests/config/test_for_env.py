"""Recipes of env ids, and settings that follow from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from millpond.config import ConfigError, load
from millpond.config.check import flatten
from millpond.config.env_options import env_spec as described
from millpond.config.load import code_of
from millpond.errors import MillpondError
from tests.support.env_specs import CONTINUOUS, IMAGE, SMALL_IMAGE, env_spec

CUSTOM = "nowhere:make_env"  # never imported: the tests say what it is


def written_file(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def chosen(loaded: Any) -> dict[str, Any]:
    return {one.key: one.value for one in loaded.chosen}


@pytest.mark.parametrize(
    ("env_id", "recipe"),
    [
        ("gymnasium:CartPole-v1", "gym"),
        ("gymnasium:LunarLander-v3", "gym"),
        ("gymnasium:ALE/Pong-v5", "gym"),
        ("gymnasium:HalfCheetah-v5", "mujoco"),
        ("atari:pong", "atari"),
        ("minatar:asterix", "minatar"),
        ("pettingzoo:butterfly.pistonball_v6", "multiagent"),
        (CUSTOM, "gym"),
        ("recall", "gym"),
        ("truncation", "gym"),
    ],
)
def test_an_env_id_is_the_recipe_of_its_family_with_that_id(env_id: str, recipe: str) -> None:
    loaded = load(env_id)
    assert loaded.name == env_id
    assert chosen(loaded)["recipe"] == recipe
    by_name, by_id = flatten(load(recipe, [f"env.id={env_id}"]).recipe), flatten(loaded.recipe)
    different = {key for key in by_id if by_id[key] != by_name[key]}
    assert different == ({"policy.core", "trainer.bptt_horizon"} if env_id == "recall" else set())
    assert by_id["env.id"] == env_id
    assert loaded.notes == ()


def test_a_custom_env_of_several_agents_takes_the_recipe_multiagent_when_it_is_asked() -> None:
    loaded = load(CUSTOM, ask_env=lambda env: env_spec(5))
    assert chosen(loaded)["recipe"] == "multiagent"
    assert loaded.recipe.policy.core == "lstm"
    assert loaded.recipe.env.num_agents == 5


def test_actions_and_images_decide_settings_of_gym() -> None:
    plain = flatten(load(CUSTOM, ask_env=lambda env: env_spec()).recipe)
    assert (plain["env.clip_actions"], plain["ppo.ent_coef"], plain["policy.hidden_size"]) == (False, 0.01, 64)
    continuous = flatten(load(CUSTOM, ask_env=lambda env: env_spec(action=CONTINUOUS)).recipe)
    assert (continuous["env.clip_actions"], continuous["ppo.ent_coef"]) == (True, 0.0)
    image = flatten(load(CUSTOM, ask_env=lambda env: env_spec(observation=IMAGE)).recipe)
    assert (image["policy.hidden_size"], image["trainer.num_envs"]) == (512, 8)
    small = flatten(load(CUSTOM, ask_env=lambda env: env_spec(observation=SMALL_IMAGE)).recipe)
    assert (small["policy.hidden_size"], small["trainer.num_envs"]) == (128, 64)


def test_a_policy_with_memory_takes_longer_rows_unless_they_are_set(tmp_path: Path) -> None:
    assert flatten(load("gym").recipe)["trainer.bptt_horizon"] == 8
    loaded = load("gym", ["policy.core=gru"])
    assert flatten(loaded.recipe)["trainer.bptt_horizon"] == chosen(loaded)["trainer.bptt_horizon"] == 64
    assert flatten(load("gym", ["policy.core=gru", "trainer.bptt_horizon=16"]).recipe)["trainer.bptt_horizon"] == 16
    path = written_file(tmp_path, {"extends": "gym", "policy": {"core": "lstm"}, "trainer": {"bptt_horizon": 32}})
    extended = load(path)
    assert flatten(extended.recipe)["trainer.bptt_horizon"] == 32
    assert "trainer.bptt_horizon" not in chosen(extended)
    assert flatten(load(loaded.values).recipe) == flatten(loaded.recipe)  # as a run stores it


@pytest.mark.parametrize("recipe", ["grid", "gym", "mujoco", "minatar", "atari", "multiagent"])
def test_a_custom_policy_needs_no_other_setting(recipe: str) -> None:
    loaded = load(recipe, ["policy.target=nowhere:make_policy"])
    assert not loaded.recipe.ppo.normalize_values  # type: ignore[attr-defined]
    if load(recipe).recipe.ppo.normalize_values:  # type: ignore[attr-defined]
        (line,) = [one for one in loaded.chosen if one.key == "ppo.normalize_values"]
        assert line.reason == "the policy is custom: nowhere:make_policy"


def test_normalised_values_may_be_asked_for_with_a_custom_policy_whose_features_have_a_built_in_value() -> None:
    loaded = load("gym", ["policy.target=nowhere:make_policy", "ppo.normalize_values=true"])
    assert loaded.recipe.ppo.normalize_values  # type: ignore[attr-defined]


def test_a_plan_knows_what_gymnasium_says_and_leaves_the_rest_open() -> None:
    pendulum = load("gymnasium:Pendulum-v1", known_spec=described)
    assert chosen(pendulum)["env.clip_actions"] is True
    assert pendulum.open_choices == ()
    unknown = load(CUSTOM, known_spec=described)
    assert "env.clip_actions" not in chosen(unknown)
    assert "env.clip_actions" in {one.key for one in unknown.open_choices}
    assert not unknown.recipe.env.clip_actions


def test_what_the_user_sets_is_not_replaced(tmp_path: Path) -> None:
    pixels = lambda env: env_spec(observation=IMAGE)  # noqa: E731
    overridden = load(CUSTOM, ["policy.hidden_size=32"], ask_env=pixels)
    assert overridden.recipe.policy.hidden_size == 32
    assert "policy.hidden_size" not in chosen(overridden)
    nested = load(CUSTOM, {"policy": {"hidden_size": 32}}, ask_env=pixels)  # as from Python
    assert nested.recipe.policy.hidden_size == 32
    assert "policy.hidden_size" not in chosen(nested)
    still_open = load(CUSTOM, ["policy.hidden_size=32"]).open_choices
    assert "policy.hidden_size" not in {one.key for one in still_open} != set()
    path = written_file(tmp_path, {"extends": "gym", "env": {"id": CUSTOM}, "policy": {"hidden_size": 16}})
    extended = load(path, ask_env=pixels)
    assert extended.recipe.policy.hidden_size == 16
    assert chosen(extended)["trainer.num_envs"] == 8


@pytest.mark.parametrize("agents", [1, 2, 3, 5, 7, 20, 127, 300])
def test_envs_and_minibatches_follow_from_the_number_of_agents(agents: int) -> None:
    flat = flatten(load("pettingzoo:nowhere", ask_env=lambda env: env_spec(agents)).recipe)
    envs, minibatch = flat["trainer.num_envs"], flat["trainer.minibatch_size"]
    assert envs % 4 == 0
    assert envs == 4 or abs(envs * agents - 128) <= 2 * agents  # half of a multiple of 4
    assert 4 * minibatch == envs * agents * flat["trainer.bptt_horizon"]


def test_a_number_of_envs_that_is_set_decides_the_minibatch() -> None:
    flat = flatten(load("pettingzoo:nowhere", ["trainer.num_envs=10"], ask_env=lambda env: env_spec(3)).recipe)
    assert flat["trainer.num_envs"] == 10
    assert flat["trainer.batch_size"] == "auto"
    assert (10 * 3 * 64) % flat["trainer.minibatch_size"] == 0


def test_sizes_do_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ("gymnasium:CartPole-v1", "minatar:breakout", "atari:pong", "multiagent", "mujoco")
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    one_core = [load(env_id).recipe for env_id in ids]
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert [load(env_id).recipe for env_id in ids] == one_core


def test_a_config_without_a_number_of_envs_takes_the_recipe_of_its_environment(tmp_path: Path) -> None:
    path = written_file(tmp_path, {"kind": "ppo", "env": {"id": "gymnasium:CartPole-v1"}, "ppo": {"gamma": 0.9}})
    loaded = load(path)
    assert chosen(loaded)["recipe"] == "gym"
    expected = flatten(load("gym").recipe) | {"ppo.gamma": 0.9}
    assert flatten(loaded.recipe) == expected
    assert load(path, ["trainer.num_envs=32"]).recipe.trainer.num_envs == 32  # type: ignore[attr-defined]


def test_a_config_with_a_number_of_envs_keeps_the_defaults_of_its_kind(tmp_path: Path) -> None:
    trainer = {"num_envs": 16, "bptt_horizon": 64, "minibatch_size": 1_024}
    path = written_file(tmp_path, {"kind": "ppo", "env": {"id": "gymnasium:CartPole-v1"}, "trainer": trainer})
    loaded = load(path)
    assert loaded.chosen == ()
    assert loaded.recipe.policy.core == "lstm"


def test_an_id_in_a_file_is_named_by_that_file_and_one_of_the_user_is_not(tmp_path: Path) -> None:
    """Otherwise `extends: ID` would import code of a stranger unasked."""
    path = written_file(tmp_path, {"extends": CUSTOM})
    assert [one.source for one in code_of(path)] == [path]
    minimal = written_file(tmp_path, {"kind": "ppo", "env": {"id": CUSTOM}})
    assert [one.source for one in code_of(minimal)] == [minimal]
    assert [one.source for one in code_of(CUSTOM)] == [None]


def test_mistyped_keys_are_refused_even_if_the_environment_does_not_need_them(tmp_path: Path) -> None:
    path = written_file(tmp_path, {"extends": "gym", "for_env": {"image": {"policy.hiden_size": 9}}})
    with pytest.raises(ConfigError, match=r"for_env\.image sets policy\.hiden_size.*did you mean policy\.hidden_size"):
        load(path)
    wrong = written_file(tmp_path, {"extends": "gym", "for_env": {"images": {}}})
    with pytest.raises(ConfigError, match=r"for_env\.images is not a known key"):
        load(wrong)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("grd", "did you mean grid?"),
        ("cartpole", "gymnasium:CartPole-v1"),
        ("CartPole-v1", "gymnasium:CartPole-v1"),
        ("breakout", "atari:breakout or minatar:breakout"),
        ("gymnasum:CartPole-v1", "gymnasium:CartPole-v1"),
        ("qqqqqq", "recipes are"),
    ],
)
def test_an_unknown_name_lists_near_recipes_and_ids(name: str, near: str) -> None:
    with pytest.raises(MillpondError) as error:
        load(name, known_spec=described)
    assert near in str(error.value)

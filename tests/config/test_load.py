"""Recipes, `extends`, presets and overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.config import ConfigError, PPORecipe, load, recipe_names
from millpond.config.check import flatten
from millpond.errors import MillpondError
from tests.support.env_specs import env_spec

PACKAGED_RECIPES = {
    *("grid", "metta", "metta-2026", "mettagrid", "puffer-metta"),
    *(
        "mixture",
        "mixture-minatar",
        "mixture-gravitar",
        "mixture-gravitar-best",
        "mixture-seed",
        "mixture-best",
        "mixture-recall",
    ),
    *("reward", "reward-libero", "reward-online"),
    *("gym", "mujoco", "atari", "minatar", "multiagent"),
}


def test_all_recipes_are_packaged() -> None:
    assert set(recipe_names()) == PACKAGED_RECIPES


@pytest.mark.parametrize("name", sorted(PACKAGED_RECIPES))
def test_every_recipe_and_its_presets_are_valid(name: str) -> None:
    recipe = load(name).recipe
    assert recipe.description
    for preset in ("debug", *recipe.presets):
        load(name, preset=preset)


def test_metta_has_the_keys_and_values_of_the_original() -> None:
    recipe = load("metta").recipe
    assert isinstance(recipe, PPORecipe)
    flat = flatten(recipe)
    original = {
        "trainer.num_workers": 16,
        "trainer.batch_size": 524_288,
        "trainer.forward_pass_minibatch_target_size": 4_096,
        "trainer.async_factor": 2,
        "trainer.minibatch_size": 16_384,
        "trainer.bptt_horizon": 64,
        "trainer.update_epochs": 1,
        "trainer.batch_unit": "env_steps",
        "env.num_agents": 3,
        "env.obs_size": 11,
        "env.max_steps": 1_000,
        "ppo.gamma": 0.977,
        "ppo.gae_lambda": 0.916,
        "ppo.clip_coef": 0.1,
        "ppo.vf_clip_coef": 0.1,
        "ppo.vf_coef": 0.44,
        "ppo.ent_coef": 0.0021,
        "ppo.learning_rate": 4.57e-4,
        "ppo.max_grad_norm": 0.5,
    }
    assert {key: flat[key] for key in original} == original
    assert flat["trainer.compile"] in (True, False)


def test_every_recipe_has_the_common_keys() -> None:
    shared = {"seed", "device", "run_dir", "trainer.total_iterations", "trainer.max_seconds", "checkpoint.interval",
              "eval.interval", "log.tensorboard", "log.wandb"}  # fmt: skip
    for name in recipe_names():
        assert shared <= set(flatten(load(name).recipe))


def test_overrides_set_keys() -> None:
    recipe = load(
        "metta", ["trainer.batch_size=262_144", "trainer.total_timesteps=1e9", "ppo.target_kl=0.02", "log.wandb=false"]
    ).recipe
    assert isinstance(recipe, PPORecipe)
    assert recipe.trainer.batch_size == 262_144
    assert recipe.trainer.total_timesteps == 10**9
    assert recipe.ppo.target_kl == 0.02
    assert recipe.log.wandb == "off"


@pytest.mark.parametrize("text", ["trainer.batch_size", "=5", ".a=1", "a..b=2", "trainer.=1"])
def test_other_text_is_not_an_override(text: str) -> None:
    with pytest.raises(MillpondError, match="is not an override"):
        load("metta", [text])


def test_a_recipe_is_frozen() -> None:
    recipe = load("grid").recipe
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3  # type: ignore[misc]


def test_extends_merges_sections_and_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "below.yaml").write_text("extends: metta\ntrainer: {update_epochs: 3}\n")
    (tmp_path / "above.yaml").write_text("extends: below.yaml\ntrainer: {bptt_horizon: 32}\n")
    recipe = load(tmp_path / "above.yaml").recipe
    assert isinstance(recipe, PPORecipe)
    assert (recipe.trainer.update_epochs, recipe.trainer.bptt_horizon, recipe.trainer.num_workers) == (3, 32, 16)


def test_a_cycle_of_extends_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(MillpondError, match="cannot extend itself"):
        load(tmp_path / "a.yaml")


def test_presets_set_keys_and_overrides_win() -> None:
    flat = flatten(load("reward", ["reward.cycles=7"], preset="full").recipe)
    levels = [flat[f"reward.{name}"] for name in ("epochs", "cycles", "iterations", "train_batches")]
    assert levels == [10, 7, 100, 50]  # an override wins over the preset
    debug = flatten(load("reward", preset="debug").recipe)
    assert [debug[f"reward.{name}"] for name in ("epochs", "cycles", "iterations", "train_batches")] == [1, 1, 1, 1]
    with pytest.raises(MillpondError, match="no preset 'quick'; it has fast, full, debug"):
        load("reward", preset="quick")


def test_a_mistyped_name_gets_a_suggestion() -> None:
    with pytest.raises(MillpondError, match=r"did you mean puffer-metta\?"):
        load("pufer-metta")
    with pytest.raises(ConfigError, match=r"trainer.batchsize is not a known key; did you mean trainer.batch_size\?"):
        load("metta", ["trainer.batchsize=3"])
    with pytest.raises(ConfigError, match=r"batch_size is not a known key; did you mean trainer.batch_size\?"):
        load("metta", ["batch_size=3"])
    with pytest.raises(ConfigError, match="mixture is a key of kind mixture; this recipe is of kind ppo"):
        load("metta", ["mixture.agents=4"])


OWN = "nowhere:make_env"  # never imported: only `ask_env` may


def test_agents_and_step_limit_of_a_recipe_are_dropped_with_another_env() -> None:
    loaded = load("grid", [f"env.id={OWN}"])
    assert loaded.agents_open
    assert "num_agents" not in loaded.recipe.env.model_fields_set
    assert loaded.recipe.env.max_steps is None
    dropped = "env.num_agents=3 env.max_steps=256 policy.normalize_observations=true"
    assert loaded.notes == (f"dropped, since it was set for env.id=grid: {dropped}",)
    assert load("grid", ["env.id=gymnasium:CartPole-v1"]).recipe.env.num_agents == 1


def test_agents_and_step_limit_set_together_with_the_env_are_used() -> None:
    together = ["env.num_agents=4", "env.max_steps=9", "policy.normalize_observations=true"]
    loaded = load("grid", [f"env.id={OWN}", *together])
    assert (loaded.recipe.env.num_agents, loaded.recipe.env.max_steps) == (4, 9)
    assert not loaded.agents_open
    assert loaded.notes == ()
    sized = load("grid", ["env.id=mettagrid"])  # the config sets the number of agents of both
    assert (sized.recipe.env.num_agents, sized.recipe.env.max_steps) == (3, 256)


def test_normalised_observations_of_grid_are_dropped_with_an_env_that_may_show_no_numbers(tmp_path: Path) -> None:
    assert load("grid").recipe.policy.normalize_observations
    loaded = load("grid", ["env.id=mettagrid"])
    assert not loaded.recipe.policy.normalize_observations
    assert loaded.notes == ("dropped, since it was set for env.id=grid: policy.normalize_observations=true",)
    assert not load("grid", [f"env.id={OWN}"]).recipe.policy.normalize_observations  # it may show no numbers
    assert load("mujoco", ["env.id=gymnasium:Hopper-v5"]).recipe.policy.normalize_observations
    asked = load("grid", ["env.id=mettagrid", "policy.normalize_observations=true"])
    assert asked.recipe.policy.normalize_observations
    assert asked.notes == ()
    (tmp_path / "mine.yaml").write_text("extends: grid\nenv: {id: 'atari:pong'}\n")
    values = load(tmp_path / "mine.yaml").recipe
    assert (values.policy.normalize_observations, values.policy.hidden_size, values.env.num_agents) == (False, 128, 1)


def test_a_file_that_extends_a_recipe_with_another_env_drops_its_agents(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: grid\nenv: {{id: '{OWN}', max_steps: 5}}\n")
    loaded = load(tmp_path / "mine.yaml")
    assert loaded.agents_open
    assert loaded.recipe.env.max_steps == 5
    dropped = "env.num_agents=3 policy.normalize_observations=true"
    assert loaded.notes == (f"dropped, since it was set for env.id=grid: {dropped}",)


def test_a_family_shares_the_step_limit_but_not_the_number_of_agents(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: grid\nenv: {id: 'a:make', num_agents: 2, max_steps: 5}\n")
    env = load(tmp_path / "mine.yaml", ["env.id=b:make"]).recipe.env
    assert env.max_steps == 5
    assert "num_agents" not in env.model_fields_set


def test_the_env_fills_in_its_number_of_agents() -> None:
    asked = []
    loaded = load("grid", [f"env.id={OWN}"], ask_env=lambda env: asked.append(env.id) or env_spec(5))
    assert asked == [OWN]
    assert loaded.recipe.env.num_agents == 5
    assert not loaded.agents_open
    load("grid", ask_env=lambda env: pytest.fail("the config says how many agents grid has"))


def test_a_wrong_number_of_agents_is_refused_with_the_fix() -> None:
    rule = rf"env.num_agents=3, but an env of env.id={OWN} has 1 agent; try env.num_agents=1$"
    with pytest.raises(ConfigError, match=rule):
        load("grid", [f"env.id={OWN}", "env.num_agents=3"], ask_env=lambda env: env_spec(1))
    load("grid", [f"env.id={OWN}", "env.num_agents=1"], ask_env=lambda env: env_spec(1))


def test_an_env_with_several_agents_is_refused_by_kinds_that_train_one() -> None:
    with pytest.raises(MillpondError, match=r"has 2 agents, and recipes of kind mixture train one per env"):
        load("mixture", [f"env.id={OWN}"], ask_env=lambda env: env_spec(2))


def test_sizes_are_checked_after_the_env_was_asked_for_its_agents() -> None:
    sizes = ["trainer.batch_unit=agent_steps", "trainer.batch_size=auto", "trainer.minibatch_size=49152"]
    with pytest.raises(MillpondError, match=f"known only to {OWN} itself"):
        load("grid", [f"env.id={OWN}", *sizes])
    assert load("grid", [f"env.id={OWN}", *sizes], ask_env=lambda env: env_spec(3)).recipe.env.num_agents == 3

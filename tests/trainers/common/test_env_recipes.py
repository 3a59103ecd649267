"""Runs that are started with an env id: what they store, and that their plan was true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import millpond
from millpond.config import load
from millpond.config.check import flatten
from millpond.trainers.common.session import run_stem

SMALL = {"trainer.total_iterations": 1, "eval.episodes": 1, "log.tensorboard": False, "vector.backend": "inline"}


@pytest.mark.parametrize("env_id", ["gymnasium:Pendulum-v1", "minatar:breakout", "recall"])
def test_a_run_does_what_the_plan_of_its_env_id_says_and_stores_it_all(env_id: str, tmp_path: Path) -> None:
    settings = {**SMALL, "run_dir": str(tmp_path)}
    planned = millpond.plan(env_id, settings)
    run = millpond.train(env_id, overrides=settings)
    assert run.folder == tmp_path / f"{env_id.replace(':', '-')}-1"
    stored = load(run.config_path)
    assert stored.chosen == stored.open_choices == ()  # nothing is chosen again when it is resumed
    assert flatten(stored.recipe) == flatten(planned.loaded.recipe)
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["updates"] == planned.plan.updates_in_run
    assert last["env_steps"] == planned.plan.env_steps_in_run


def test_a_custom_function_that_returns_several_agents_is_trained_with_multiagent(tmp_path: Path) -> None:
    run = millpond.train("tests.support.custom_envs:Leaving", overrides={**SMALL, "run_dir": str(tmp_path)}, run="pair")
    plan = json.loads((run.folder / "plan.json").read_text())
    assert [one["value"] for one in plan["chosen"] if one["key"] == "recipe"] == ["multiagent"]
    assert plan["total_agents"] == plan["num_envs"] * plan["num_agents"]
    stored = load(run.config_path).recipe
    assert stored.policy.core == "lstm"
    assert stored.env.num_agents == plan["num_agents"] > 1


def test_the_default_name_of_a_run_is_made_of_what_names_its_recipe() -> None:
    names = {"grid": "grid", "folder/mine.yaml": "mine", "gymnasium:CartPole-v1": "gymnasium-CartPole-v1"}
    names |= {"pettingzoo:butterfly.pistonball_v6": "pettingzoo-butterfly.pistonball_v6"}
    names |= {"gymnasium:ALE/Pong-v5": "gymnasium-ALE-Pong-v5"}
    assert {name: run_stem(name) for name in names} == names

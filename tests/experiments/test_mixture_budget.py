"""Methods of a mixture experiment get the same frames, rounds and gradient steps."""

from __future__ import annotations

import pytest

from millpond.config import MixtureRecipe, load
from millpond.errors import MillpondError
from millpond.experiments.file import read_experiment
from millpond.planner import MixturePlan, plan

METHODS = ("mixture", "single", "single-resets", "no-resets", "live")
WORLD = "minatar:breakout"


def test_every_method_has_the_same_frames_rounds_and_gradient_steps() -> None:
    experiment = read_experiment("mixture-vs-single", methods=METHODS)
    plans = {}
    for method in METHODS:
        planned = plan("mixture", experiment.run_overrides(WORLD, method, 3)).plan
        assert isinstance(planned, MixturePlan)
        plans[method] = planned
    frames = {method: planned.frames for method, planned in plans.items() if method != "live"}
    assert set(frames.values()) == {1_048_576}
    assert 0.97 < plans["live"].frames / 1_048_576 <= 1.0  # whole collections of five times 4,096
    assert {planned.rounds for planned in plans.values()} <= {8, 7}
    for method in ("single-resets", "no-resets"):
        assert plans[method].big_updates == plans["mixture"].big_updates
        assert plans[method].frames_per_round == plans["mixture"].frames_per_round
    assert plans["single"].transitions_per_collection == plans["mixture"].transitions_per_collection
    recipe = load("mixture", experiment.run_overrides(WORLD, "single", 3)).recipe
    assert isinstance(recipe, MixtureRecipe)
    assert (recipe.seed, recipe.mixture.agents, recipe.mixture.mode) == (3, 1, "single")


def test_frames_rounds_and_replay_ratio_change_the_sizes() -> None:
    one = read_experiment("mixture-vs-single", budget={"frames": 524_288, "rounds": 4, "replay_ratio": 2.0})
    planned = plan("mixture", one.run_overrides(WORLD, "mixture", 1)).plan
    assert isinstance(planned, MixturePlan)
    assert (planned.frames, planned.rounds) == (524_288, 4)
    assert planned.big_updates * planned.big_batch_size == pytest.approx(2 * planned.frames_per_round)


def test_a_budget_of_another_kind_of_recipe_is_refused() -> None:
    with pytest.raises(MillpondError, match="method mixture in minatar:breakout: recipe grid is of kind ppo"):
        read_experiment("mixture-vs-single", recipe="grid").check()

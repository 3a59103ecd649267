"""Search spaces: forms, conditions, and errors that name key, value and rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millpond.config import Loaded, load
from millpond.errors import MillpondError
from millpond.sweep.space import make_space, read_space, shown

optuna = pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def grid() -> Loaded:
    return load("grid")


SPACE = {
    "ppo": {"learning_rate": {"log": [1e-4, 1e-2]}, "ent_coef": {"range": [0.0, 0.02], "step": 0.01}},
    "policy.num_layers": {"int": [1, 3], "if": {"policy.core": "mingru"}},
    "policy.core": ["none", "lstm", "mingru"],
    "policy.hidden_size": {"log_int": [16, 256]},
    "trainer.bptt_horizon": {"choices": [16, 32]},
}


def test_a_point_has_a_value_of_each_key_whose_condition_holds(grid: Loaded) -> None:
    space = make_space(SPACE, grid, "space.yaml")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    points = [space.suggest(study.ask()) for _ in range(60)]
    for point in points:
        assert 1e-4 <= point["ppo.learning_rate"] <= 1e-2
        assert point["ppo.ent_coef"] in (0.0, 0.01, 0.02)
        assert point["trainer.bptt_horizon"] in (16, 32)
        assert isinstance(point["policy.hidden_size"], int)
        assert ("policy.num_layers" in point) == (point["policy.core"] == "mingru")
    assert {point["policy.core"] for point in points} == {"none", "lstm", "mingru"}
    assert sum(point["ppo.learning_rate"] < 1e-3 for point in points) > 15  # half of a logarithmic range


def test_a_space_survives_its_json_form(grid: Loaded) -> None:
    space = make_space(SPACE, grid, "space.yaml")
    assert make_space(space.to_json(), grid, "sweep.json") == space


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ppo.learning_rat", {"log": [1e-4, 1e-2]}, r"did you mean ppo\.learning_rate\?"),
        ("dqn.n_step", [1, 3], r"dqn\.n_step is not a key of kind ppo"),
        ("ppo.gamma", 0.99, r"ppo\.gamma=0\.99 is a single value; write \[a, b, c\]"),
        ("ppo.gamma", {"rnage": [0.9, 1.0]}, r"ppo\.gamma: rnage is unknown; did you mean range\?"),
        ("ppo.gamma", {"range": [0.9, 1.0], "log": [0.9, 1.0]}, r"ppo\.gamma needs exactly one of choices, range"),
        ("ppo.gamma", {"range": [1.0, 0.9]}, r"low must be below high"),
        ("ppo.gamma", {"range": [0.9, 1.5]}, r"ppo\.gamma=1\.5 must be <= 1"),
        ("ppo.ent_coef", {"log": [0.0, 0.1]}, r"a logarithmic range must be above 0; use range"),
        ("policy.hidden_size", {"int": [16, 32.5]}, r"must be whole numbers"),
        ("policy.hidden_size", {"range": [16.5, 32]}, r"policy\.hidden_size=16\.5 must be a whole number"),
        ("policy.core", ["lstm", "lstn"], r"policy\.core=lstn is not one of lstm, gru"),
        ("policy.core", ["lstm", "lstm"], r"has a value twice"),
        ("ppo.gamma", {"log": [0.9, 1.0], "step": 0.1}, r"a logarithmic range has no steps"),
        ("ppo.gamma", {"range": [0.9, 1.0], "step": 0.03}, r"do not reach 1; .*Write \[0\.9, 0\.99\]"),
        ("policy.hidden_size", {"int": [16, 32], "step": 5}, r"the last value would be 31"),
        ("ppo.gamma", {"range": [0.9, 1.0], "step": 0.2}, r"step=0\.2 is larger than the range from 0\.9 to 1"),
        ("seed", [1, 2], r"seed is not searched"),
        ("log.tensorboard", [True, False], r"log\.tensorboard is not searched"),
        (
            "ppo.gamma",
            {"range": [0.9, 1.0], "if": {"policy.core": "lstm"}},
            r"names policy\.core, which is not searched",
        ),
    ],
)
def test_a_wrong_entry_is_refused_with_key_value_and_rule(grid: Loaded, key: str, value: Any, message: str) -> None:
    with pytest.raises(MillpondError, match=message):
        make_space({key: value}, grid, "space.yaml")


def test_an_empty_file_shows_how_a_space_begins(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("# nothing yet\n")
    with pytest.raises(MillpondError, match=r"space\.yaml is empty; .* such as `ppo\.gamma: \[0\.98, 0\.99\]`"):
        read_space(tmp_path / "space.yaml")


def test_all_problems_are_listed_at_once(grid: Loaded) -> None:
    wrong = {"ppo.gama": [0.9, 1.0], "policy.core": ["lstn"], "ppo.gamma": 1}
    with pytest.raises(MillpondError) as error:
        make_space(wrong, grid, "space.yaml")
    assert "space.yaml is not a search space of grid" in str(error.value)
    assert all(text in str(error.value) for text in ("ppo.gamma?", "policy.core=lstn", "ppo.gamma=1 is a single"))


def test_conditions_that_never_hold_or_depend_on_each_other_are_refused(grid: Loaded) -> None:
    never = {"policy.core": ["lstm"], "policy.num_layers": {"int": [1, 3], "if": {"policy.core": "mingru"}}}
    with pytest.raises(MillpondError, match=r"policy\.num_layers: policy\.core never is mingru"):
        make_space(never, grid, "s")
    circle = {
        "ppo.gamma": {"range": [0.9, 1.0], "if": {"ppo.ent_coef": 0.0}},
        "ppo.ent_coef": {"choices": [0.0, 0.1], "if": {"ppo.gamma": 0.9}},
    }
    with pytest.raises(MillpondError, match=r"conditions of ppo\.gamma, ppo\.ent_coef depend on each other"):
        make_space(circle, grid, "s")


def test_points_are_shown_with_readable_numbers() -> None:
    assert shown({"ppo.learning_rate": 0.00123456789, "policy.hidden_size": 1024}) == (
        "ppo.learning_rate=0.001235 policy.hidden_size=1,024"
    )

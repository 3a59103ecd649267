"""`ppo.style` sets a family of keys, under those that are set explicitly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millpond.config import load
from millpond.config.check import flatten
from millpond.config.style import PUFFER_OPTIMIZER, STYLE_KEYS
from millpond.errors import MillpondError

PUFFER = {one.key: one.puffer for one in STYLE_KEYS}
MILLPOND = {one.key: one.millpond for one in STYLE_KEYS}


def loaded(recipe: Any, *overrides: str) -> dict[str, Any]:
    return flatten(load(recipe, overrides).recipe)


def shown(values: dict[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in PUFFER}


def test_a_style_sets_all_of_its_keys_over_those_of_the_recipe() -> None:
    assert shown(loaded("metta")) == MILLPOND  # the defaults are Millpond's
    puffer = loaded("metta", "ppo.style=puffer")
    assert shown(puffer) == PUFFER  # metta sets ppo.sampling=uniform, a layer below
    assert puffer["ppo.optimizer"] == "adam"  # a learning rate belongs to its optimizer: metta sets both


def test_keys_of_the_same_layer_and_above_win(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("extends: metta\nppo: {style: puffer, normalize_advantage: none, prio_alpha: 0.5}\n")
    values = loaded(own, "ppo.row_state=stored")
    assert shown(values) == PUFFER | {
        "ppo.normalize_advantage": "none", "ppo.prio_alpha": 0.5, "ppo.row_state": "stored",
    }  # fmt: skip


def test_one_override_switches_a_file_to_millpond(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "extends: metta\nenv: {reward_clip: 2.0}\nppo: {style: puffer, row_state: stored, prio_beta0: 0.3}\n"
    )
    assert loaded(own)["env.reward_clip"] == 2.0
    assert shown(loaded(own, "ppo.style=millpond")) == MILLPOND


def test_the_optimizer_of_pufferlib_is_used_where_none_is_named() -> None:
    sizes = {"num_envs": 4, "minibatch_size": 64}
    plain: dict[str, Any] = {"kind": "ppo", "trainer": sizes, "ppo": {"style": "puffer"}}
    values = loaded(plain)
    assert {key: values[key] for key in PUFFER_OPTIMIZER} == PUFFER_OPTIMIZER
    named = loaded({**plain, "ppo": {"style": "puffer", "optimizer": "adamw"}})
    assert (named["ppo.optimizer"], named["ppo.learning_rate"]) == ("adamw", 4.57e-4)
    assert loaded({**plain, "ppo": {}})["ppo.optimizer"] == "adam"


def test_a_stored_config_loads_as_it_was() -> None:
    first = load("metta", ["ppo.style=puffer", "ppo.prio_beta0=0.3"])
    again = load(first.values)
    assert flatten(again.recipe) == flatten(first.recipe)


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(MillpondError, match=r"ppo\.style=puffr is not millpond, puffer; try ppo\.style=puffer"):
        load("metta", ["ppo.style=puffr"])

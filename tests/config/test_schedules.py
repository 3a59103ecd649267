"""Schedules by path: what is refused and how it is fixed, layers of a config, and the words that mean the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from millpond.config import ConfigError, load
from millpond.config.check import flatten
from millpond.config.ppo import PPOConfig
from millpond.config.rules import as_overrides
from millpond.config.schedules import SCHEDULED, PathSchedule, ScheduleConfig, schedules_of


def schedules(recipe: Any, *overrides: str) -> dict[str, PathSchedule]:
    return {one.path: one for one in schedules_of(flatten(load(recipe, overrides).recipe))}


def test_a_schedule_starts_at_the_value_of_its_key() -> None:
    found = schedules("metta", "schedules.ppo.ent_coef.end=0.001")
    assert found == {"ppo.ent_coef": PathSchedule("ppo.ent_coef", "linear", 0.0021, 0.001)}


def test_one_word_is_the_same_schedule() -> None:
    settings = ["ppo.lr_schedule=cosine", "ppo.min_lr_ratio=0.1", "ppo.clip_schedule=linear"]
    found = schedules("metta", *settings)
    assert found["ppo.learning_rate"] == PathSchedule("ppo.learning_rate", "cosine", 4.57e-4, 4.57e-5)
    assert found["ppo.clip_coef"] == PathSchedule("ppo.clip_coef", "linear", 0.1, 0.0)


def test_paths_may_be_nested_or_whole_and_layers_merge(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "extends: metta\nschedules:\n  ppo.ent_coef: {kind: cosine, end: 0.001}\n  ppo: {vf_coef: {end: 0.2}}\n"
    )
    found = schedules(own, "schedules.ppo.ent_coef.warmup=0.1", "schedules.ppo.vf_coef=null")
    assert found == {"ppo.ent_coef": PathSchedule("ppo.ent_coef", "cosine", 0.0021, 0.001, warmup=0.1)}


def test_value_rises_then_decays_and_stays_at_its_end() -> None:
    one = PathSchedule("ppo.learning_rate", "linear", 1.0, 0.1, warmup=0.2, until=0.8)
    values = [one.at(iteration, 10) for iteration in range(11)]
    #                               warm-up     0.2 of the run: 1       then 0.9 in six iterations
    assert values == pytest.approx([1 / 3, 2 / 3, 1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1, 0.1, 0.1])
    floor = PathSchedule("ppo.learning_rate", "linear", 1.0, 0.0, floor=0.5)
    assert [floor.at(iteration, 4) for iteration in range(4)] == [1.0, 0.75, 0.5, 0.5]


def test_every_path_that_can_change_is_a_number_of_ppo_with_a_rule_for_its_values() -> None:
    defaults = flatten(load("metta").recipe)
    for path in SCHEDULED:
        name = path.removeprefix("ppo.")
        assert isinstance(defaults[path], float | None), path
        with pytest.raises(ValueError, match="greater than"):
            TypeAdapter(PPOConfig).validate_python({name: -1.0})


CASES = [
    (["schedules.ppo.ent_coef.end=-1"], "schedules.ppo.ent_coef.end=-1.0 must be >= 0, as ppo.ent_coef"),
    (["schedules.ppo.gamma.end=1.5"], "schedules.ppo.gamma.end=1.5 must be <= 1, as ppo.gamma"),
    (["schedules.ppo.learning_rate.end=0"], "must be > 0, as ppo.learning_rate"),
    (["schedules.ppo.ent_coef.kind=cosine"], "end=null is missing: a cosine schedule needs the value at its end"),
    (["schedules.ppo.ent_coef.kind=step", "schedules.ppo.ent_coef.end=0"], "is not one of constant, linear, cosine"),
    (["schedules.ppo.ent_coef.kind=constant", "schedules.ppo.ent_coef.end=0"], "has no effect on a constant schedule"),
    (["schedules.ppo.ent_coef.warm=1"], "schedules.ppo.ent_coef.warm is not a known key; did you mean warmup?"),
    (["schedules.ppo.ent_coef.end=0", "schedules.ppo.ent_coef.warmup=1"], "warmup=1.0 must be < 1.0"),
    (["schedules.ppo.ent_coef={end: 0, warmup: 0.5, until: 0.5}"], "warmup=0.5 must be less than"),
    (["schedules.ppo.ent_coef=linear"], "must be a section with kind, start, end"),
    (["schedules.ppo.optimizer.end=1"], "ppo.optimizer is read once, when a run is built"),
    (["schedules.trainer.batch_size.end=1"], "trainer.batch_size is read once, when a run is built"),
    (["schedules.ppo.ent_coeff.end=0"], "not a known key; did you mean schedules.ppo.ent_coef?"),
    (["schedules.ppo.target_kl.end=0.01"], "ppo.target_kl=null switches off what the schedule would change"),
    (["schedules.ppo.prio_alpha.end=0.5"], "has no effect with ppo.sampling=uniform"),
    (["schedules.ppo.learning_rate.end=1e-5", "ppo.lr_schedule=linear"], "both set the schedule of ppo.learning_rate"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "says"), CASES, ids=[case[0][0] for case in CASES])
def test_what_is_wrong_is_named_and_every_fix_is_valid(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("metta", overrides)
    assert says in str(caught.value)
    (violation,) = caught.value.violations
    assert violation.fixes
    for fix in violation.fixes:
        load("metta", [*overrides, *as_overrides(fix).split(" ")])


def test_all_wrong_schedules_are_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        load("metta", ["schedules.ppo.ent_coef.end=-1", "schedules.ppo.vf_coef.end=-1"])
    assert len(caught.value.violations) == 2
    load(
        "metta",
        ["schedules.ppo.ent_coef.end=-1", "schedules.ppo.vf_coef.end=-1", *as_overrides(caught.value.fix).split(" ")],
    )


def test_fields_of_a_schedule_are_described() -> None:
    assert all(field.description for field in ScheduleConfig.model_fields.values())

"""The ablations: settings that exist, a table by hand, and pages and pictures that are up to date with the results."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image

from benchmarks.zoo.ablations import CHOOSING, LONGER, RESULTS, SETTINGS, TASKS, page_tasks, planned
from benchmarks.zoo.ablations_page import CURVES, PAGE, PICTURES, cell, page_of, runs_of
from benchmarks.zoo.curves import digest
from benchmarks.zoo.page import DOCS
from benchmarks.zoo.results import Result, read_results
from benchmarks.zoo.tasks import TASKS as ZOO
from millpond.config import load

RUN = Result("cartpole", "recipe", 1, 50_000, [(100, 1.0)], 20.0, 9, 6.0, 1, "cpu", {"torch": "2"}, {})


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_valid_and_change_the_recipe(name: str) -> None:
    for task in SETTINGS[name].tasks:
        overrides = [*SETTINGS[name].overrides_of(task), f"trainer.total_timesteps={TASKS[task].steps}"]
        changed, recipe = (load(TASKS[task].recipe, some).recipe for some in (overrides, overrides[-1:]))
        assert (changed == recipe) == (name == "recipe"), task


def test_trainings_are_planned_seed_by_seed_on_the_tasks_of_a_setting() -> None:
    jobs = planned(["cartpole", "recall"], ["recipe", "memory-none"], [1, 2])
    first = [("cartpole", "recipe", 1), ("recall", "recipe", 1), ("recall", "memory-none", 1)]
    assert jobs == [*first, *((task, name, 2) for task, name, _ in first)]


def test_settings_are_chosen_on_seeds_that_the_zoo_does_not_have() -> None:
    assert planned(["pendulum", "pendulum-200k"], ["recipe"], None) == [
        ("pendulum", "recipe", 1), ("pendulum", "recipe", 2), ("pendulum-200k", "recipe", 11), ("pendulum-200k", "recipe", 12),
    ]  # fmt: skip
    assert LONGER
    assert not {seed for task in ZOO.values() for party in task.parties for seed in task.seeds_of(party)} & set(
        CHOOSING
    )


def test_a_cell_marks_settings_whose_every_seed_is_better_or_worse() -> None:
    base = [replace(RUN, final=10.0), replace(RUN, seed=2, final=12.0)]
    assert cell(base, base) == "11 (10 to 12)"
    assert cell([replace(RUN, final=13.0)], base) == "**13**"
    assert cell([replace(RUN, final=9.0)], base) == "*9*"
    assert cell([replace(RUN, final=11.0)], base) == "11"
    assert cell([replace(RUN, final=None)], base) == "no episode ended"
    assert cell([], base) == ""
    assert cell([replace(RUN, final=13.0)], base[:1]) == "13"  # one seed says too little


def test_page_and_pictures_are_up_to_date_with_the_results() -> None:
    results = read_results(RESULTS)
    titles = {name: setting.title for name, setting in SETTINGS.items()}
    expected = page_of(results, *page_tasks(), titles)
    assert PAGE.read_text(encoding="utf-8") == expected, "python -m benchmarks.zoo.ablations --page"
    for name, panels in CURVES.items():
        with Image.open(PICTURES / f"{name}.png") as picture:
            drawn = digest(runs_of(results, panels))
            assert picture.info["Description"] == drawn, "python -m benchmarks.zoo.ablations --page"


def test_every_rule_shows_its_curves() -> None:
    page = (DOCS / "hyperparameters.md").read_text(encoding="utf-8")
    rules = [name for name in CURVES if name.startswith("rule_")]
    assert len(rules) == 10
    assert all(f"(pictures/{name}.png)" in page for name in rules)
    assert [f"## {number}. " in page for number in range(1, 11)] == [True] * 10

"""Trainings of `metta` and `metta-2026`: valid settings, and a page that follows from the results."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image

from benchmarks.metta.__main__ import RESULTS
from benchmarks.metta.page import PAGE, PICTURE, page_of, shown
from benchmarks.metta.tasks import SETTINGS, TASKS
from benchmarks.zoo.curves import digest
from benchmarks.zoo.results import Result, read_results
from millpond.config import load
from millpond.planner import PPOPlan, plan_loaded

RUN = Result("grid", "metta", 1, 100, [(100, 1.0)], 20.0, 9, 6.0, 1, "cpu", {"torch": "2"}, {}, cpu_seconds=5.0)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_valid_and_all_take_the_same_agent_steps(name: str) -> None:
    for task in SETTINGS[name].tasks:
        overrides = [*SETTINGS[name].overrides(task), f"trainer.total_timesteps={TASKS[task].steps}"]
        plan = plan_loaded(load(SETTINGS[name].recipe, overrides)).plan
        assert isinstance(plan, PPOPlan)
        assert plan.total_agent_steps == TASKS[task].steps
        assert plan.top_up_rows == 0


def test_page_has_a_table_once_both_recipes_have_results() -> None:
    assert "At equal steps" not in page_of([RUN])
    page = page_of([RUN, replace(RUN, party="metta-2026", final=30.0)])
    assert "| `metta` | 20 | 5 |" in page
    assert "| `metta-2026` | 30 | 5 |" in page


def test_page_and_picture_are_up_to_date_with_the_results() -> None:
    results = read_results(RESULTS)
    assert PAGE.read_text(encoding="utf-8") == page_of(results), "python -m benchmarks.metta --page"
    if shown(results):
        with Image.open(PICTURE) as picture:
            assert picture.info["Description"] == digest(shown(results)), "python -m benchmarks.metta --page"

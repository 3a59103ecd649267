"""Launches, waits and copies of each recipe stay within their budgets. Run by test_emulated.py in a process of its own."""

from __future__ import annotations

import pytest

from millpond.bench.emulated import count_run
from tests.support.gpu_budgets import BUDGETS, Budget


@pytest.mark.parametrize("recipe", BUDGETS)
def test_units_of_work_stay_within_their_budgets(recipe: str) -> None:
    if recipe == "mettagrid":
        pytest.importorskip("mettagrid")
    run = count_run(recipe)
    assert set(run.units) == set(BUDGETS[recipe])
    over = {}
    for name, budget in BUDGETS[recipe].items():
        each = run.per_unit(name)
        uploads = each["upload"] + each["blocking upload"]
        found = Budget(each["launch"], each["sync"], uploads, each["blocking upload"], each["download"])
        assert found.launches > 0
        print(recipe, name, found)
        if any(one > most for one, most in zip(found, budget, strict=True)):
            over[name] = (found, budget)
    assert not over

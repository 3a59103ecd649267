"""Points are checked before they run: rules, time and memory."""

from __future__ import annotations

import pytest

from millpond.config import load
from millpond.planner import Host, plan_loaded
from millpond.planner.estimate import settings_of
from millpond.sweep.points import PointRefused, check_point, expected_cost
from tests.support.sweeps import record, settings


def test_a_point_that_breaks_a_rule_is_refused_with_the_rule() -> None:
    with pytest.raises(PointRefused, match=r"trainer\.minibatch_size=100 is not a multiple of"):
        check_point(settings(), {"trainer.minibatch_size": 100})


def test_a_point_that_does_not_fit_into_memory_is_refused() -> None:
    point = check_point(settings(), {})
    assert point.cost.memory is not None
    fitting = Host.here().memory // point.cost.memory
    with pytest.raises(PointRefused, match=rf"a run needs .* for each of {2 * fitting} workers, and this machine has"):
        check_point(settings(), {}, at_once=2 * fitting)


def test_the_time_of_a_point_comes_from_trials_with_the_same_sizes_first() -> None:
    loaded = load(settings().recipe, settings().overrides)
    planned = plan_loaded(loaded)
    assert expected_cost(loaded, planned, []).seconds is None
    other = record(0, [1.0], seconds=10.0, steps=1_000, speed_settings="other")
    cost = expected_cost(loaded, planned, [other])
    assert (cost.seconds, cost.source) == (pytest.approx(10.24), "as the other trials")
    same = [
        record(1, [1.0], seconds=seconds, steps=1_000, speed_settings=settings_of(loaded.recipe))
        for seconds in (1.0, 2.0, 30.0)
    ]
    cost = expected_cost(loaded, planned, [other, *same])
    assert (cost.seconds, cost.source) == (pytest.approx(2.048), "as trials with the same sizes")
    assert cost.describe(3).startswith("a trial takes 6.1 s (as trials with the same sizes)")

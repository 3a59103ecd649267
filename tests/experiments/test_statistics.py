"""Statistics of runs against hand-worked numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import MillpondError
from millpond.experiments.statistics import (
    POWER,
    SIGNIFICANCE,
    detectable_difference,
    estimate,
    estimate_improvement,
    interquartile_mean,
    mean,
    optimality_gap,
    performance_profile,
    permutation_test,
    probability_of_improvement,
    show_detectable,
)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 3.0, 100.0], 2.5),  # the best and the worst are left out
        ([1.0, 2.0, 9.0], 4.0),  # three runs: none is left out
        ([0.0, 1.0, 2.0, 3.0, 4.0, 50.0], (1 + 2 + 3 + 4) / 4),  # six quarters: one on each side
        ([0.0, 0.0, 4.0, 8.0, 50.0, 60.0, 70.0, 80.0], (4 + 8 + 50 + 60) / 4),
    ],
)
def test_interquartile_mean_by_hand(scores: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(scores)) == pytest.approx(expected)


def test_probability_of_improvement_by_hand() -> None:
    #  1 beats nothing; 2 beats 1 and ties with 2; 3 beats all three
    assert probability_of_improvement(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.5])) == pytest.approx(
        (0.5 + (1 + 0.5) + 3) / 9
    )
    assert probability_of_improvement(np.array([5.0]), np.array([1.0, 2.0])) == 1.0


def test_runs_are_resampled_within_each_world() -> None:
    rng = np.random.default_rng(0)
    scores = {"easy": [100.0, 100.0], "hard": [1.0, 1.0]}
    result = estimate(scores, mean, rng)
    assert (result.value, result.low, result.high) == (50.5, 50.5, 50.5)  # resampling across games would widen it


def test_improvement_needs_the_same_worlds() -> None:
    rng = np.random.default_rng(0)
    better = estimate_improvement({"a": [3.0, 4.0]}, {"a": [1.0, 2.0]}, rng)
    assert (better.value, better.low, better.high) == (1.0, 1.0, 1.0)
    with pytest.raises(MillpondError, match="on the same worlds"):
        estimate_improvement({"a": [3.0]}, {"b": [1.0]}, rng)
    with pytest.raises(MillpondError, match="a has no runs"):
        estimate({"a": []}, mean, rng)


def test_permutation_test_by_hand() -> None:
    rng = np.random.default_rng(0)
    low, high = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
    # 20 ways to split six runs, of which two are as extreme: this one, and its mirror image.
    assert permutation_test({"a": high}, {"a": low}, rng) == pytest.approx(2 / 20)
    assert permutation_test({"a": high, "b": high}, {"a": low, "b": low}, rng) == pytest.approx(2 / 400)
    assert permutation_test({"a": high, "b": low}, {"a": low, "b": high}, rng) == pytest.approx(1.0)
    assert permutation_test({"a": [1.0]}, {"a": [2.0]}, rng) == pytest.approx(1.0)
    many = rng.normal(size=12).tolist()
    assert permutation_test({"a": many}, {"a": (np.array(many) + 9).tolist()}, rng) < 0.01  # random splits, not all


def test_detectable_difference_follows_the_permutation_test() -> None:
    assert detectable_difference(3, 1) is None  # 2 / 20
    assert "cannot show any difference" in show_detectable(3, 1)
    assert "take at least 4 seeds" in show_detectable(3, 1)
    by_seeds = [detectable_difference(seeds, 1) for seeds in (4, 5, 10, 20)]
    assert all(b is not None and b < a for a, b in pairwise(by_seeds) if a is not None), by_seeds
    two_worlds = detectable_difference(5, 2)
    assert two_worlds is not None
    # The test itself finds this difference as often as promised.
    rng = np.random.default_rng(1)
    found = [
        permutation_test(
            {w: (rng.normal(size=5) + two_worlds).tolist() for w in "ab"},
            {w: rng.normal(size=5).tolist() for w in "ab"},
            rng,
        )
        < SIGNIFICANCE
        for _ in range(300)
    ]
    assert POWER - 0.08 < np.mean(found) < POWER + 0.08


def test_no_difference_is_found_in_one_of_twenty_at_most() -> None:
    rng = np.random.default_rng(2)
    p = [
        permutation_test({"a": rng.normal(size=5).tolist()}, {"a": rng.normal(size=5).tolist()}, rng)
        for _ in range(400)
    ]
    assert np.mean(np.array(p) < SIGNIFICANCE) < 0.07


def test_performance_profile_by_hand() -> None:
    profile = performance_profile({"a": [1.0, 2.0], "b": [3.0, 4.0]}, [0.0, 1.0, 3.5, 4.0], np.random.default_rng(0))
    assert [one.value for one in profile] == [1.0, 0.75, 0.25, 0.0]
    # Runs are resampled within each world, so half of them stay above 2.5.
    (half,) = performance_profile({"a": [1.0, 2.0], "b": [3.0, 4.0]}, [2.5], np.random.default_rng(0))
    assert (half.low, half.high) == (0.5, 0.5)


def test_optimality_gap_ignores_what_is_above_the_optimum() -> None:
    assert optimality_gap(np.array([0.5, 3.0])) == pytest.approx(0.25)


@given(
    x=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), y=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9)
)
def test_probabilities_of_both_directions_sum_to_one(x: list[float], y: list[float]) -> None:
    one = probability_of_improvement(np.array(x), np.array(y))
    other = probability_of_improvement(np.array(y), np.array(x))
    assert one + other == pytest.approx(1.0)
    assert min(x) <= interquartile_mean(np.array(x)) + 1e-6
    assert interquartile_mean(np.array(x)) <= max(x) + 1e-6

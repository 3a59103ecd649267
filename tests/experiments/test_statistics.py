"""Statistics of runs against hand-worked numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import MillpondError
from millpond.experiments.statistics import (
    estimate,
    estimate_improvement,
    interquartile_mean,
    mean,
    permutation_test,
    probability_of_improvement,
)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 3.0, 100.0], 2.5),  # the best and the worst are left out
        ([1.0, 2.0, 9.0], (0.25 * 1 + 1 * 2 + 0.25 * 9) / 1.5),  # three quarters of a score are left out on each side
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


def test_runs_are_resampled_within_each_game() -> None:
    rng = np.random.default_rng(0)
    scores = {"easy": [100.0, 100.0], "hard": [1.0, 1.0]}
    result = estimate(scores, mean, rng)
    assert (result.value, result.low, result.high) == (50.5, 50.5, 50.5)  # resampling across games would widen it


def test_improvement_needs_the_same_games() -> None:
    rng = np.random.default_rng(0)
    better = estimate_improvement({"a": [3.0, 4.0]}, {"a": [1.0, 2.0]}, rng)
    assert (better.value, better.low, better.high) == (1.0, 1.0, 1.0)
    with pytest.raises(MillpondError, match="on the same games"):
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


@given(
    x=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), y=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9)
)
def test_probabilities_of_both_directions_sum_to_one(x: list[float], y: list[float]) -> None:
    one = probability_of_improvement(np.array(x), np.array(y))
    other = probability_of_improvement(np.array(y), np.array(x))
    assert one + other == pytest.approx(1.0)
    assert min(x) <= interquartile_mean(np.array(x)) + 1e-6
    assert interquartile_mean(np.array(x)) <= max(x) + 1e-6

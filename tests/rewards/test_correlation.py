"""Correlations against SciPy's and against numbers that can be checked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rewards.correlation import area_under_curve, pearson, ranks, spearman, value_order

numbers = st.lists(st.integers(-20, 20), min_size=3, max_size=30)


@given(numbers, st.integers(0, 1000))
def test_against_scipy(values: list[int], seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    other = np.random.default_rng(seed).integers(0, 5, size=len(values))
    if len(set(values)) > 1 and len(set(other.tolist())) > 1:
        assert pearson(values, other) == pytest.approx(stats.pearsonr(values, other)[0], abs=1e-9)
        assert spearman(values, other) == pytest.approx(stats.spearmanr(values, other)[0], abs=1e-9)
    else:
        assert math.isnan(pearson(values, other))


def test_by_hand() -> None:
    assert ranks([3, 1, 3, 2]).tolist() == [3.5, 1.0, 3.5, 2.0]
    assert value_order([0.1, 0.2, 0.9]) == 1.0
    assert value_order([0.9, 0.2, 0.1]) == -1.0
    assert area_under_curve([0.9, 0.8, 0.3], [True, False, False]) == 1.0
    assert area_under_curve([0.5, 0.5], [True, False]) == 0.5
    assert math.isnan(area_under_curve([0.5, 0.4], [True, True]))
    assert math.isnan(pearson([0.1 + 0.2] * 5, [1, 2, 3, 4, 5]))

"""Correlations against SciPy and hand-worked numbers; metrics of rewards of known quality."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rewards.metrics import (
    JudgedEpisode,
    area_under_curve,
    judge_by_baselines,
    measure,
    pearson,
    ranks,
    spearman,
    value_order,
)

numbers = st.lists(st.integers(-20, 20), min_size=3, max_size=30)


@given(numbers, st.integers(0, 1000))
def test_correlations_equal_those_of_scipy(values: list[int], seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    other = np.random.default_rng(seed).integers(0, 5, size=len(values))
    if len(set(values)) > 1 and len(set(other.tolist())) > 1:
        assert pearson(values, other) == pytest.approx(stats.pearsonr(values, other)[0], abs=1e-9)
        assert spearman(values, other) == pytest.approx(stats.spearmanr(values, other)[0], abs=1e-9)
    else:
        assert math.isnan(pearson(values, other))


def test_correlations_by_hand() -> None:
    assert ranks([3, 1, 3, 2]).tolist() == [3.5, 1.0, 3.5, 2.0]
    assert value_order([0.1, 0.2, 0.9]) == 1.0
    assert value_order([0.9, 0.2, 0.1]) == -1.0
    assert area_under_curve([0.9, 0.8, 0.3], [True, False, False]) == 1.0
    assert area_under_curve([0.5, 0.5], [True, False]) == 0.5
    assert math.isnan(area_under_curve([0.5, 0.4], [True, True]))
    assert math.isnan(pearson([0.1 + 0.2] * 5, [1, 2, 3, 4, 5]))


def episode(truth: np.ndarray, reward: np.ndarray) -> JudgedEpisode:
    return JudgedEpisode(reward, None, None, truth)


def progress(value: np.ndarray, success: bool | None = None) -> JudgedEpisode:
    return JudgedEpisode(np.diff(value, append=value[-1]), value, value[::-1], None, success)


def test_the_true_reward_scores_one_and_its_opposite_minus_one() -> None:
    rng = np.random.default_rng(0)
    truths = [rng.normal(size=20) for _ in range(5)]
    best = measure([episode(truth, 3 * truth + 1) for truth in truths])
    assert best["step_pearson"] > 0.9999
    assert best["return_pearson"] > 0.9999
    assert best["preference_accuracy"] == 1.0
    worst = measure([episode(truth, -truth) for truth in truths])
    assert worst["step_spearman"] < -0.9999
    assert worst["preference_accuracy"] == 0.0


def test_step_metrics_are_undefined_if_only_the_last_step_has_a_reward() -> None:
    truth = np.zeros(10)
    truth[-1] = 1.0
    assert "step_pearson" not in measure([episode(truth, truth), episode(truth * 2, truth)])


def test_a_clock_has_perfect_voc_and_fails_on_reversed_episodes() -> None:
    judged = [progress(np.linspace(0, 1, 50)), progress(np.linspace(0.1, 0.9, 40))]
    learned = measure(judged)
    assert learned["voc"] == 1.0
    assert learned["voc_reversed"] == -1.0
    assert learned["voc_truncated"] == 1.0
    assert 0.4 < learned["end_value"] - learned["cut_value"] < 0.6
    clock = measure(judge_by_baselines(judged, 0.0, 45.0)["time"])
    assert clock["voc"] == clock["voc_reversed"] == 1.0
    constant = measure(judge_by_baselines(judged, 0.0, 45.0)["constant"])
    assert "voc" not in constant  # undefined, so it is omitted
    assert constant["preference_accuracy"] == 0.5


def test_even_redistribution_predicts_returns_but_not_steps() -> None:
    rng = np.random.default_rng(1)
    judged = [episode(truth, truth) for truth in rng.normal(size=(6, 30)) + np.arange(6)[:, None] * 0.1]
    even = measure(judge_by_baselines(judged, 0.0, 30.0)["even"])
    assert even["return_pearson"] > 0.9999
    assert abs(even["step_pearson"]) < 0.5


def test_success_auc_and_value_of_another_task() -> None:
    rise, fall = np.linspace(0, 1, 20), np.linspace(0.3, 0.1, 20)
    metrics = measure([progress(rise, True), progress(fall, False)], others=[fall, fall])
    assert metrics["success_auc"] == 1.0
    assert metrics["other_task_value"] == fall[-1]

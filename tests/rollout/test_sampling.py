"""Sampling of rows into minibatches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millpond.rollout.sampling import SMALLEST, annealed_beta, draw_minibatches


def rows_of(sampling: str, seed: int = 0, **options: object) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [draw.rows for draw in draw_minibatches(sampling, 12, 4, rng, **options)]  # type: ignore[arg-type]


def test_uniform_sampling_is_a_new_permutation() -> None:
    first, second = np.concatenate(rows_of("uniform", 1)), np.concatenate(rows_of("uniform", 2))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first.tolist() != second.tolist()
    rng = np.random.default_rng(1)
    epochs = [np.concatenate([d.rows for d in draw_minibatches("uniform", 12, 4, rng)]).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1]  # a new permutation per update epoch, from the same generator


def test_sequential_sampling_is_in_order() -> None:
    assert np.concatenate(rows_of("sequential")).tolist() == list(range(12))


def test_prioritized_draws_without_replacement_within_a_minibatch() -> None:
    priority = np.array([100.0] + [1e-9] * 11)
    minibatches = rows_of("prioritized", priority=lambda: priority, alpha=1.0)
    assert len(minibatches) == 3
    for rows in minibatches:
        assert len(set(rows)) == 4
        assert 0 in rows  # by far the most probable, in every minibatch


@pytest.mark.parametrize("sampling", ["prioritized", "independent"])
def test_with_replacement_a_minibatch_may_have_a_row_twice(sampling: str) -> None:
    priority, rng, counts = np.array([1.0, 2.0, 3.0, 4.0]), np.random.default_rng(0), np.zeros(4)
    options: dict[str, Any] = {"priority": lambda: priority, "alpha": 1.0} if sampling == "prioritized" else {}
    minibatches = [
        draw.rows
        for _ in range(3_000)
        for draw in draw_minibatches(sampling, 4, 4, rng, replacement=True, **options)  # type: ignore[arg-type]
    ]
    assert {len(set(rows)) for rows in minibatches} == {1, 2, 3, 4}
    for rows in minibatches:
        counts += np.bincount(rows, minlength=4)
    # Without replacement a minibatch of four would have every row once, whatever the priorities.
    expected = priority / priority.sum() if sampling == "prioritized" else np.full(4, 0.25)
    np.testing.assert_allclose(counts / counts.sum(), expected, atol=0.01)


def test_probabilities_follow_the_priorities() -> None:
    priority, rng, counts = np.array([1.0, 2.0, 3.0, 4.0]), np.random.default_rng(0), np.zeros(4)
    for _ in range(5_000):
        for draw in draw_minibatches("prioritized", 4, 1, rng, priority=lambda: priority, alpha=1.0):
            counts[draw.rows] += 1
    np.testing.assert_allclose(counts / counts.sum(), priority / priority.sum(), atol=0.01)


def test_importance_weights_undo_the_bias() -> None:
    """With beta 1, the weighted mean over draws is the plain mean over rows."""
    priority, value = np.array([1.0, 5.0, 2.0, 8.0]), np.array([3.0, -1.0, 4.0, 10.0])
    rng, total, count = np.random.default_rng(0), 0.0, 0
    for _ in range(20_000):
        for draw in draw_minibatches("prioritized", 4, 1, rng, priority=lambda: priority, alpha=0.7, beta=1.0):
            total, count = total + float((value[draw.rows] * draw.weight).sum()), count + 1
    assert total / count == pytest.approx(value.mean(), rel=0.02)


def test_weights_are_one_if_all_priorities_are_equal() -> None:
    for draw in draw_minibatches(
        "prioritized", 12, 4, np.random.default_rng(0), priority=lambda: np.ones(12), alpha=0.8, beta=0.4
    ):
        np.testing.assert_allclose(draw.weight, 1.0, rtol=1e-5)
    rng = np.random.default_rng(0)
    zero = list(draw_minibatches("prioritized", 12, 4, rng, priority=lambda: np.zeros(12), alpha=0.8))
    assert len(zero) == 3  # rows without any advantage can still be drawn
    assert SMALLEST > 0


def test_alpha_zero_is_uniform_sampling() -> None:
    assert sorted(np.concatenate(rows_of("prioritized", priority=lambda: np.arange(12.0), alpha=0.0))) == list(
        range(12)
    )


def test_every_minibatch_is_drawn_by_the_priorities_of_its_time() -> None:
    only = iter(np.eye(12)[[3, 7, 5]])
    minibatches = rows_of("prioritized", priority=lambda: next(only), alpha=1.0)
    assert [expected in rows for expected, rows in zip((3, 7, 5), minibatches, strict=True)] == [True] * 3


def test_independent_minibatches_may_share_rows() -> None:
    minibatches = rows_of("independent")
    assert [len(set(rows)) for rows in minibatches] == [4, 4, 4]
    assert len(set(np.concatenate(minibatches))) < 12


def test_beta_reaches_one() -> None:
    assert [annealed_beta(0.2, progress) for progress in (0.0, 0.5, 1.0, 2.0)] == pytest.approx([0.2, 0.6, 1.0, 1.0])


def test_beta_of_pufferlib_goes_a_share_of_the_way() -> None:
    """b0 + (1 - b0) * alpha * progress"""
    assert [annealed_beta(0.2, progress, 0.5) for progress in (0.0, 0.5, 1.0)] == pytest.approx([0.2, 0.4, 0.6])


@pytest.mark.parametrize("sampling", ["prioritized", "independent"])
def test_minibatches_that_are_drawn_one_by_one_may_be_any_number(sampling: Any) -> None:
    rng, priority = np.random.default_rng(0), np.ones(12)
    draws = list(draw_minibatches(sampling, 12, 4, rng, priority=lambda: priority, alpha=0.5, count=5))
    assert [len(set(draw.rows.tolist())) for draw in draws] == [4] * 5

"""The step of an episode at which an env returned a number that is not finite."""

from __future__ import annotations

import numpy as np
import pytest

from millpond.vector.finite import Field, episode_step, is_finite


@pytest.mark.parametrize(
    ("field", "age", "expected"),
    [
        #      two episodes of 5 and 3 steps ended, then 2 steps were taken: ages 9..5, 4..2, 1..0
        ("reward", 0, 2),
        ("reward", 1, 1),
        ("reward", 2, 3),  # the last step of the second episode
        ("observation", 2, 0),  # the reset after it has the same age
        ("final observation", 2, 3),
        ("reward", 4, 1),
        ("observation", 5, 0),
        ("reward", 5, 5),
        ("reward", 9, 1),
        ("observation", 10, 0),
        ("reward", 10, None),  # before the known episodes
    ],
)
def test_episode_step_counts_back_over_the_episodes_that_ended(field: Field, age: int, expected: int | None) -> None:
    assert episode_step(age, 2, [5, 3], field) == expected


def test_large_finite_numbers_whose_sum_overflows_are_finite() -> None:
    assert is_finite(np.full(10, 3e38, np.float32))
    assert is_finite(np.array([], np.float32))
    assert is_finite(np.arange(4))
    for bad in (np.nan, np.inf, -np.inf):
        assert not is_finite(np.array([1.0, bad, 2.0], np.float32))
    assert not is_finite(np.array([np.inf, -np.inf]))

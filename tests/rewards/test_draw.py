"""Steps are drawn without replacement, every set equally likely, and again from the generator's state."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millpond.rewards.draw import StepDraw, _shuffle_heads, _shuffle_heads_plain


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 8), st.integers(1, 20), st.integers(0, 99))
def test_no_step_is_drawn_twice(lengths: list[int], per_batch: int, steps: int, seed: int) -> None:
    draw = StepDraw(np.array(lengths), per_batch, steps)
    rng = np.random.default_rng(seed)
    for _ in range(3):  # the scratch space must be in order again each time
        episodes, drawn = draw(rng)
        filled = draw.drawn(episodes)
        for episode, row, mask in zip(episodes, drawn, filled, strict=True):
            kept = row[mask]
            assert len(set(kept.tolist())) == len(kept) == min(steps, lengths[episode])
            assert ((row >= 0) & (row < lengths[episode])).all()
    assert draw.always_filled == (min(lengths) >= steps)


def test_every_set_is_equally_likely_and_every_place() -> None:
    draw = StepDraw(np.array([5]), 20_000, 3)
    _, drawn = draw(np.random.default_rng(0))
    sets = Counter(tuple(sorted(row)) for row in drawn.tolist())
    assert set(sets) == set(combinations(range(5), 3))
    expected = 20_000 / 10
    assert sum((count - expected) ** 2 / expected for count in sets.values()) < 27.9  # chi-square, 9 degrees, 0.1 %
    for place in range(3):
        counts = np.bincount(drawn[:, place], minlength=5)
        assert ((counts - 4_000) ** 2 / 4_000).sum() < 18.5  # 4 degrees, 0.1 %


def test_episodes_are_equally_likely() -> None:
    draw = StepDraw(np.array([3, 9, 4]), 30_000, 1)
    episodes, _ = draw(np.random.default_rng(1))
    counts = np.bincount(episodes)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 13.9


def test_the_generator_is_the_whole_state() -> None:
    lengths = np.array([40, 7, 200])
    first, rng = StepDraw(lengths, 4, 16), np.random.default_rng(5)
    for _ in range(7):
        first(rng)
    state = rng.bit_generator.state
    expected = [first(rng) for _ in range(3)]
    again, other = StepDraw(lengths, 4, 16), np.random.default_rng()
    other.bit_generator.state = state
    for episodes, steps in expected:
        found = again(other)
        assert np.array_equal(found[0], episodes)
        assert np.array_equal(found[1], steps)


def test_compiled_and_plain_agree() -> None:
    rng = np.random.default_rng(2)
    lengths, uniform = rng.integers(1, 50, size=8), rng.random((8, 20))
    one, other = np.zeros((8, 20), np.int64), np.zeros((8, 20), np.int64)
    _shuffle_heads(uniform, lengths, np.arange(50), one)
    _shuffle_heads_plain(uniform, lengths, np.arange(50), other)
    assert np.array_equal(one, other)

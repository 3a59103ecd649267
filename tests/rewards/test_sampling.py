"""Steps are drawn without replacement, every set equally likely; prefetched batches equal those drawn one by one."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from millpond.rewards.sampling import BYTES, MOST, PrefetchedBatches, StepSampler, _shuffle_heads, _shuffle_heads_plain


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 8), st.integers(1, 20), st.integers(0, 99))
def test_no_step_is_drawn_twice(lengths: list[int], per_batch: int, steps: int, seed: int) -> None:
    draw = StepSampler(np.array(lengths), per_batch, steps)
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
    draw = StepSampler(np.array([5]), 20_000, 3)
    _, drawn = draw(np.random.default_rng(0))
    sets = Counter(tuple(sorted(row)) for row in drawn.tolist())
    assert set(sets) == set(combinations(range(5), 3))
    expected = 20_000 / 10
    assert sum((count - expected) ** 2 / expected for count in sets.values()) < 27.9  # chi-square, 9 degrees, 0.1 %
    for place in range(3):
        counts = np.bincount(drawn[:, place], minlength=5)
        assert ((counts - 4_000) ** 2 / 4_000).sum() < 18.5  # 4 degrees, 0.1 %


def test_episodes_are_equally_likely() -> None:
    draw = StepSampler(np.array([3, 9, 4]), 30_000, 1)
    episodes, _ = draw(np.random.default_rng(1))
    counts = np.bincount(episodes)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 13.9


def test_the_generator_is_the_whole_state() -> None:
    lengths = np.array([40, 7, 200])
    first, rng = StepSampler(lengths, 4, 16), np.random.default_rng(5)
    for _ in range(7):
        first(rng)
    state = rng.bit_generator.state
    expected = [first(rng) for _ in range(3)]
    again, other = StepSampler(lengths, 4, 16), np.random.default_rng()
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


LENGTHS = np.array([40, 7, 200])


def make(step_bytes: int = 4) -> tuple[StepSampler, PrefetchedBatches]:
    draw = StepSampler(LENGTHS, 4, 16)
    return draw, PrefetchedBatches(draw, lambda *drawn: tuple(map(torch.from_numpy, drawn)), step_bytes)


def assert_same(batch: tuple[torch.Tensor, ...], expected: tuple[Any, ...]) -> None:
    for tensor, array in zip(batch, expected, strict=True):
        assert np.array_equal(tensor.numpy(), array)


def test_they_are_the_same_batches_and_leave_the_same_generator() -> None:
    draw, ahead = make()
    one, other = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(2 * ahead.at_once + 3):
        assert_same(ahead(one), draw(other))
        assert one.bit_generator.state == other.bit_generator.state


def test_a_generator_that_was_set_back_gives_its_batches_again() -> None:
    draw, ahead = make()
    rng, other = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(7):
        ahead(rng)
        draw(other)
    state = rng.bit_generator.state
    expected = [draw(other) for _ in range(3)]
    for batch in expected:
        assert_same(ahead(rng), batch)
    rng.bit_generator.state = state
    for batch in expected:
        assert_same(ahead(rng), batch)
    assert_same(ahead(np.random.default_rng(9)), draw(np.random.default_rng(9)))


def test_large_steps_are_prepared_fewer_at_once() -> None:
    assert make()[1].at_once == MOST
    assert make(BYTES // (4 * 16 * 3))[1].at_once == 3
    assert make(BYTES)[1].at_once == 1

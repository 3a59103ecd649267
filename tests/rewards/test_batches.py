"""Steps are sampled without replacement, every set equally likely; prefetched batches equal those sampled one by one."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from millpond.rewards.batches import (
    MAX_PREFETCHED_BATCHES,
    MAX_PREFETCHED_BYTES,
    PrefetchedBatches,
    StepSampler,
    _partial_shuffle,
    _partial_shuffle_plain,
)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 8), st.integers(1, 20), st.integers(0, 99))
def test_no_step_is_sampled_twice(lengths: list[int], per_batch: int, steps: int, seed: int) -> None:
    sampler = StepSampler(np.array(lengths), per_batch, steps)
    rng = np.random.default_rng(seed)
    for _ in range(3):  # the scratch array must be sorted again each time
        episodes, sampled = sampler(rng)
        valid = sampler.valid_steps(episodes)
        for episode, row, mask in zip(episodes, sampled, valid, strict=True):
            distinct = set(row[mask].tolist())
            assert len(distinct) == mask.sum() == min(steps, lengths[episode])
            assert ((row >= 0) & (row < lengths[episode])).all()
    assert sampler.always_filled == (min(lengths) >= steps)


def test_every_set_of_steps_is_equally_likely_and_so_is_every_order() -> None:
    sampler = StepSampler(np.array([5]), 20_000, 3)
    _, sampled = sampler(np.random.default_rng(0))
    sets = Counter(tuple(sorted(row)) for row in sampled.tolist())
    assert set(sets) == set(combinations(range(5), 3))
    expected = 20_000 / 10
    assert sum((count - expected) ** 2 / expected for count in sets.values()) < 27.9  # chi-square, 9 degrees, 0.1 %
    for place in range(3):
        counts = np.bincount(sampled[:, place], minlength=5)
        assert ((counts - 4_000) ** 2 / 4_000).sum() < 18.5  # 4 degrees, 0.1 %


def test_episodes_are_equally_likely() -> None:
    sampler = StepSampler(np.array([3, 9, 4]), 30_000, 1)
    episodes, _ = sampler(np.random.default_rng(1))
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
        episodes_again, steps_again = again(other)
        assert np.array_equal(episodes_again, episodes)
        assert np.array_equal(steps_again, steps)


def test_the_compiled_shuffle_equals_the_plain_one() -> None:
    rng = np.random.default_rng(2)
    lengths, uniform = rng.integers(1, 50, size=8), rng.random((8, 20))
    one, other = np.zeros((8, 20), np.int64), np.zeros((8, 20), np.int64)
    _partial_shuffle(uniform, lengths, np.arange(50), one)
    _partial_shuffle_plain(uniform, lengths, np.arange(50), other)
    assert np.array_equal(one, other)


LENGTHS = np.array([40, 7, 200])


def make(step_bytes: int = 4) -> tuple[StepSampler, PrefetchedBatches]:
    sampler = StepSampler(LENGTHS, 4, 16)
    return sampler, PrefetchedBatches(sampler, lambda *sampled: tuple(map(torch.from_numpy, sampled)), step_bytes)


def assert_same(batch: tuple[torch.Tensor, ...], expected: tuple[Any, ...]) -> None:
    for tensor, array in zip(batch, expected, strict=True):
        assert np.array_equal(tensor.numpy(), array)


def test_prefetched_batches_and_the_generator_equal_those_of_one_by_one_sampling() -> None:
    sampler, prefetched = make()
    one, other = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(2 * prefetched.count + 3):
        assert_same(prefetched(one), sampler(other))
        assert one.bit_generator.state == other.bit_generator.state


def test_a_generator_that_is_set_back_repeats_its_batches() -> None:
    sampler, prefetched = make()
    rng, other = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(7):
        prefetched(rng)
        sampler(other)
    state = rng.bit_generator.state
    expected = [sampler(other) for _ in range(3)]
    for batch in expected:
        assert_same(prefetched(rng), batch)
    rng.bit_generator.state = state
    for batch in expected:
        assert_same(prefetched(rng), batch)
    assert_same(prefetched(np.random.default_rng(9)), sampler(np.random.default_rng(9)))


def test_fewer_batches_are_prefetched_if_steps_are_large() -> None:
    assert make()[1].count == MAX_PREFETCHED_BATCHES
    assert make(MAX_PREFETCHED_BYTES // (4 * 16 * 3))[1].count == 3
    assert make(MAX_PREFETCHED_BYTES)[1].count == 1

"""Batches prepared ahead are those that would be drawn one by one, wherever the generator is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from millpond.rewards.ahead import BYTES, MOST, BatchesAhead
from millpond.rewards.draw import StepDraw

LENGTHS = np.array([40, 7, 200])


def make(step_bytes: int = 4) -> tuple[StepDraw, BatchesAhead]:
    draw = StepDraw(LENGTHS, 4, 16)
    return draw, BatchesAhead(draw, lambda *drawn: tuple(map(torch.from_numpy, drawn)), step_bytes)


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

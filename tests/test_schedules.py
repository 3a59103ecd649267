"""Schedules as functions of a counter."""

from __future__ import annotations

import pytest

from millpond.schedules import constant, cosine, linear, named


def test_linear() -> None:
    epsilon = linear(1.0, 0.1, over=100)
    assert [epsilon(t) for t in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert linear(1.0, 0.1, over=0)(0) == 0.1


def test_cosine() -> None:
    rate = cosine(1.0, 0.0, over=100)
    assert [rate(t) for t in (0, 50, 100, 200)] == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_named() -> None:
    assert named("constant", 0.3, over=10)(99) == constant(0.3)(0) == 0.3
    assert named("linear", 0.3, over=10)(5) == pytest.approx(0.15)
    assert named("cosine", 0.3, over=10)(10) == pytest.approx(0.0)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_named_schedule_ends_at_its_end(name: str) -> None:
    rate = named(name, 0.3, over=10, end=0.03)
    assert [rate(t) for t in (0, 5, 10, 20)] == pytest.approx([0.3, 0.165, 0.03, 0.03])

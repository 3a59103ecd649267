"""The rule for "slower than before", on numbers that can be checked by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from before_after import Change, changes, seconds_shown, show  # noqa: E402


@pytest.mark.parametrize(
    ("before", "after", "slower"),
    [
        ([1.0] * 5, [1.2] * 5, True),
        ([1.0] * 5, [1.09] * 5, False),  # less than a tenth
        ([1.0] * 5, [1.3, 1.3, 1.3, 0.8, 0.8], False),  # two alternations say otherwise
        ([1.0] * 5, [1.3, 1.3, 1.3, 1.3, 0.8], True),
        ([1.0, 10.0, 1.0], [1.0, 10.0, 1.0], False),  # a busy minute affects both
        ([2.0] * 5, [1.0] * 5, False),
    ],
)
def test_slower_needs_a_tenth_in_most_alternations(before: list[float], after: list[float], slower: bool) -> None:
    assert Change("x", before, after).slower is slower


def test_only_stages_of_both_checkouts_are_compared() -> None:
    before, after = [{"a": 1.0, "b": 2.0}] * 2, [{"a": 2.0, "c": 1.0}] * 2
    (change,) = changes(before, after)
    assert (change.name, change.ratios) == ("a", [2.0, 2.0])
    lines = show([change], ["b", "c"])
    assert lines[1].split() == ["a", "1.00", "s", "2.00", "s", "2.00", "2.00", "to", "2.00", "SLOWER"]
    assert lines[-2:] == ["only in one of the two: b, c", "slower by more than 10 %: a"]


def test_seconds_have_a_unit_of_their_size() -> None:
    assert [seconds_shown(value) for value in (12.3, 0.0456, 7.8e-6)] == ["12.30 s", "45.60 ms", "7.8 us"]

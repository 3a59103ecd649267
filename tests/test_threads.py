"""Shares of a batch in threads of their own, with torch's number of threads as it was afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from millpond.threads import in_threads, threads_for, torch_threads


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    with torch_threads(2):
        yield


def test_pieces_come_back_in_order_and_compute_with_one_thread_each() -> None:
    found = in_threads(lambda start, stop: (start, stop, torch.get_num_threads()), 100, 10)
    assert found == [(0, 50, 1), (50, 100, 1)]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("count", "least"), [(19, 10), (1, 1), (5, 5)])
def test_too_little_for_two_threads_stays_where_it_is_with_one_thread(count: int, least: int) -> None:
    assert in_threads(lambda start, stop: (start, stop, torch.get_num_threads()), count, least) == [(0, count, 1)]
    assert torch.get_num_threads() == 2


def test_an_error_in_a_thread_is_the_callers_and_threads_are_given_back() -> None:
    def fail(start: int, stop: int) -> None:
        raise ValueError(f"rows {start} to {stop}")

    with pytest.raises(ValueError, match="rows"):
        in_threads(fail, 8, 1)
    assert torch.get_num_threads() == 2


def test_one_thread_may_have_threads_of_its_own_inside_and_two_may_not() -> None:
    def inside(start: int, stop: int) -> int:
        return len(in_threads(lambda first, last: torch.get_num_threads(), 100, 10))

    assert in_threads(inside, 100, 60) == [2]
    assert in_threads(inside, 100, 10) == [1, 1]
    assert threads_for(100, 10) == 2


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores are the system's own business here")
def test_threads_are_not_woken_on_the_callers_core() -> None:
    usable = os.sched_getaffinity(0)
    allowed = in_threads(lambda start, stop: os.sched_getaffinity(0), 2, 1)
    assert os.sched_getaffinity(0) == usable  # the caller's own are as they were
    if len(usable) > 1:
        assert len(allowed[0]) == len(usable) - 1
        assert allowed[1] == usable - allowed[0]

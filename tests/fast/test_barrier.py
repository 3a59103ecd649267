"""Threads that meet inside compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millpond.compiled import compiled
from millpond.fast.barrier import meet, new_barrier
from millpond.threads import one_each

ROUNDS = 2_000


@compiled
def exchange(thread: int, threads: int, state: Any, values: Any) -> Any:
    """Write a number in each round, and count the rounds in which another thread's was not seen."""
    missed = 0
    for turn in range(ROUNDS):
        values[thread, 0] = turn
        meet(state, threads)
        for other in range(threads):
            missed += values[other, 0] != turn
        meet(state, threads)
    return missed


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_sees_what_the_others_wrote_before_they_met(threads: int) -> None:
    state, values = new_barrier(), np.zeros((threads, 8), np.int64)
    calls = [lambda thread=thread: exchange(thread, threads, state, values) for thread in range(threads)]
    assert one_each(iter(calls), threads) == [0] * threads
    assert state[0] == (2 * ROUNDS * threads if threads > 1 else 0)

"""Work on as many threads as torch has been given: compiled kernels, and lanes of torch's own operations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import torch

Result = TypeVar("Result")


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    """Starts a thread when one is first needed. In all of them torch computes with that thread alone."""
    return ThreadPoolExecutor(
        os.cpu_count(), thread_name_prefix="millpond-lane", initializer=torch.set_num_threads, initargs=(1,)
    )


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch has this many threads, inside."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(function: Callable[[int, int], Result], count: int, least: int) -> list[Result]:
    """Call function(start, stop) for pieces of range(count), one a thread, none smaller than `least`.

    For compiled kernels, which let go of Python's lock. Each piece must write to places of its own, so that the result
    does not depend on the number of threads.
    """
    return _share_out(function, count, lanes(count, least))


def lanes(count: int, least: int) -> int:
    """How many lanes so many items are shared out among, none with fewer than `least`."""
    return max(1, min(torch.get_num_threads(), count // least))


def in_lanes(function: Callable[[int, int], Result], count: int, least: int) -> list[Result]:
    """The same for functions that call torch: a lane takes its piece through all of them with one thread.

    Torch would rather share out every operation, which is a meeting of all threads a few thousand times a minibatch,
    and leaves them idle in whatever cannot be shared out. Where there is too little for two lanes, there is too little
    for that as well. Gradient and inference modes are each thread's own: the function sets what it needs.
    """
    pieces = lanes(count, least)
    with torch_threads(1):
        return _share_out(function, count, pieces)


def _share_out(function: Callable[[int, int], Result], count: int, pieces: int) -> list[Result]:
    """In the order of the pieces. The caller's own thread takes the last one."""
    edges = [count * piece // pieces for piece in range(pieces + 1)]
    others = [_pool().submit(function, edges[k], edges[k + 1]) for k in range(pieces - 1)]
    last = function(edges[-2], edges[-1])
    return [*(future.result() for future in others), last]

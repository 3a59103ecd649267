"""Compiled kernels on as many threads as torch has been given. The kernels let go of Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

Result = TypeVar("Result")


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    """Starts a thread when one is first needed."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="millpond-policy")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def in_threads(function: Callable[[int, int], Result], count: int, least: int) -> list[Result]:
    """Call function(start, stop) for pieces of range(count), one a thread, none smaller than `least`.

    Each piece must write to places of its own, so that the result does not depend on the number of threads.
    """
    pieces = max(1, min(torch.get_num_threads(), count // least))
    if pieces == 1:
        return [function(0, count)]
    edges = [count * piece // pieces for piece in range(pieces + 1)]
    # The caller's own thread takes the last piece.
    others = [_pool().submit(function, edges[k], edges[k + 1]) for k in range(pieces - 1)]
    last = function(edges[-2], edges[-1])
    return [*(future.result() for future in others), last]

"""Sharing work among as many threads as torch may use: compiled loops, and sequences of torch operations.

Torch itself shares out every single operation, which costs a synchronisation of all threads a few thousand times per
minibatch, and leaves threads idle in operations that cannot be shared. Here each thread computes its share from start to end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from typing import TypeVar

import torch

from millpond.cpu import HelperAffinity

Result = TypeVar("Result")


class _ThreadPool:
    """Threads, started when first needed. In each of them torch uses that thread only."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="millpond-thread", initializer=self._join)
        self.helpers = HelperAffinity()

    def _join(self) -> None:
        torch.set_num_threads(1)
        self.helpers.add(threading.get_native_id())


@lru_cache(maxsize=1)
def _thread_pool() -> _ThreadPool:
    return _ThreadPool()


os.register_at_fork(after_in_child=_thread_pool.cache_clear)  # threads do not survive a fork


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the context."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Local(threading.local):
    """Number of threads that the current one may share work among: as many as torch has, unless it runs a share itself."""

    threads: int | None = None


_local = _Local()


def _allowed() -> int:
    return _local.threads or torch.get_num_threads()


def threads_for(count: int, min_per_thread: int) -> int:
    """Return the number of threads that share `count` items, each with at least `min_per_thread`."""
    return max(1, min(_allowed(), count // min_per_thread))


@contextmanager
def _in_thread(threads_inside: int) -> Iterator[None]:
    """Let torch use one thread, and compiled loops share work among `threads_inside`."""
    before, _local.threads = _local.threads, threads_inside
    try:
        with torch_threads(1):
            yield
    finally:
        _local.threads = before


@contextmanager
def torch_in_one_thread() -> Iterator[None]:
    """Let torch use the caller's thread only; work can still be shared by this module.

    For short operations between shared work: after an operation that torch shares out, its threads spin for some
    milliseconds on cores that the threads of this module need.
    """
    with _in_thread(_allowed()):
        yield


def pieces(count: int, min_per_thread: int) -> list[tuple[int, int]]:
    """Split range(count) into pieces (start, stop), one per thread."""
    number = threads_for(count, min_per_thread)
    return [(count * k // number, count * (k + 1) // number) for k in range(number)]


def in_threads(function: Callable[[int, int], Result], count: int, min_per_thread: int) -> list[Result]:
    """Call function(start, stop) for pieces of range(count), one per thread; return the results in order.

    Torch uses one thread in each, and so does the BLAS that compiled loops call. It is for compiled loops, which release the
    GIL, and for long sequences of torch operations; short ones are best left to one thread, or threads wait for the GIL, and
    the loops inside them can then be shared. Gradient and inference modes are per thread: the function sets its own.
    """
    edges = pieces(count, min_per_thread)
    return one_each((partial(function, start, stop) for start, stop in edges), len(edges))


def one_each(calls: Iterable[Callable[[], Result]], number: int) -> list[Result]:
    """Run each call in a thread of its own; return the results in order.

    A call starts as soon as the iterable yields it, so that the next can be prepared meanwhile. The caller's thread runs
    the last one.
    """
    if number == 1:
        # Updates of small networks are so short that entering a context that changes nothing would show.
        with nullcontext() if torch.get_num_threads() == 1 else torch_in_one_thread():
            return [call() for call in calls]
    threads, remaining = _thread_pool(), iter(calls)
    with _in_thread(1), threads.helpers.pin_caller():
        others = [threads.pool.submit(next(remaining)) for _ in range(number - 1)]
        last = next(remaining)()
        return [*(future.result() for future in others), last]

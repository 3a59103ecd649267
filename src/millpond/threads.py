"""Work shared out among as many threads as torch has been given: compiled kernels, and stretches of torch's own
operations, each in a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TypeVar

import torch

from millpond.cores import HelperAffinity

Result = TypeVar("Result")


class _Team:
    """Threads, started when they are first needed. In each of them torch computes with that one alone."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="millpond-thread", initializer=self._join)
        self.helpers = HelperAffinity()

    def _join(self) -> None:
        torch.set_num_threads(1)
        self.helpers.add(threading.get_native_id())


@lru_cache(maxsize=1)
def _team() -> _Team:
    return _Team()


os.register_at_fork(after_in_child=_team.cache_clear)  # threads do not survive a fork


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


class _Here(threading.local):
    """How many threads this one may share its work with: as many as torch has, unless it has a share itself."""

    threads: int | None = None


_here = _Here()


def _allowed() -> int:
    return _here.threads or torch.get_num_threads()


def threads_for(count: int, least: int) -> int:
    """How many threads so many items are shared out among, none with fewer than `least`."""
    return max(1, min(_allowed(), count // least))


@contextmanager
def _in_thread(threads_inside: int) -> Iterator[None]:
    """Torch computes with one thread, and compiled loops may be shared out among so many."""
    before, _here.threads = _here.threads, threads_inside
    try:
        with torch_threads(1):
            yield
    finally:
        _here.threads = before


@contextmanager
def torch_in_one_thread() -> Iterator[None]:
    """Inside, torch computes with the caller's thread alone, and work can be shared out here as before.

    For short operations in between: after one that torch itself shares out, its own threads look for more to do for some
    milliseconds, on a core that ours need.
    """
    with _in_thread(_allowed()):
        yield


def pieces(count: int, least: int) -> list[tuple[int, int]]:
    """range(count) in as many pieces (start, stop) as `threads_for` says."""
    number = threads_for(count, least)
    return [(count * k // number, count * (k + 1) // number) for k in range(number)]


def in_threads(function: Callable[[int, int], Result], count: int, least: int) -> list[Result]:
    """Call function(start, stop) for pieces of range(count), one a thread, none smaller than `least`; torch computes
    with one thread in each, and so does the BLAS that compiled loops call.

    For compiled loops, which let go of Python's lock, and for long work of torch, which otherwise shares out every
    operation: a meeting of all threads a few thousand times a minibatch, and idle ones in whatever cannot be shared out.
    Short work of torch is best left to one thread, or threads wait for each other's lock; the loops inside it can have
    threads of their own then. Gradient and inference modes are each thread's own: the function sets what it needs.
    """
    edges = pieces(count, least)
    return one_each((partial(function, start, stop) for start, stop in edges), len(edges))


def one_each(calls: Iterable[Callable[[], Result]], number: int) -> list[Result]:
    """The same for so many pieces that are there already, in their order. A call is begun as soon as it comes, so that
    the next can be made ready meanwhile; the caller's own thread takes the last one."""
    if number == 1:
        with torch_in_one_thread():
            return [call() for call in calls]
    team, coming = _team(), iter(calls)
    with _in_thread(1), team.helpers.pin_caller():
        others = [team.pool.submit(next(coming)) for _ in range(number - 1)]
        last = next(coming)()
        return [*(future.result() for future in others), last]

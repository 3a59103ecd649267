"""Cores and memory of this machine, and affinity: keep helper threads and processes off the caller's core.

A thread or process that is woken often starts on the core of the thread that woke it, and moves to an idle core only
milliseconds later. If the waking thread goes on working, both share one core meanwhile, and another stays idle. So the
caller's core is excluded from the helpers' affinity before they are woken.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import cast


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Bytes of memory of this machine; 0 if Python cannot tell (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


@lru_cache(maxsize=1)
def _core_reader() -> Callable[[], int]:
    return cast(Callable[[], int], getattr(ctypes.CDLL(None), "sched_getcpu", lambda: -1))


class HelperAffinity:
    """Keeps threads or processes, by id, off the core of the caller. Does nothing if the system has no such control."""

    def __init__(self) -> None:
        can_control = hasattr(os, "sched_setaffinity") and _core_reader()() >= 0
        self._cores = frozenset(os.sched_getaffinity(0)) if can_control else frozenset()
        self._callers_core = -1
        self._helpers: list[int] = []

    def add(self, helper: int) -> None:
        """Add a thread or process."""
        self._helpers.append(helper)
        self._move_away(helper)

    def remove(self, helper: int) -> None:
        """Forget a thread or process that has ended."""
        with suppress(ValueError):
            self._helpers.remove(helper)

    def avoid_callers_core(self) -> None:
        """Exclude the caller's current core for all helpers; call it before they are woken."""
        if not self._cores:
            return
        core = _core_reader()()
        if core != self._callers_core:
            self._callers_core = core
            for helper in self._helpers:
                self._move_away(helper)

    @contextmanager
    def pin_caller(self) -> Iterator[None]:
        """Avoid the caller's core, and pin the caller to it meanwhile, so that it is not moved to a helper's core."""
        self.avoid_callers_core()
        if not self._cores:
            yield
            return
        os.sched_setaffinity(0, {self._callers_core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._cores)

    def _move_away(self, helper: int) -> None:
        others = self._cores - {self._callers_core}
        if others:
            with suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(helper, others)

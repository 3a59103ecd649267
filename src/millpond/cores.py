"""The machine's cores and memory: how much there is for us, and keeping helpers off the core of the one they help.

A thread or process that is woken is often put on the very core of the one who woke it, and only milliseconds later on an
idle one. Where the one goes on working meanwhile, both then take turns on one core, and the other stays idle. So before
helpers are woken, the caller's own core is closed to them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import cast


def usable_cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Bytes of memory of this machine; 0 where Python cannot say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


@lru_cache(maxsize=1)
def _core_reader() -> Callable[[], int]:
    return cast(Callable[[], int], getattr(ctypes.CDLL(None), "sched_getcpu", lambda: -1))


class Helpers:
    """Threads or processes, by their ids, that work while the caller does. Does nothing where there is no such control."""

    def __init__(self) -> None:
        known = hasattr(os, "sched_setaffinity") and _core_reader()() >= 0
        self._cores = frozenset(os.sched_getaffinity(0)) if known else frozenset()
        self._callers_core = -1
        self._members: list[int] = []

    def join(self, member: int) -> None:
        """Take one more in."""
        self._members.append(member)
        self._move_away(member)

    def leave(self, member: int) -> None:
        """One has ended."""
        with suppress(ValueError):
            self._members.remove(member)

    def make_way(self) -> None:
        """The caller is about to wake them, and to go on working itself."""
        if not self._cores:
            return
        core = _core_reader()()
        if core != self._callers_core:
            self._callers_core = core
            for member in self._members:
                self._move_away(member)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """The same, and the caller keeps its core meanwhile: it could be moved to one of theirs."""
        self.make_way()
        if not self._cores:
            yield
            return
        os.sched_setaffinity(0, {self._callers_core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._cores)

    def _move_away(self, member: int) -> None:
        others = self._cores - {self._callers_core}
        if others:
            with suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(member, others)

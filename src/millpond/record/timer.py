"""Timing by named phases that nest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from types import TracebackType


class Phase:
    """A section of code, timed each time it is entered. Created by `Timer`."""

    __slots__ = ("_started", "_taken", "_timer", "children", "entered", "parent", "path", "seconds")

    def __init__(self, timer: Timer, path: str, parent: Phase | None) -> None:
        self._timer = timer
        self.path = path
        self.parent = parent
        self.children: dict[str, Phase] = {}
        self.seconds = 0.0
        self.entered = 0  # times
        self._taken = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        self._timer.current = self
        self.entered += 1
        self._started = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer.wait is not None:
            self._timer.wait()
        self.seconds += perf_counter() - self._started
        assert self.parent is not None
        self._timer.current = self.parent

    def seconds_until(self, now: float) -> float:
        """Return the time spent in the phase, which may be open, up to now."""
        return self.seconds + (now - self._started if self._timer.is_open(self) else 0.0)

    def take(self, now: float) -> float:
        """Return the time spent in the phase since the last `take`."""
        seconds = self.seconds_until(now)
        taken, self._taken = seconds - self._taken, seconds
        return taken


class Timer:
    """Phases by name; a phase entered inside another is its child.

        with timer("train"):
            with timer("backward"): ...      counted as train/backward, and in train

    A timer must be used by one thread only. `wait`, if set, is called at the end of each phase: then the time that a device
    takes counts in the phase that has launched its work.
    """

    def __init__(self) -> None:
        self._root = Phase(self, "", None)
        self.current = self._root
        self._began = perf_counter()
        self.wait: Callable[[], None] | None = None

    def __call__(self, name: str) -> Phase:
        children = self.current.children
        phase = children.get(name)
        if phase is None:
            path = f"{self.current.path}/{name}" if self.current.path else name
            phase = children[name] = Phase(self, path, self.current)
        return phase

    def take(self) -> dict[str, float]:
        """Return seconds per phase since the last `take` as metrics: {"time/train": 1.5, "time/train/backward": 1.1}."""
        now = perf_counter()
        return {f"time/{phase.path}": phase.take(now) for phase in self._walk(self._root)}

    def shares(self) -> dict[str, float]:
        """Return the share of time so far in each outermost phase, and, as "other", outside of all phases.

        Changes nothing, so that a display may call it from another thread.
        """
        now = perf_counter()
        elapsed = max(now - self._began, 1e-9)
        shares = {phase.path: phase.seconds_until(now) / elapsed for phase in list(self._root.children.values())}
        return {**shares, "other": max(0.0, 1.0 - sum(shares.values()))}

    def totals(self) -> dict[str, float]:
        """Return seconds per phase so far."""
        now = perf_counter()
        return {phase.path: phase.seconds_until(now) for phase in self._walk(self._root)}

    def entered(self) -> dict[str, int]:
        """Return how often each phase was entered so far."""
        return {phase.path: phase.entered for phase in self._walk(self._root)}

    def seconds_left(self, limit: float | None) -> float | None:
        """Return the rest of a time limit that starts when this timer is created; None without a limit."""
        return None if limit is None else limit - (perf_counter() - self._began)

    def is_open(self, phase: Phase) -> bool:
        current: Phase | None = self.current
        while current is not None and current is not phase:
            current = current.parent
        return current is not None

    def _walk(self, phase: Phase) -> Iterator[Phase]:
        for child in phase.children.values():
            yield child
            yield from self._walk(child)

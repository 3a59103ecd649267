"""Schedules: pure functions of a counter. A reset changes the counter, never the schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[float], float]


def constant(value: float) -> Schedule:
    """Return `value` at all times."""
    return lambda counter: value


def linear(start: float, end: float, *, over: float) -> Schedule:
    """Interpolate linearly from start to end while the counter goes from 0 to `over`; then end."""
    if over <= 0:
        return constant(end)
    return lambda counter: start + (end - start) * min(max(counter / over, 0.0), 1.0)


def cosine(start: float, end: float, *, over: float) -> Schedule:
    """Follow half a cosine wave from start to end while the counter goes from 0 to `over`; then end."""
    if over <= 0:
        return constant(end)
    return lambda counter: end + (start - end) * 0.5 * (1 + math.cos(math.pi * min(max(counter / over, 0.0), 1.0)))


def geometric(start: float, end: float, *, over: float) -> Schedule:
    """Multiply by a constant factor per step, from start to end while the counter goes from 0 to `over`; then end."""
    if over <= 0:
        return constant(end)
    return lambda counter: start * (end / start) ** min(max(counter / over, 0.0), 1.0)


def named(name: str, start: float, *, over: float, end: float = 0.0) -> Schedule:
    """Return the schedule of this name: constant, or linear or cosine from `start` to `end`."""
    return {
        "constant": lambda: constant(start),
        "linear": lambda: linear(start, end, over=over),
        "cosine": lambda: cosine(start, end, over=over),
    }[name]()


def with_warm_up(schedule: Schedule, start: float, share: float, iterations: int) -> Schedule:
    """Return a schedule by iteration: it first rises to `start` in a `share` of the run, then follows `schedule`.

        v_i = start (i + 1) / (n + 1)            i < n = share x iterations, rounded up
        v_i = schedule(i / iterations - share)   after that

    The value is never 0 in the warm-up, and `start` right after it.
    """
    rising = math.ceil(share * iterations)

    def value(iteration: float) -> float:
        if iteration < rising:
            return start * (iteration + 1) / (rising + 1)
        return schedule(iteration / max(1, iterations) - share)

    return value

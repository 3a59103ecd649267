"""Drawing transitions, exactly uniformly: rows are drawn until one begins a valid transition.

Every row of every stream is equally likely to be drawn and those that begin no valid transition are drawn again, so
each valid transition has the same chance, whatever the lengths of streams, episodes and files, and no list of valid
ones is needed. What comes out depends on the generator's state and on the lake alone.

# n drawn   s stack   N n_step   T burn-in + length
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from millpond.replay.errors import LakeError
from millpond.replay.walk import RecordView, plan_sequences, plan_transitions

Array = np.ndarray[Any, Any]

# RecordView drawn in vain before the valid ones are counted, to tell bad luck from an empty lake.
PATIENCE = 4_096
MOST_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Picked:
    """Drawn transitions as rows of their streams (NO_ROW: zeros)."""

    stream: Array  # [n]
    observed: Array  # [n, s]
    next_observed: Array  # [n, s]
    path: Array  # [n, N]
    steps: Array  # [n]

    def part(self, rows: slice) -> Picked:
        """Some of them."""
        return Picked(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True)
class PickedSequences:
    stream: Array  # [n]
    path: Array  # [n, T]
    behind: Array  # [n]


def draw_transitions(
    views: Sequence[RecordView],
    shares: Array | None,
    n: int,
    rng: np.random.Generator,
    *,
    stack: int,
    n_step: int,
    repeat: bool,
) -> Picked:
    """`shares`: how many of each stream (they add up to n); None: uniform over all of them together."""

    def plan(view: RecordView, rows: Array) -> tuple[Array, tuple[Array, ...]]:
        observed, next_observed = (np.empty((len(rows), stack), np.int64) for _ in range(2))
        path, steps = np.empty((len(rows), n_step), np.int64), np.empty(len(rows), np.int32)
        plan_transitions(rows, view.flags, view.run_begin, view.lanes, repeat, observed, next_observed, path, steps)
        return steps > 0, (observed, next_observed, path, steps)

    wanted = f"transitions (stack {stack}, n_step {n_step})"
    stream, parts = _draw(views, shares, n, rng, plan, wanted)
    return Picked(stream, *parts)


def draw_sequences(
    views: Sequence[RecordView], shares: Array | None, n: int, rng: np.random.Generator, *, length: int, burn_in: int
) -> PickedSequences:
    def plan(view: RecordView, rows: Array) -> tuple[Array, tuple[Array, ...]]:
        path = np.empty((len(rows), burn_in + length), np.int64)
        behind, valid = np.empty(len(rows), np.int64), np.empty(len(rows), bool)
        plan_sequences(rows, view.flags, view.run_begin, view.lanes, burn_in, path, behind, valid)
        return valid, (path, behind)

    stream, parts = _draw(views, shares, n, rng, plan, f"sequences of {length} steps")
    return PickedSequences(stream, *parts)


Plan = Callable[[RecordView, Array], tuple[Array, tuple[Array, ...]]]


def _draw(
    views: Sequence[RecordView], shares: Array | None, n: int, rng: np.random.Generator, plan: Plan, wanted: str
) -> tuple[Array, tuple[Array, ...]]:
    if n < 1:
        raise LakeError(f"n={n} must be at least 1")
    if shares is None:
        return _draw_from(views, np.arange(len(views)), n, rng, plan, wanted)
    chosen = [
        _draw_from(views, np.array([number]), int(share), rng, plan, wanted)
        for number, share in enumerate(shares)
        if share
    ]
    order = rng.permutation(n)  # so that no part of a batch belongs to one stream
    stream = np.concatenate([stream for stream, _ in chosen])[order]
    columns = zip(*(parts for _, parts in chosen), strict=True)
    return stream, tuple(np.concatenate(column)[order] for column in columns)


def _draw_from(
    views: Sequence[RecordView], numbers: Array, n: int, rng: np.random.Generator, plan: Plan, wanted: str
) -> tuple[Array, tuple[Array, ...]]:
    """n draws from these streams together."""
    rows = np.array([views[number].rows for number in numbers], np.int64)
    ends = np.cumsum(rows)
    total, found, tried = int(ends[-1]) if len(ends) else 0, 0, 0
    if total == 0:
        raise LakeError(f"the lake has no {wanted} yet; append first")
    streams: list[Array] = []
    columns: list[tuple[Array, ...]] = []
    while found < n:
        rate = max(found, 1) / max(tried, 1) if tried else 1.0
        at_once = min(int((n - found) / rate * 1.05) + 8, MOST_AT_ONCE)
        drawn = rng.integers(0, total, at_once)
        which = np.searchsorted(ends, drawn, side="right") if len(ends) > 1 else np.zeros(at_once, np.int64)
        stream, parts = _plan_each(views, numbers, which, drawn - (ends - rows)[which], plan)
        streams.append(stream[: n - found])
        columns.append(tuple(part[: n - found] for part in parts))
        found, tried = found + len(streams[-1]), tried + at_once
        if found == 0 and tried > PATIENCE and not any(_any_valid(views[number], plan) for number in numbers):
            raise LakeError(f"none of the {total:,} rows of the lake begins one of the {wanted} that were asked for")
    return np.concatenate(streams), tuple(np.concatenate(column) for column in zip(*columns, strict=True))


def _plan_each(
    views: Sequence[RecordView], numbers: Array, which: Array, rows: Array, plan: Plan
) -> tuple[Array, tuple[Array, ...]]:
    """Plan every drawn row with its own stream; only valid ones stay, in the order in which they were drawn."""
    if len(numbers) == 1:
        valid, parts = plan(views[numbers[0]], rows)
        return np.full(int(valid.sum()), numbers[0], np.int32), tuple(part[valid] for part in parts)
    places, pieces = [], []
    for k, number in enumerate(numbers):
        mine = np.flatnonzero(which == k)
        valid, parts = plan(views[number], rows[mine])
        places.append(mine[valid])
        pieces.append((np.full(int(valid.sum()), number, np.int32), *(part[valid] for part in parts)))
    order = np.argsort(np.concatenate(places))
    stream, *rest = (np.concatenate(column)[order] for column in zip(*pieces, strict=True))
    return stream, tuple(rest)


def _any_valid(view: RecordView, plan: Plan) -> bool:
    """Whether any row of a stream will do."""
    return any(
        bool(plan(view, np.arange(begin, min(begin + MOST_AT_ONCE, view.rows)))[0].any())
        for begin in range(0, view.rows, MOST_AT_ONCE)
    )

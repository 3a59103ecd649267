"""Drawing transitions and sequences uniformly from the records of a pond or of a lake's streams.

Every record of every stream is equally likely to be drawn, and those that begin no valid transition are drawn again. So each
valid transition has the same probability, whatever the lengths of streams, episodes and files, and no list of valid ones is
needed. The result depends only on the generator's state and on the records.

n drawn   s stack   N n_step   T burn-in + length
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from millpond.replay.schema import LakeError
from millpond.replay.transitions import RecordView, plan_sequences, plan_transitions

Array = np.ndarray[Any, Any]

# Draws without a valid record before all records are tried, to tell bad luck from an empty lake.
MAX_FRUITLESS_DRAWS = 4_096
MAX_PER_DRAW = 1 << 20


@dataclass(frozen=True)
class DrawnTransitions:
    """Transitions as records of their streams (NO_RECORD: zeros)."""

    stream: Array  # [n]
    observed: Array  # [n, s]
    next_observed: Array  # [n, s]
    path: Array  # [n, N]
    steps: Array  # [n]

    def part(self, which: slice) -> DrawnTransitions:
        """Return a slice of them."""
        return DrawnTransitions(*(getattr(self, field.name)[which] for field in fields(self)))

    @staticmethod
    def join(parts: Sequence[DrawnTransitions]) -> DrawnTransitions:
        """Return several after one another."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in fields(DrawnTransitions)]
        return DrawnTransitions(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class DrawnSequences:
    """Sequences as records of their streams; `following` is the record after the last step."""

    stream: Array  # [n]
    path: Array  # [n, T]
    following: Array  # [n]


def draw_transitions(
    views: Sequence[RecordView],
    shares: Array | None,
    n: int,
    rng: np.random.Generator,
    *,
    stack: int,
    n_step: int,
    repeat: bool,
) -> DrawnTransitions:
    """Draw n transitions. `shares`: how many from each stream (sum n); None: uniform over all streams together."""

    def plan(view: RecordView, records: Array) -> tuple[Array, tuple[Array, ...]]:
        observed, next_observed = (np.empty((len(records), stack), np.int64) for _ in range(2))
        path, steps = np.empty((len(records), n_step), np.int64), np.empty(len(records), np.int32)
        plan_transitions(records, view.flags, view.runs, repeat, observed, next_observed, path, steps)
        return steps > 0, (observed, next_observed, path, steps)

    kind = f"transitions (stack {stack}, n_step {n_step})"
    stream, columns = _draw(views, shares, n, rng, plan, kind)
    return DrawnTransitions(stream, *columns)


def draw_sequences(
    views: Sequence[RecordView], shares: Array | None, n: int, rng: np.random.Generator, *, length: int, burn_in: int
) -> DrawnSequences:
    """Draw n sequences of `length` steps; `shares` as for `draw_transitions`."""

    def plan(view: RecordView, records: Array) -> tuple[Array, tuple[Array, ...]]:
        path = np.empty((len(records), burn_in + length), np.int64)
        following, valid = np.empty(len(records), np.int64), np.empty(len(records), bool)
        plan_sequences(records, view.flags, view.runs, burn_in, path, following, valid)
        return valid, (path, following)

    stream, columns = _draw(views, shares, n, rng, plan, f"sequences of {length} steps")
    return DrawnSequences(stream, *columns)


# (view, records [k]) -> which records are valid [k], and the columns of the result [k, ...]
PlanRecords = Callable[[RecordView, Array], tuple[Array, tuple[Array, ...]]]


def _draw(
    views: Sequence[RecordView], shares: Array | None, n: int, rng: np.random.Generator, plan: PlanRecords, kind: str
) -> tuple[Array, tuple[Array, ...]]:
    if n < 1:
        raise LakeError(f"n={n} must be at least 1")
    if shares is None:
        return _draw_from(views, np.arange(len(views)), n, rng, plan, kind)
    drawn = [
        _draw_from(views, np.array([number]), int(share), rng, plan, kind)
        for number, share in enumerate(shares)
        if share
    ]
    order = rng.permutation(n)  # so that no part of a batch belongs to one stream
    stream = np.concatenate([stream for stream, _ in drawn])[order]
    columns = zip(*(columns for _, columns in drawn), strict=True)
    return stream, tuple(np.concatenate(column)[order] for column in columns)


def _draw_from(
    views: Sequence[RecordView], numbers: Array, n: int, rng: np.random.Generator, plan: PlanRecords, kind: str
) -> tuple[Array, tuple[Array, ...]]:
    """Draw n from the streams `numbers` together."""
    counts = [views[number].num_records for number in numbers]
    total, done, tried = sum(counts), 0, 0
    if total == 0:
        raise LakeError(f"the lake has no {kind} yet; append first")
    drawn: list[tuple[Array, ...]] = []  # stream and columns
    while done < n:
        rate = max(done, 1) / max(tried, 1) if tried else 1.0
        per_draw = min(int((n - done) / rate * 1.05) + 8, MAX_PER_DRAW)
        valid = _plan_each(views, numbers, counts, rng.integers(0, total, per_draw), plan)
        drawn.append(tuple(column[: n - done] for column in valid))
        done, tried = done + len(drawn[-1][0]), tried + per_draw
        if done == 0 and tried > MAX_FRUITLESS_DRAWS and not any(_any_valid(views[k], plan) for k in numbers):
            raise LakeError(f"none of the lake's {total:,} records begins one of the requested {kind}")
    stream, *columns = drawn[0] if len(drawn) == 1 else map(np.concatenate, zip(*drawn, strict=True))
    return stream, tuple(columns)


def _plan_each(
    views: Sequence[RecordView], numbers: Array, counts: list[int], drawn: Array, plan: PlanRecords
) -> tuple[Array, ...]:
    """Plan records, numbered over all streams `numbers`; return the stream and the columns of valid ones, as drawn."""
    if len(numbers) == 1:
        view = views[numbers[0]]
        valid, columns = plan(view, view.records(drawn))
        number = int(np.count_nonzero(valid))
        if number < len(valid):
            columns = tuple(column[valid] for column in columns)
        return np.full(number, numbers[0], np.int32), *columns
    ends = np.cumsum(counts)
    which = np.searchsorted(ends, drawn, side="right")
    places, pieces = [], []
    for k, number in enumerate(numbers):
        mine = np.flatnonzero(which == k)
        valid, columns = plan(views[number], views[number].records(drawn[mine] - (ends[k] - counts[k])))
        places.append(mine[valid])
        pieces.append((np.full(int(valid.sum()), number, np.int32), *(column[valid] for column in columns)))
    order = np.argsort(np.concatenate(places))
    return tuple(np.concatenate(column)[order] for column in zip(*pieces, strict=True))


def _any_valid(view: RecordView, plan: PlanRecords) -> bool:
    """Return True if any record of a stream is valid."""
    return any(
        bool(plan(view, view.records(np.arange(begin, min(begin + MAX_PER_DRAW, view.num_records))))[0].any())
        for begin in range(0, view.num_records, MAX_PER_DRAW)
    )

"""Drawing transitions and sequences uniformly from the records of a pond or of a lake's streams.

Every record of every stream is equally likely to be drawn, and those that begin no valid transition are drawn again. So each
valid transition has the same probability, whatever the lengths of streams, episodes and files, and no list of valid ones is
needed. The result depends only on the generator's state and on the records.

n drawn   s stack   N n_step   T burn-in + length
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


# (view, records [k]) -> which records are valid [k], and the columns of the result [k, ...]
PlanRecords = Callable[[RecordView, Array], tuple[Array, tuple[Array, ...]]]


def transition_plan(stack: int, n_step: int, repeat: bool) -> PlanRecords:
    """Return the plan of transitions; its columns are those of `DrawnTransitions` after the stream."""

    def plan(view: RecordView, records: Array) -> tuple[Array, tuple[Array, ...]]:
        observed, next_observed = (np.empty((len(records), stack), np.int64) for _ in range(2))
        path, steps = np.empty((len(records), n_step), np.int64), np.empty(len(records), np.int32)
        plan_transitions(records, view.flags, view.runs, repeat, observed, next_observed, path, steps)
        return steps > 0, (observed, next_observed, path, steps)

    return plan


def sequence_plan(length: int, burn_in: int) -> PlanRecords:
    """Return the plan of sequences; its columns are those of `DrawnSequences` after the stream."""

    def plan(view: RecordView, records: Array) -> tuple[Array, tuple[Array, ...]]:
        path = np.empty((len(records), burn_in + length), np.int64)
        following, valid = np.empty(len(records), np.int64), np.empty(len(records), bool)
        plan_sequences(records, view.flags, view.runs, burn_in, path, following, valid)
        return valid, (path, following)

    return plan


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
    kind = f"transitions (stack {stack}, n_step {n_step})"
    stream, columns = _draw(views, shares, n, rng, transition_plan(stack, n_step, repeat), kind)
    return DrawnTransitions(stream, *columns)


def draw_transitions_by(
    views: Sequence[RecordView],
    candidates: Callable[[int], tuple[Array, Array]],
    n: int,
    *,
    stack: int,
    n_step: int,
    repeat: bool,
) -> DrawnTransitions:
    """Take n transitions from `candidates(count)`, streams and records [count]; those that begin none are left out."""
    numbers, plan = np.arange(len(views)), transition_plan(stack, n_step, repeat)
    drawn: list[tuple[Array, ...]] = []
    done = tried = 0
    while done < n:
        count = min(int((n - done) * (tried + 1) / (done + 1) * 1.05) + 8, MAX_PER_DRAW)
        which, records = candidates(count)
        valid = _plan_each(views, numbers, which, records, plan)
        drawn.append(tuple(column[: n - done] for column in valid))
        done, tried = done + len(drawn[-1][0]), tried + count
        if done == 0 and tried > MAX_FRUITLESS_DRAWS:
            raise LakeError(f"none of {tried:,} records drawn begins a transition (stack {stack}, n_step {n_step})")
    stream, *columns = map(np.concatenate, zip(*drawn, strict=True))
    return DrawnTransitions(stream, *columns)


def draw_sequences(
    views: Sequence[RecordView], shares: Array | None, n: int, rng: np.random.Generator, *, length: int, burn_in: int
) -> DrawnSequences:
    """Draw n sequences of `length` steps; `shares` as for `draw_transitions`."""
    stream, columns = _draw(views, shares, n, rng, sequence_plan(length, burn_in), f"sequences of {length} steps")
    return DrawnSequences(stream, *columns)


def plan_at(views: Sequence[RecordView], stream: Array, numbers: Array, plan: PlanRecords) -> tuple[Array, ...]:
    """Return the columns of a plan for records of streams [n] with these numbers [n], each of which must be valid."""
    counts = np.array([view.num_records for view in views], np.int64)
    inside = (stream >= 0) & (stream < len(views)) & (numbers >= 0)
    if not inside.all() or (numbers >= counts[stream]).any():
        raise LakeError(f"records {numbers.tolist()[:3]} of streams {stream.tolist()[:3]}: some do not exist")
    _, *columns = _plan_each(views, np.arange(len(views)), stream, numbers, plan)
    if len(columns[0]) < len(numbers):
        raise LakeError(f"{len(numbers) - len(columns[0]):,} of {len(numbers):,} records begin nothing valid")
    return tuple(columns)


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
    ends = np.cumsum(counts)
    drawn: list[tuple[Array, ...]] = []  # stream and columns
    while done < n:
        rate = max(done, 1) / max(tried, 1) if tried else 1.0
        per_draw = min(int((n - done) / rate * 1.05) + 8, MAX_PER_DRAW)
        which, each = None, rng.integers(0, total, per_draw)
        if len(counts) > 1:
            which = np.searchsorted(ends, each, side="right")
            each = each - (ends - counts)[which]
        valid = _plan_each(views, numbers, which, each, plan)
        drawn.append(tuple(column[: n - done] for column in valid))
        done, tried = done + len(drawn[-1][0]), tried + per_draw
        if (
            done == 0
            and tried > MAX_FRUITLESS_DRAWS
            and not any(block.any() for k in numbers for block in valid_blocks(views[k], plan))
        ):
            raise LakeError(f"none of the lake's {total:,} records begins one of the requested {kind}")
    stream, *columns = drawn[0] if len(drawn) == 1 else map(np.concatenate, zip(*drawn, strict=True))
    return stream, tuple(columns)


def _plan_each(
    views: Sequence[RecordView], numbers: Array, which: Array | None, drawn: Array, plan: PlanRecords
) -> tuple[Array, ...]:
    """Plan every drawn record within its stream; return stream and columns of the valid ones, in the order as drawn.

    `which` of the streams `numbers` each belongs to; it is not read if there is only one.
    """
    if len(numbers) == 1:
        view = views[numbers[0]]
        valid, columns = plan(view, view.records(drawn))
        count = int(np.count_nonzero(valid))
        if count < len(valid):
            columns = tuple(column[valid] for column in columns)
        return np.full(count, numbers[0], np.int32), *columns
    assert which is not None
    places, pieces = [], []
    for k, number in enumerate(numbers):
        mine = np.flatnonzero(which == k)
        valid, columns = plan(views[number], views[number].records(drawn[mine]))
        places.append(mine[valid])
        pieces.append((np.full(int(valid.sum()), number, np.int32), *(column[valid] for column in columns)))
    order = np.argsort(np.concatenate(places))
    return tuple(np.concatenate(column)[order] for column in zip(*pieces, strict=True))


def valid_blocks(view: RecordView, plan: PlanRecords) -> Iterator[Array]:
    """Yield, for `MAX_PER_DRAW` records after another, which of them are valid."""
    for begin in range(0, view.num_records, MAX_PER_DRAW):
        yield plan(view, view.records(np.arange(begin, min(begin + MAX_PER_DRAW, view.num_records))))[0]

"""Transitions, sequences and episodes among the records of a pond or a lake, and drawing them uniformly.

The records of one append are runs, one per lane: run `c * lanes + l` holds the records of lane l in append c, from
`run_begin[run]` up to `run_begin[run + 1]`. So the record before the first of a run is the last of `run - lanes`.

A transition is valid if its record is a step, its next observation is stored (the lane's next record, or the final
observation; a terminated step needs none), and the frames before it that its stack needs were not dropped.

To draw uniformly, every record of every stream is equally likely to be drawn, and those that begin no valid transition
are drawn again. So each valid transition has the same probability, whatever the lengths of streams, episodes and files,
and no list of valid ones is needed. The result depends only on the generator's state and on the records.

A record is named by its number in the stream, NO_RECORD where there is none.

n drawn   s stack   N n_step   T burn-in + length
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from millpond.compiled import compiled
from millpond.replay.schema import CONTEXT, DAMAGED, ENDED, FINAL, FIRST, HAS_FINAL, LakeError

Array = np.ndarray[Any, Any]
NO_RECORD = -1
NOT_DRAWN = FINAL | DAMAGED | CONTEXT

# Draws without a valid record before all records are tried, to tell bad luck from an empty lake.
MAX_FRUITLESS_DRAWS = 4_096
MAX_PER_DRAW = 1 << 20


class RecordView(Protocol):
    """Records that can be walked: a stream's, or a pond's."""

    @property
    def num_records(self) -> int: ...

    @property
    def flags(self) -> Array: ...

    @property
    def run_begin(self) -> Array: ...

    @property
    def lanes(self) -> int: ...


@compiled
def run_of(record: Any, run_begin: Any) -> Any:
    """Return the run that holds a record, by bisection."""
    low, high = 0, len(run_begin) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if run_begin[middle] <= record:
            low = middle
        else:
            high = middle
    return low


@compiled
def previous_record(record: Any, run: Any, run_begin: Any, lanes: Any) -> Any:
    """Return the previous record of the same lane, and its run; NO_RECORD at the beginning."""
    if record > run_begin[run]:
        return record - 1, run
    while run >= lanes:
        run -= lanes
        if run_begin[run + 1] > run_begin[run]:
            return run_begin[run + 1] - 1, run
    return NO_RECORD, run


@compiled
def next_record(record: Any, run: Any, run_begin: Any, lanes: Any) -> Any:
    """Return the next record of the same lane, and its run; NO_RECORD at the end."""
    if record + 1 < run_begin[run + 1]:
        return record + 1, run
    while run + lanes < len(run_begin) - 1:
        run += lanes
        if run_begin[run + 1] > run_begin[run]:
            return run_begin[run], run
    return NO_RECORD, run


@compiled
def history(record: Any, run: Any, flags: Any, run_begin: Any, lanes: Any, repeat: Any, out: Any) -> Any:
    """Fill `out` with the records up to `record`, oldest first.

    Before the episode's first record it holds NO_RECORD, or that first record again with `repeat`.
    Returns False if a record is missing: its file was dropped, or it is damaged.
    """
    k = len(out) - 1
    out[k] = record
    while k > 0:
        if flags[record] & FIRST:
            for j in range(k):
                out[j] = record if repeat else NO_RECORD
            return True
        record, run = previous_record(record, run, run_begin, lanes)
        if record == NO_RECORD or flags[record] & (DAMAGED | FINAL | ENDED):
            return False
        k -= 1
        out[k] = record
    return True


@compiled
def follow(record: Any, run: Any, flags: Any, run_begin: Any, lanes: Any, n_step: Any, path: Any) -> Any:
    """Take up to `n_step` steps from `record` and store them in `path`.

    Returns (steps, next record, its run); 0 steps: not a valid transition. The next record is the one n steps ahead or
    the final observation; NO_RECORD after a terminated step without one.
    """
    for k in range(n_step):
        flag = flags[record]
        if flag & (DAMAGED | FINAL) or (k > 0 and flag & FIRST):
            return 0, NO_RECORD, run
        path[k] = record
        last = record
        record, next_run = next_record(record, run, run_begin, lanes)
        if flag & ENDED:
            if not flag & HAS_FINAL:
                return k + 1, NO_RECORD, run
            if record == NO_RECORD or not flags[record] & FINAL or flags[record] & DAMAGED:
                return 0, NO_RECORD, run
            return k + 1, record, next_run
        if record == NO_RECORD or flags[record] & (FIRST | FINAL | DAMAGED):
            return 0, last, run
        run = next_run
    return n_step, record, run


@compiled
def plan_transitions(
    records: Any,
    flags: Any,
    run_begin: Any,
    lanes: Any,
    repeat: Any,
    observed: Any,
    next_observed: Any,
    path: Any,
    steps: Any,
) -> None:
    """Find, for each record, the stacks before and after its transition, the records of its steps, and their number.

    records [n]   observed, next_observed [n, stack]   path [n, n_step]   steps [n], 0 if there is no valid transition
    """
    stack, n_step = observed.shape[1], path.shape[1]
    for i in range(len(records)):  # touch every flag once before it is needed: the cache misses then overlap
        steps[i] = flags[records[i]]
    for i in range(len(records)):
        record = records[i]
        run = run_of(record, run_begin)
        steps[i] = 0
        path[i, :] = NO_RECORD
        if flags[record] & NOT_DRAWN or not history(record, run, flags, run_begin, lanes, repeat, observed[i]):
            continue
        count, following, _ = follow(record, run, flags, run_begin, lanes, n_step, path[i])
        if count == 0:
            continue
        last = path[i, count - 1]
        next_observed[i, stack - 1] = following
        if stack > 1:
            # The stack at the last step, without its oldest frame; its history is at least as long as the first one's.
            shifted = next_observed[i, : stack - 1]
            run_last = run if count == 1 else run_of(last, run_begin)
            history(last, run_last, flags, run_begin, lanes, repeat, shifted)
        steps[i] = count


@compiled
def plan_sequences(
    records: Any, flags: Any, run_begin: Any, lanes: Any, burn_in: Any, path: Any, following: Any, valid: Any
) -> None:
    """Find, for each record, `length` steps of one episode from it on, and up to `burn_in` steps before it.

    path [n, burn_in + length], NO_RECORD before the episode's beginning   following [n] the record after the last step
    """
    length = path.shape[1] - burn_in
    for i in range(len(records)):
        record = records[i]
        run = run_of(record, run_begin)
        valid[i] = False
        if flags[record] & NOT_DRAWN:
            continue
        if not history(record, run, flags, run_begin, lanes, False, path[i, : burn_in + 1]):
            continue
        count, following[i], _ = follow(record, run, flags, run_begin, lanes, length, path[i, burn_in:])
        valid[i] = count == length


@compiled
def count_transitions(flags: Any, run_begin: Any, lanes: Any, stack: Any, n_step: Any) -> Any:
    """Return the number of records that begin a valid transition."""
    total = 0
    observed, path = np.empty(stack, np.int64), np.empty(n_step, np.int64)
    for run in range(len(run_begin) - 1):
        for record in range(run_begin[run], run_begin[run + 1]):
            if flags[record] & NOT_DRAWN:
                continue
            if not history(record, run, flags, run_begin, lanes, False, observed):
                continue
            count, _, _ = follow(record, run, flags, run_begin, lanes, n_step, path)
            total += count > 0
    return total


@compiled
def _succeeds(records: Any, run_begin: Any, lanes: Any, out: Any) -> None:
    for i in range(1, len(records)):
        out[i] = next_record(records[i - 1], run_of(records[i - 1], run_begin), run_begin, lanes)[0] == records[i]


def succeeds(records: Array, run_begin: Array, lanes: int) -> Array:
    """Return, for records [n] in the order of their lanes, True where one directly follows the one before it."""
    out = np.zeros(len(records), bool)
    _succeeds(records, run_begin, lanes, out)
    return out


@compiled
def _complete_episodes(flags: Any, run_begin: Any, lanes: Any, start: Any, lengths: Any) -> Any:
    count = 0
    for lane in range(lanes):
        first, length = NO_RECORD, 0
        for run in range(lane, len(run_begin) - 1, lanes):
            for record in range(run_begin[run], run_begin[run + 1]):
                flag = flags[record]
                if flag & FINAL and not flag & DAMAGED:
                    if length < 0:  # directly after the step that ended the episode
                        lengths[count - 1] += 1
                    length = 0
                    continue
                if flag & DAMAGED:
                    first, length = NO_RECORD, 0
                    continue
                if flag & FIRST:
                    first, length = record, 0
                length = max(length, 0) + 1
                if flag & ENDED:
                    if first != NO_RECORD:
                        start[count], lengths[count] = first, length
                        count += 1
                        length = -1
                    first = NO_RECORD
    return count


def complete_episodes(view: RecordView) -> tuple[Array, Array]:
    """Return the first record and the number of records of every complete, undamaged episode, lane by lane.

    The record of the final observation is counted, too.
    """
    upper_bound = int(np.count_nonzero(view.flags & FIRST))
    start, lengths = np.empty(upper_bound, np.int64), np.empty(upper_bound, np.int64)
    count = _complete_episodes(view.flags, view.run_begin, view.lanes, start, lengths)
    return start[:count], lengths[:count]


@compiled
def _episode_records(start: Any, run_begin: Any, lanes: Any, out: Any) -> None:
    record, run = start, run_of(start, run_begin)
    for k in range(len(out)):
        out[k] = record
        record, run = next_record(record, run, run_begin, lanes)


def episode_records(view: RecordView, start: int, length: int) -> Array:
    """Return the `length` records of the episode that begins with record `start`, in order."""
    out = np.empty(length, np.int64)
    _episode_records(start, view.run_begin, view.lanes, out)
    return out


# -- uniform sampling


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
        plan_transitions(records, view.flags, view.run_begin, view.lanes, repeat, observed, next_observed, path, steps)
        return steps > 0, (observed, next_observed, path, steps)

    return plan


def sequence_plan(length: int, burn_in: int) -> PlanRecords:
    """Return the plan of sequences; its columns are those of `DrawnSequences` after the stream."""

    def plan(view: RecordView, records: Array) -> tuple[Array, tuple[Array, ...]]:
        path = np.empty((len(records), burn_in + length), np.int64)
        following, valid = np.empty(len(records), np.int64), np.empty(len(records), bool)
        plan_sequences(records, view.flags, view.run_begin, view.lanes, burn_in, path, following, valid)
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


def draw_sequences(
    views: Sequence[RecordView], shares: Array | None, n: int, rng: np.random.Generator, *, length: int, burn_in: int
) -> DrawnSequences:
    """Draw n sequences of `length` steps; `shares` as for `draw_transitions`."""
    stream, columns = _draw(views, shares, n, rng, sequence_plan(length, burn_in), f"sequences of {length} steps")
    return DrawnSequences(stream, *columns)


def plan_at(views: Sequence[RecordView], stream: Array, records: Array, plan: PlanRecords) -> tuple[Array, ...]:
    """Return the columns of a plan for given records [n] of streams [n], each of which must be valid."""
    counts = np.array([view.num_records for view in views], np.int64)
    inside = (stream >= 0) & (stream < len(views)) & (records >= 0)
    if not inside.all() or (records >= counts[stream]).any():
        raise LakeError(f"records {records.tolist()[:3]} of streams {stream.tolist()[:3]}: some do not exist")
    _, columns = _plan_each(views, np.arange(len(views)), stream, records, plan)
    if len(columns[0]) < len(records):
        raise LakeError(f"{len(records) - len(columns[0]):,} of {len(records):,} records begin nothing valid")
    return columns


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
    counts = np.array([views[number].num_records for number in numbers], np.int64)
    ends = np.cumsum(counts)
    total, done, tried = int(ends[-1]) if len(ends) else 0, 0, 0
    if total == 0:
        raise LakeError(f"the lake has no {kind} yet; append first")
    streams: list[Array] = []
    columns: list[tuple[Array, ...]] = []
    while done < n:
        rate = max(done, 1) / max(tried, 1) if tried else 1.0
        per_draw = min(int((n - done) / rate * 1.05) + 8, MAX_PER_DRAW)
        drawn = rng.integers(0, total, per_draw)
        which = np.searchsorted(ends, drawn, side="right") if len(ends) > 1 else np.zeros(per_draw, np.int64)
        stream, valid_columns = _plan_each(views, numbers, which, drawn - (ends - counts)[which], plan)
        streams.append(stream[: n - done])
        columns.append(tuple(column[: n - done] for column in valid_columns))
        done, tried = done + len(streams[-1]), tried + per_draw
        if (
            done == 0
            and tried > MAX_FRUITLESS_DRAWS
            and not any(block.any() for k in numbers for block in valid_blocks(views[k], plan))
        ):
            raise LakeError(f"none of the lake's {total:,} records begins one of the requested {kind}")
    return np.concatenate(streams), tuple(np.concatenate(column) for column in zip(*columns, strict=True))


def _plan_each(
    views: Sequence[RecordView], numbers: Array, which: Array, records: Array, plan: PlanRecords
) -> tuple[Array, tuple[Array, ...]]:
    """Plan every drawn record within its stream; return the valid ones in the order in which they were drawn."""
    if len(numbers) == 1:
        valid, columns = plan(views[numbers[0]], records)
        return np.full(int(valid.sum()), numbers[0], np.int32), tuple(column[valid] for column in columns)
    places, pieces = [], []
    for k, number in enumerate(numbers):
        mine = np.flatnonzero(which == k)
        valid, columns = plan(views[number], records[mine])
        places.append(mine[valid])
        pieces.append((np.full(int(valid.sum()), number, np.int32), *(column[valid] for column in columns)))
    order = np.argsort(np.concatenate(places))
    stream, *rest = (np.concatenate(column)[order] for column in zip(*pieces, strict=True))
    return stream, tuple(rest)


def valid_blocks(view: RecordView, plan: PlanRecords) -> Iterator[Array]:
    """Yield, for `MAX_PER_DRAW` records after another, which of them are valid."""
    for begin in range(0, view.num_records, MAX_PER_DRAW):
        yield plan(view, np.arange(begin, min(begin + MAX_PER_DRAW, view.num_records)))[0]

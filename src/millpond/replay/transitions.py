"""Transitions, sequences and episodes among the records of a pond or a lake.

In a lake the records of one append are runs, one per lane: run `c * lanes + l` holds the records of lane l in append c,
from `begin[run]` up to `begin[run + 1]`. So the record before the first of a run is the last of `run - lanes`.
In a pond each run is a ring: a lane of its own, whose newest record may be anywhere in it, and is followed by the oldest.

A transition is valid if its record is a step, its next observation is stored (the lane's next record, or the final
observation; a terminated step needs none), and the frames before it that its stack needs were not dropped.

A record is named by its place in the stream or in the pond, NO_RECORD where there is none.

n drawn   s stack   N n_step   T burn-in + length
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from millpond.compiled import compiled
from millpond.replay.schema import CONTEXT, DAMAGED, ENDED, FINAL, FIRST, HAS_FINAL

Array = np.ndarray[Any, Any]
NO_RECORD = -1
NOT_DRAWN = FINAL | DAMAGED | CONTEXT


class Runs(NamedTuple):
    """Where each lane's records are, and in which order."""

    begin: Array  # i8[runs + 1]
    lanes: int
    rings: Array  # i8[runs, 2] oldest and newest record of each ring; [0, 2] if lanes continue from run to run

    @staticmethod
    def of_appends(begin: Array, lanes: int) -> Runs:
        """Return the runs of a lake."""
        return Runs(begin, lanes, np.empty((0, 2), np.int64))


class RecordView(Protocol):
    """Records that can be walked: a stream's, or a pond's."""

    @property
    def num_records(self) -> int: ...

    @property
    def flags(self) -> Array: ...

    @property
    def runs(self) -> Runs: ...

    def records(self, numbers: Array) -> Array:
        """Return the records that have these numbers, from 0 to `num_records`."""


@compiled
def run_of(record: Any, begin: Any) -> Any:
    """Return the run that holds a record, by bisection."""
    low, high = 0, len(begin) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if begin[middle] <= record:
            low = middle
        else:
            high = middle
    return low


@compiled
def previous_record(record: Any, run: Any, begin: Any, lanes: Any, rings: Any) -> Any:
    """Return the previous record of the same lane, and its run; NO_RECORD at the beginning."""
    if len(rings) > 0:
        if record == rings[run, 0]:
            return NO_RECORD, run
        return (record if record > begin[run] else begin[run + 1]) - 1, run
    if record > begin[run]:
        return record - 1, run
    while run >= lanes:
        run -= lanes
        if begin[run + 1] > begin[run]:
            return begin[run + 1] - 1, run
    return NO_RECORD, run


@compiled
def next_record(record: Any, run: Any, begin: Any, lanes: Any, rings: Any) -> Any:
    """Return the next record of the same lane, and its run; NO_RECORD at the end."""
    if len(rings) > 0:
        if record == rings[run, 1]:
            return NO_RECORD, run
        return record + 1 if record + 1 < begin[run + 1] else begin[run], run
    if record + 1 < begin[run + 1]:
        return record + 1, run
    while run + lanes < len(begin) - 1:
        run += lanes
        if begin[run + 1] > begin[run]:
            return begin[run], run
    return NO_RECORD, run


@compiled
def extent(run: Any, begin: Any, rings: Any) -> Any:
    """Return where a run's records begin and end in memory; a ring may not be full yet."""
    first, last = begin[run], begin[run + 1]
    if len(rings) > 0 and rings[run, 0] == first:
        last = rings[run, 1] + 1
    return first, last


@compiled
def history(
    record: Any, run: Any, flags: Any, begin: Any, lanes: Any, rings: Any, repeat: Any, count: Any, out: Any, row: Any
) -> Any:
    """Fill out[row, :count] with the records up to `record`, oldest first.

    Before the episode's first record it holds NO_RECORD, or that first record again with `repeat`.
    Returns False if a record is missing: its file was dropped, or it is damaged.
    """
    k = count - 1
    out[row, k] = record
    while k > 0:
        if flags[record] & FIRST:
            for j in range(k):
                out[row, j] = record if repeat else NO_RECORD
            return True
        record, run = previous_record(record, run, begin, lanes, rings)
        if record == NO_RECORD or flags[record] & (DAMAGED | FINAL | ENDED):
            return False
        k -= 1
        out[row, k] = record
    return True


@compiled
def follow(
    record: Any, run: Any, flags: Any, begin: Any, lanes: Any, rings: Any, n_step: Any, path: Any, row: Any, start: Any
) -> Any:
    """Take up to `n_step` steps from `record` and store them in path[row, start:].

    Returns (steps, next record, its run); 0 steps: not a valid transition. The next record is the one n steps ahead or
    the final observation; NO_RECORD after a terminated step without one.
    """
    for k in range(n_step):
        flag = flags[record]
        if flag & (DAMAGED | FINAL) or (k > 0 and flag & FIRST):
            return 0, NO_RECORD, run
        path[row, start + k] = record
        last = record
        record, next_run = next_record(record, run, begin, lanes, rings)
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
def plan_single_steps(
    records: Any,
    flags: Any,
    begin: Any,
    lanes: Any,
    rings: Any,
    observed: Any,
    next_observed: Any,
    path: Any,
    steps: Any,
) -> None:
    """`plan_transitions` for one frame and one step.

    It takes a tenth of the time: numba counts references of the arrays that are passed to `history` and `follow`.
    """
    for i in range(len(records)):  # touch every flag once before it is needed: the cache misses then overlap
        steps[i] = flags[records[i]]
    for i in range(len(records)):
        record = records[i]
        flag = flags[record]
        following, _ = next_record(record, run_of(record, begin), begin, lanes, rings)
        other = np.int64(flags[following]) if following != NO_RECORD else DAMAGED
        if flag & ENDED:
            valid = not flag & HAS_FINAL or (other & (FINAL | DAMAGED)) == FINAL
            following = following if flag & HAS_FINAL else NO_RECORD
        else:
            valid = not other & (FIRST | FINAL | DAMAGED)
        observed[i, 0] = record
        next_observed[i, 0] = following
        path[i, 0] = record
        steps[i] = valid and not flag & NOT_DRAWN


@compiled
def plan_transitions(
    records: Any,
    flags: Any,
    runs: Any,
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
    begin, lanes, rings = runs  # once: each later look into the tuple would count a reference
    if stack == 1 and n_step == 1:
        plan_single_steps(records, flags, begin, lanes, rings, observed, next_observed, path, steps)
        return
    for i in range(len(records)):  # touch every flag once before it is needed: the cache misses then overlap
        steps[i] = flags[records[i]]
    for i in range(len(records)):
        record = records[i]
        run = run_of(record, begin)
        steps[i] = 0
        for k in range(n_step):
            path[i, k] = NO_RECORD
        if flags[record] & NOT_DRAWN or not history(
            record, run, flags, begin, lanes, rings, repeat, stack, observed, i
        ):
            continue
        count, following, _ = follow(record, run, flags, begin, lanes, rings, n_step, path, i, 0)
        if count == 0:
            continue
        last = path[i, count - 1]
        next_observed[i, stack - 1] = following
        if stack > 1:
            # The stack at the last step, without its oldest frame; its history is at least as long as the first one's.
            run_last = run if count == 1 else run_of(last, begin)
            history(last, run_last, flags, begin, lanes, rings, repeat, stack - 1, next_observed, i)
        steps[i] = count


@compiled
def plan_sequences(records: Any, flags: Any, runs: Any, burn_in: Any, path: Any, following: Any, valid: Any) -> None:
    """Find, for each record, `length` steps of one episode from it on, and up to `burn_in` steps before it.

    path [n, burn_in + length], NO_RECORD before the episode's beginning   following [n] the record after the last step
    """
    length = path.shape[1] - burn_in
    begin, lanes, rings = runs
    for i in range(len(records)):
        record = records[i]
        run = run_of(record, begin)
        valid[i] = False
        if flags[record] & NOT_DRAWN:
            continue
        if not history(record, run, flags, begin, lanes, rings, False, burn_in + 1, path, i):
            continue
        count, following[i], _ = follow(record, run, flags, begin, lanes, rings, length, path, i, burn_in)
        valid[i] = count == length


@compiled
def count_transitions(flags: Any, runs: Any, stack: Any, n_step: Any) -> Any:
    """Return the number of records that begin a valid transition."""
    total = 0
    observed, path = np.empty((1, stack), np.int64), np.empty((1, n_step), np.int64)
    begin, lanes, rings = runs
    for run in range(len(begin) - 1):
        first, last = extent(run, begin, rings)
        for record in range(first, last):
            if flags[record] & NOT_DRAWN:
                continue
            if not history(record, run, flags, begin, lanes, rings, False, stack, observed, 0):
                continue
            count, _, _ = follow(record, run, flags, begin, lanes, rings, n_step, path, 0, 0)
            total += count > 0
    return total


@compiled
def _succeeds(records: Any, runs: Any, out: Any) -> None:
    begin, lanes, rings = runs
    for i in range(1, len(records)):
        run = run_of(records[i - 1], begin)
        out[i] = next_record(records[i - 1], run, begin, lanes, rings)[0] == records[i]


def succeeds(records: Array, runs: Runs) -> Array:
    """Return, for records [n] in the order of their lanes, True where one directly follows the one before it."""
    out = np.zeros(len(records), bool)
    _succeeds(records, runs, out)
    return out


@compiled
def _complete_episodes(flags: Any, runs: Any, start: Any, lengths: Any) -> Any:
    count = 0
    begin, lanes, rings = runs
    for lane in range(lanes):
        first, length = NO_RECORD, 0
        for run in range(lane, len(begin) - 1, lanes):
            low, high = extent(run, begin, rings)
            oldest = rings[run, 0] if len(rings) > 0 else low
            for place in range(oldest, oldest + high - low):
                record = place if place < high else place - high + low
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
    count = _complete_episodes(view.flags, view.runs, start, lengths)
    return start[:count], lengths[:count]


@compiled
def _episode_records(start: Any, runs: Any, out: Any) -> None:
    begin, lanes, rings = runs
    record, run = start, run_of(start, begin)
    for k in range(len(out)):
        out[k] = record
        record, run = next_record(record, run, begin, lanes, rings)


def episode_records(view: RecordView, start: int, length: int) -> Array:
    """Return the `length` records of the episode that begins with record `start`, in order."""
    out = np.empty(length, np.int64)
    _episode_records(start, view.runs, out)
    return out

"""Walking a stream's rows along their lanes: histories, n steps ahead, and whether a transition is there at all.

The rows of one append are runs, one a lane: run `c * lanes + l` holds the rows of lane l in append c, from
`run_begin[run]` up to `run_begin[run + 1]`. So the row before the first of a run is the last of run - lanes.

A transition is valid when its row is a step, its next observation is there (the lane's next row, or the final
observation; a terminated step needs none), and the frames before it that its stack needs were not dropped.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from millpond.compiled import compiled
from millpond.replay.schema import CONTEXT, DAMAGED, ENDED, FINAL, FIRST, HAS_FINAL

NO_ROW = -1
NOT_DRAWN = FINAL | DAMAGED | CONTEXT


class RecordView(Protocol):
    """RecordView that can be walked: a stream's, or a pond's."""

    @property
    def rows(self) -> int: ...

    @property
    def flags(self) -> np.ndarray[Any, Any]: ...

    @property
    def run_begin(self) -> np.ndarray[Any, Any]: ...

    @property
    def lanes(self) -> int: ...


@compiled
def run_of(row: Any, run_begin: Any) -> Any:
    """The run that holds a row, by bisection."""
    low, high = 0, len(run_begin) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if run_begin[middle] <= row:
            low = middle
        else:
            high = middle
    return low


@compiled
def before(row: Any, run: Any, run_begin: Any, lanes: Any) -> Any:
    """The row before in the same lane, with its run; NO_ROW at the beginning."""
    if row > run_begin[run]:
        return row - 1, run
    while run >= lanes:
        run -= lanes
        if run_begin[run + 1] > run_begin[run]:
            return run_begin[run + 1] - 1, run
    return NO_ROW, run


@compiled
def after(row: Any, run: Any, run_begin: Any, lanes: Any) -> Any:
    """The row behind in the same lane, with its run; NO_ROW at the end."""
    if row + 1 < run_begin[run + 1]:
        return row + 1, run
    while run + lanes < len(run_begin) - 1:
        run += lanes
        if run_begin[run + 1] > run_begin[run]:
            return run_begin[run], run
    return NO_ROW, run


@compiled
def history(row: Any, run: Any, flags: Any, run_begin: Any, lanes: Any, repeat: Any, out: Any) -> Any:
    """Fill `out` with the rows up to `row`, oldest first; before the episode's first NO_ROW, or that one repeated.

    False where a row is missing: the file that held it was dropped, or its record is damaged.
    """
    k = len(out) - 1
    out[k] = row
    while k > 0:
        if flags[row] & FIRST:
            for j in range(k):
                out[j] = row if repeat else NO_ROW
            return True
        row, run = before(row, run, run_begin, lanes)
        if row == NO_ROW or flags[row] & (DAMAGED | FINAL | ENDED):
            return False
        k -= 1
        out[k] = row
    return True


@compiled
def follow(row: Any, run: Any, flags: Any, run_begin: Any, lanes: Any, n_step: Any, path: Any) -> Any:
    """Up to `n_step` steps from `row`, as rows in `path`. Returns (steps, next row, its run); steps 0: not valid.

    The next row is the one n steps ahead or the final observation; NO_ROW behind a terminated step without one.
    """
    for k in range(n_step):
        flag = flags[row]
        if flag & (DAMAGED | FINAL) or (k > 0 and flag & FIRST):
            return 0, NO_ROW, run
        path[k] = row
        last = row
        row, run_ahead = after(row, run, run_begin, lanes)
        if flag & ENDED:
            if not flag & HAS_FINAL:
                return k + 1, NO_ROW, run
            if row == NO_ROW or not flags[row] & FINAL or flags[row] & DAMAGED:
                return 0, NO_ROW, run
            return k + 1, row, run_ahead
        if row == NO_ROW or flags[row] & (FIRST | FINAL | DAMAGED):
            return 0, last, run
        run = run_ahead
    return n_step, row, run


@compiled
def plan_transitions(
    rows: Any,
    flags: Any,
    run_begin: Any,
    lanes: Any,
    repeat: Any,
    observed: Any,
    next_observed: Any,
    path: Any,
    steps: Any,
) -> None:
    """For each row: the stacks before and behind its transition, the rows of its steps, and how many these are.

    rows [n]   observed, next_observed [n, stack]   path [n, n_step]   steps [n], 0 where there is no transition
    """
    stack, n_step = observed.shape[1], path.shape[1]
    for i in range(len(rows)):  # every flag once before it is needed: memory works on all of them at the same time
        steps[i] = flags[rows[i]]
    for i in range(len(rows)):
        row = rows[i]
        run = run_of(row, run_begin)
        steps[i] = 0
        path[i, :] = NO_ROW
        if flags[row] & NOT_DRAWN or not history(row, run, flags, run_begin, lanes, repeat, observed[i]):
            continue
        count, behind, _ = follow(row, run, flags, run_begin, lanes, n_step, path[i])
        if count == 0:
            continue
        last = path[i, count - 1]
        next_observed[i, stack - 1] = behind
        if stack > 1:
            # The stack at the last step, without its oldest frame: never shorter of history than the first one's.
            shifted = next_observed[i, : stack - 1]
            run_last = run if count == 1 else run_of(last, run_begin)
            history(last, run_last, flags, run_begin, lanes, repeat, shifted)
        steps[i] = count


@compiled
def plan_sequences(
    rows: Any, flags: Any, run_begin: Any, lanes: Any, burn_in: Any, path: Any, behind: Any, valid: Any
) -> None:
    """For each row: `length` steps of one episode from it on, and up to `burn_in` steps of it before.

    path [n, burn_in + length], NO_ROW before the episode's beginning   behind [n] the row after the last step
    """
    length = path.shape[1] - burn_in
    for i in range(len(rows)):
        row = rows[i]
        run = run_of(row, run_begin)
        valid[i] = False
        if flags[row] & NOT_DRAWN:
            continue
        if not history(row, run, flags, run_begin, lanes, False, path[i, : burn_in + 1]):
            continue
        count, behind[i], _ = follow(row, run, flags, run_begin, lanes, length, path[i, burn_in:])
        valid[i] = count == length


@compiled
def count_transitions(flags: Any, run_begin: Any, lanes: Any, stack: Any, n_step: Any) -> Any:
    """How many rows begin a valid transition."""
    total = 0
    observed, path = np.empty(stack, np.int64), np.empty(n_step, np.int64)
    for run in range(len(run_begin) - 1):
        for row in range(run_begin[run], run_begin[run + 1]):
            if flags[row] & NOT_DRAWN:
                continue
            if not history(row, run, flags, run_begin, lanes, False, observed):
                continue
            count, _, _ = follow(row, run, flags, run_begin, lanes, n_step, path)
            total += count > 0
    return total


@compiled
def _succeeds(rows: Any, run_begin: Any, lanes: Any, out: Any) -> None:
    for i in range(1, len(rows)):
        out[i] = after(rows[i - 1], run_of(rows[i - 1], run_begin), run_begin, lanes)[0] == rows[i]


def succeeds(rows: np.ndarray[Any, Any], run_begin: np.ndarray[Any, Any], lanes: int) -> np.ndarray[Any, Any]:
    """For rows [n] in the order of their lanes: whether each is the next row of its lane after the one before it."""
    out = np.zeros(len(rows), bool)
    _succeeds(rows, run_begin, lanes, out)
    return out


# -- Whole episodes: which there are, and their rows.

Array = np.ndarray[Any, Any]


@compiled
def _whole_episodes(flags: Any, run_begin: Any, lanes: Any, start: Any, rows: Any) -> Any:
    """First row and number of rows (the final observation's included) of every complete, undamaged episode."""
    count = 0
    for lane in range(lanes):
        first, length = NO_ROW, 0
        for run in range(lane, len(run_begin) - 1, lanes):
            for row in range(run_begin[run], run_begin[run + 1]):
                flag = flags[row]
                if flag & FINAL and not flag & DAMAGED:
                    if length < 0:  # directly behind the step that ended the episode
                        rows[count - 1] += 1
                    length = 0
                    continue
                if flag & DAMAGED:
                    first, length = NO_ROW, 0
                    continue
                if flag & FIRST:
                    first, length = row, 0
                length = max(length, 0) + 1
                if flag & ENDED:
                    if first != NO_ROW:
                        start[count], rows[count] = first, length
                        count += 1
                        length = -1
                    first = NO_ROW
    return count


@compiled
def _rows_of(start: Any, flags: Any, run_begin: Any, lanes: Any, out: Any) -> None:
    row, run = start, run_of(start, run_begin)
    for k in range(len(out)):
        out[k] = row
        row, run = after(row, run, run_begin, lanes)


def whole_episodes(view: RecordView) -> tuple[Array, Array]:
    """First rows and row counts of a stream's complete episodes, lane by lane."""
    most = int(np.count_nonzero(view.flags & FIRST))
    start, rows = np.empty(most, np.int64), np.empty(most, np.int64)
    count = _whole_episodes(view.flags, view.run_begin, view.lanes, start, rows)
    return start[:count], rows[:count]


def episode_rows(view: RecordView, start: int, rows: int) -> Array:
    """The rows of one episode, in order."""
    out = np.empty(rows, np.int64)
    _rows_of(start, view.flags, view.run_begin, view.lanes, out)
    return out

"""Whole episodes: which there are, and their rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from millpond.compiled import compiled
from millpond.replay.index import DAMAGED
from millpond.replay.schema import ENDED, FINAL, FIRST
from millpond.replay.stream import View
from millpond.replay.walk import NO_ROW, after, run_of

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


def whole_episodes(view: View) -> tuple[Array, Array]:
    """First rows and row counts of a stream's complete episodes, lane by lane."""
    most = int(np.count_nonzero(view.flags & FIRST))
    start, rows = np.empty(most, np.int64), np.empty(most, np.int64)
    count = _whole_episodes(view.flags, view.run_begin, view.lanes, start, rows)
    return start[:count], rows[:count]


def episode_rows(view: View, start: int, rows: int) -> Array:
    """The rows of one episode, in order."""
    out = np.empty(rows, np.int64)
    _rows_of(start, view.flags, view.run_begin, view.lanes, out)
    return out

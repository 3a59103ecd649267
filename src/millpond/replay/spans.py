"""Which bytes to read for which rows. Rows that follow one another, on disk and in the result, are one span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.compiled import compiled
from millpond.replay.lz4_frames import CHUNKED, HERE, NOTHING, UNUSABLE
from millpond.replay.stream import View
from millpond.replay.walk import NO_ROW

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Spans:
    """Span i: `nbytes[i]` bytes from `offset[i]` of segment `segment[i]` go to `place[i]` of a buffer."""

    segment: Array
    offset: Array
    nbytes: Array
    place: Array

    @staticmethod
    def room(count: int) -> Spans:
        return Spans(*(np.empty(count, np.int64) for _ in range(4)))

    def first(self, count: int) -> Spans:
        return Spans(self.segment[:count], self.offset[:count], self.nbytes[:count], self.place[:count])


@compiled
def _segment_of(row: Any, segment_begin: Any) -> Any:
    low, high = 0, len(segment_begin)
    while high - low > 1:
        middle = (low + high) // 2
        if segment_begin[middle] <= row:
            low = middle
        else:
            high = middle
    return low


@compiled
def _record_spans(rows: Any, width: Any, segment_begin: Any, segment: Any, offset: Any, nbytes: Any, place: Any) -> Any:
    count, last = 0, NO_ROW
    for i in range(len(rows)):
        row = rows[i]
        if row != NO_ROW:
            holds = _segment_of(row, segment_begin)
            if last != NO_ROW and row == last + 1 and holds == segment[count - 1]:
                nbytes[count - 1] += width
            else:
                segment[count], offset[count] = holds, (row - segment_begin[holds]) * width
                nbytes[count], place[count] = width, i * width
                count += 1
        last = row
    return count


def record_spans(view: View, rows: Array, width: int) -> Spans:
    """The records of `rows` [n]: record i goes to i * width, those of NO_ROW are left out."""
    spans = Spans.room(len(rows))
    arrays = (spans.segment, spans.offset, spans.nbytes, spans.place)
    return spans.first(_record_spans(rows, width, view.segment_begin, *arrays))


@compiled
def _frame_spans(
    rows: Any,
    position: Any,
    segment_begin: Any,
    frame_bytes: Any,
    compacted: Any,
    state: Any,
    begins: Any,
    ends: Any,
    segment: Any,
    offset: Any,
    nbytes: Any,
    place: Any,
) -> Any:
    count, total, last = 0, 0, NO_ROW
    for i in range(len(rows)):
        row = rows[i]
        begins[i] = ends[i] = 0
        if row == NO_ROW:
            state[i] = NOTHING
        else:
            holds = _segment_of(row, segment_begin)
            begin = 0 if row == segment_begin[holds] else np.int64(position[row - 1])
            end = np.int64(position[row])
            if compacted[holds]:
                state[i] = CHUNKED
            elif begin >= end or end > frame_bytes[holds]:  # what a damaged record says may be anything
                state[i] = UNUSABLE
            else:
                state[i] = HERE
                if last == NO_ROW or row != last + 1 or holds != segment[count - 1]:
                    segment[count], offset[count], nbytes[count], place[count] = holds, begin, 0, total
                    count += 1
                begins[i], ends[i] = total, total + (end - begin)
                nbytes[count - 1] += end - begin
                total = ends[i]
        last = row if state[i] == HERE else NO_ROW
    return count


def frame_spans(view: View, rows: Array) -> tuple[Spans, Array, Array, Array]:
    """The frames of `rows` [n], packed; each row's state, and where its bytes begin and end in the buffer."""
    spans = Spans.room(len(rows))
    state = np.empty(len(rows), np.uint8)
    begins, ends = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    arrays = (spans.segment, spans.offset, spans.nbytes, spans.place)
    tables = (view.position, view.segment_begin, view.frame_bytes, view.compacted)
    return spans.first(_frame_spans(rows, *tables, state, begins, ends, *arrays)), state, begins, ends

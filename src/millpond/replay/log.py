"""The commit log: which appends count, in order, each with its own checksum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.replay.checksum import row_checksums
from millpond.replay.layout import Head, StreamFolder, commit_dtype, this_boot
from millpond.replay.schema import Schema

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Log:
    """The longest valid prefix of a commit log.

    `rebuilt`  entries whose checksum failed, and which were put together again from their neighbours and the records
    `lost`     entries behind the prefix that are readable, but follow unreadable ones
    `tail`     bytes behind all readable entries: an append that was never acknowledged
    """

    entries: Array
    rebuilt: list[int]
    lost: int
    tail: int


def read_log(stream: StreamFolder, schema: Schema, first: int = 0) -> Log:
    """Read the log from entry `first` on."""
    dtype = commit_dtype(stream.lanes)
    try:
        with open(stream.commits, "rb") as file:
            file.seek(first * dtype.itemsize)
            data = file.read()
    except FileNotFoundError:
        data = b""
    entries = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype).copy()
    good = row_checksums(entries) == entries["checksum"]
    good &= entries["number"] == np.arange(first, first + len(entries))
    readable = int(np.flatnonzero(good)[-1]) + 1 if good.any() else 0
    rebuilt: list[int] = []
    for k in np.flatnonzero(~good[:readable]).tolist():
        if not good[k + 1] or not _rebuild(entries, k, first, stream, schema):
            return Log(entries[:k], rebuilt, readable - k, len(data) - readable * dtype.itemsize)
        rebuilt.append(first + k)
    return Log(entries[:readable], rebuilt, 0, len(data) - readable * dtype.itemsize)


def _rebuild(entries: Array, k: int, first: int, stream: StreamFolder, schema: Schema) -> bool:
    """Put entry k together from the one behind it, the one before it, and the lanes in the records between."""
    if k == 0 and first > 0:
        return False  # a reader that follows has not kept the entry before; a fresh look has
    after = entries[k + 1]
    ends_segment = after["row_begin"] == 0
    segment = int(after["segment"]) - int(ends_segment)
    begin, frame_begin = 0, 0
    if k > 0 and int(entries[k - 1]["segment"]) == segment:
        begin, frame_begin = int(entries[k - 1]["row_end"]), int(entries[k - 1]["frame_end"])
    try:
        records = np.fromfile(stream.segment(segment, "steps"), schema.record, offset=begin * schema.record.itemsize)
    except FileNotFoundError:
        records = np.empty(0, schema.record)  # the segment was dropped: its rows are not needed any more
    if not ends_segment:
        records = records[: int(after["row_begin"]) - begin]
    if len(records) and not np.array_equal(row_checksums(records), records["checksum"]):
        return False
    entry: Any = np.zeros((), entries.dtype)
    entry["segment"], entry["number"] = segment, first + k
    entry["row_begin"], entry["row_end"] = begin, begin + len(records)
    entry["frame_begin"] = frame_begin
    entry["frame_end"] = records["frame_end"][-1] if len(records) else frame_begin
    entry["next_episode"], entry["time"] = after["next_episode"], after["time"]
    entry["lane_rows"] = np.bincount(records["lane"], minlength=stream.lanes)[: stream.lanes]
    entries[k] = entry
    return True


def acknowledged(stream: StreamFolder, written: int) -> tuple[int, Head | None]:
    """How many of the `written` commits of the log a reader may show, and the head that says so."""
    head = Head.read(stream.head)
    if head is None or head.boot != this_boot():
        return written, head
    return min(written, head.commits), head

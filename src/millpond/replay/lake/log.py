"""The commit log of a stream: all appends that count, in order, each entry with its checksum."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.durable import DiskFile
from millpond.replay.lake.checksum import Binding, consecutive_places, record_checksums
from millpond.replay.lake.format import MAX_APPEND_BYTES, MAX_SEGMENT_BYTES, StreamFolder
from millpond.replay.schema import Schema

Array = np.ndarray[Any, Any]
BYTES_PER_READ = 16 << 20
MAX_UNREADABLE = 4  # reads without any valid entry, after which the rest of the file is not looked at


def commit_dtype(lanes: int) -> np.dtype[Any]:
    """Return the dtype of an entry: the segment and places of an append's records and frames, and records per lane."""
    return np.dtype(
        [
            ("checksum", "<u4"),
            ("segment", "<u4"),
            ("number", "<u8"),
            ("row_begin", "<u4"),
            ("row_end", "<u4"),
            ("frame_begin", "<u4"),
            ("frame_end", "<u4"),
            ("next_episode", "<u4"),
            ("reserved", "<u4"),
            ("time", "<f8"),
            ("lane_rows", "<u4", (lanes,)),
        ]
    )


def entry_checksums(entries: Array, binding: Binding, first: int) -> Array:
    """Return the checksums of consecutive entries, of which the first has the number `first`."""
    return record_checksums(entries, binding, "commit", consecutive_places(0, first, len(entries)))


@dataclass(frozen=True)
class CommitLog:
    """The longest valid prefix of a commit log.

    `rebuilt`  entries whose checksum failed, rebuilt from their neighbours and the records
    `lost`     readable entries that follow unreadable ones, or contradict those before: not in the prefix
    `tail`     bytes after all readable entries: an append that was never acknowledged
    `problem`  the reason for `lost`
    """

    entries: Array
    rebuilt: list[int]
    lost: int
    tail: int
    problem: str = ""


def read_log(stream: StreamFolder, schema: Schema, first: int = 0) -> CommitLog:
    """Read the log from entry `first` on, and validate every number of it against every other."""
    begin = max(first - 1, 0)  # with the entry before, which the next one must continue
    entries, good, nbytes = _read_entries(stream, begin)
    readable = int(np.flatnonzero(good)[-1]) + 1 if good.any() else 0
    tail = nbytes - readable * entries.itemsize
    rebuilt: list[int] = []
    valid, problem = readable, ""
    for k in np.flatnonzero(~good[:readable]).tolist():
        if not good[k + 1] or not _rebuild(entries, k, begin, stream, schema):
            valid, problem = k, f"entry {begin + k} is damaged"
            break
        rebuilt.append(begin + k)
    k = first_contradiction(entries[:valid], schema, whole=begin == 0)
    if k < valid:
        valid, problem = k, f"entry {begin + k} contradicts the one before it, or the schema"
    done = entries[first - begin : valid]
    return CommitLog(done, [number for number in rebuilt if number >= first], readable - valid, tail, problem)


def _read_entries(stream: StreamFolder, begin: int) -> tuple[Array, Array, int]:
    """Return all whole entries from number `begin` on, whether each is valid, and the bytes of the file from there on."""
    dtype = commit_dtype(stream.lanes)
    try:
        file = DiskFile(stream.commits, os.O_RDONLY)
    except FileNotFoundError:
        return np.empty(0, dtype), np.empty(0, bool), 0
    try:
        nbytes = max(file.size - begin * dtype.itemsize, 0)
        parts: list[Array] = []
        valid: list[Array] = []
        number, unreadable = begin, 0
        per_read = max(BYTES_PER_READ // dtype.itemsize, 1)
        while unreadable < MAX_UNREADABLE:
            data = file.read(number * dtype.itemsize, per_read * dtype.itemsize)
            part = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
            if not len(part):
                break
            good = entry_checksums(part, stream.binding, number) == part["checksum"]
            good &= part["number"] == np.arange(number, number + len(part), dtype=np.uint64)
            unreadable = 0 if good.any() else unreadable + 1
            parts.append(part)
            valid.append(good)
            number += len(part)
    finally:
        file.close()
    if not parts:
        return np.empty(0, dtype), np.empty(0, bool), nbytes
    return np.concatenate(parts), np.concatenate(valid), nbytes


def first_contradiction(entries: Array, schema: Schema, *, whole: bool) -> int:
    """Return the number of entries that fit together and to the schema. `whole`: the first one begins the log."""
    if not len(entries):
        return 0
    segment, row_begin, row_end, frame_begin, frame_end, episode = (
        entries[name].astype(np.int64)
        for name in ("segment", "row_begin", "row_end", "frame_begin", "frame_end", "next_episode")
    )
    fits = row_end - row_begin == entries["lane_rows"].sum(axis=1, dtype=np.int64)
    fits &= row_end * schema.record.itemsize <= MAX_SEGMENT_BYTES + MAX_APPEND_BYTES
    fits &= frame_end >= frame_begin
    if not schema.compressed:
        fits &= frame_end == 0
    begins = (row_begin == 0) & (frame_begin == 0)
    follows = (row_begin[1:] == row_end[:-1]) & (frame_begin[1:] == frame_end[:-1]) & (segment[1:] == segment[:-1])
    fits[1:] &= (follows | (begins[1:] & (segment[1:] > segment[:-1]))) & (episode[1:] >= episode[:-1])
    if whole:
        fits[0] &= begins[0]
    return len(entries) if fits.all() else int(np.argmin(fits))


def _rebuild(entries: Array, k: int, begin: int, stream: StreamFolder, schema: Schema) -> bool:
    """Rebuild entry k from the ones before and after it and the lanes of the records between; False if impossible."""
    if k == 0 and begin > 0:
        return False  # the entry before is not in `entries`; the caller reads the whole log again
    after = entries[k + 1]
    ends_segment = after["row_begin"] == 0
    segment = int(after["segment"]) - int(ends_segment)
    row, frame_begin = 0, 0
    if k > 0 and int(entries[k - 1]["segment"]) == segment:
        row, frame_begin = int(entries[k - 1]["row_end"]), int(entries[k - 1]["frame_end"])
    count = -1 if ends_segment else int(after["row_begin"]) - row
    if segment < 0 or (count < 0 and not ends_segment):
        return False
    entry: Any = np.zeros((), entries.dtype)
    entry["segment"], entry["number"] = segment, begin + k
    entry["next_episode"], entry["time"] = after["next_episode"], after["time"]
    entry["row_begin"], entry["frame_begin"] = row, frame_begin
    try:
        records = read_steps(stream, schema, segment, row, count)
    except FileNotFoundError:  # dropped: its records are not needed, and only the chain of entries matters
        entry["row_end"] = max(row + count, row)
        entry["frame_end"] = frame_begin if ends_segment else after["frame_begin"]
        entry["lane_rows"][0] = entry["row_end"] - row
        entries[k] = entry
        return True
    places = consecutive_places(segment, row, len(records))
    matches = record_checksums(records, stream.binding, "steps", places) == records["checksum"]
    if ends_segment:  # after a rollback or a crash the file may hold more: take what is valid
        records = records[: len(records) if matches.all() else int(np.argmin(matches))]
    elif len(records) < count or not matches.all():
        return False
    if np.any(records["lane"] >= stream.lanes):
        return False
    entry["row_end"] = row + len(records)
    entry["frame_end"] = records["frame_end"][-1] if len(records) else frame_begin
    entry["lane_rows"] = np.bincount(records["lane"], minlength=stream.lanes)
    entries[k] = entry
    return True


def read_steps(stream: StreamFolder, schema: Schema, segment: int, begin: int, count: int = -1) -> Array:
    """Return `count` records of a segment from row `begin` on, all with -1; fewer if the file is shorter."""
    width = schema.record.itemsize
    file = DiskFile(stream.segment(segment, "steps"), os.O_RDONLY)
    try:
        most = max(file.size // width - begin, 0)
        data = file.read(begin * width, (most if count < 0 else min(count, most)) * width)
    finally:
        file.close()
    return np.frombuffer(data, schema.record)

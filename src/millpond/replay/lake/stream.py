"""A reader's view of one stream: five bytes a row, the runs of each append, and where the segments lie."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from millpond.replay.lake.codec import chunk_positions, row_checksums
from millpond.replay.lake.format import StreamFolder, acknowledged, read_log
from millpond.replay.schema import DAMAGED, FRAME_HEADER_BYTES, Schema
from millpond.replay.walk import count_transitions

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Segment:
    """A segment as this reader sees it. `begin` is its first row, counted over the rows that the stream still has."""

    number: int
    codec: str
    begin: int
    rows: int = 0
    frame_bytes: int = 0


@dataclass(frozen=True)
class View:
    """A stream at one moment; it stays as it is while the reader follows the writer.

    flags      u1[rows]   what kind of row, see the schema
    position   u4[rows]   lz4: where the row's frames end in its segment; zst: where its chunk begins
    run_begin  i8[runs+1] first row of each run, see `walk`
    """

    folder: StreamFolder
    flags: Array
    position: Array
    run_begin: Array
    segments: tuple[Segment, ...]
    segment_begin: Array
    counts: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.flags)

    @property
    def lanes(self) -> int:
        return self.folder.lanes

    def transitions(self, stack: int = 1, n_step: int = 1) -> int:
        """How many valid transitions there are."""
        key = (stack, n_step)
        if key not in self.counts:
            self.counts[key] = int(count_transitions(self.flags, self.run_begin, self.lanes, stack, n_step))
        return self.counts[key]

    def segment_of(self, rows: Array) -> Array:
        """Which of `segments` holds each row."""
        return np.searchsorted(self.segment_begin, rows, side="right") - 1

    @cached_property
    def steps_files(self) -> list[Path]:
        return [self.folder.segment(each.number, "steps") for each in self.segments]

    @cached_property
    def frames_files(self) -> list[Path]:
        """The segments' frames, whatever their codec."""
        return [self.folder.segment(each.number, each.codec) for each in self.segments]

    @cached_property
    def compacted(self) -> Array:
        """bool[segments]"""
        return np.array([each.codec == "zst" for each in self.segments], bool)

    @cached_property
    def frame_bytes(self) -> Array:
        """i8[segments]: where the frames of each end."""
        return np.array([each.frame_bytes for each in self.segments], np.int64)


class StreamReader:
    """Follows one stream. Only what the writer has acknowledged is ever seen."""

    def __init__(self, folder: StreamFolder, schema: Schema) -> None:
        self.folder, self.schema, self.name = folder, schema, folder.name
        self.replayed = 0
        self._restart(0)
        self.refresh()

    def _restart(self, generation: int) -> None:
        self.generation, self.commits, self.lost_commits = generation, 0, 0
        self.rebuilt: list[int] = []
        self._segments: list[Segment] = []
        self._flags, self._position = Growing(np.uint8), Growing(np.uint32)
        self._run_begin = Growing(np.int64)
        self._run_begin.extend(np.zeros(1, np.int64))

    def refresh(self) -> bool:
        """See what was acknowledged since; True where anything changed."""
        head = acknowledged(self.folder, 0)[1]
        generation = head.generation if head else 0
        restarted = generation != self.generation or self._compacted_since()
        if restarted:
            self._restart(generation)
        found = read_log(self.folder, self.schema, self.commits)
        if found.lost and self.commits:  # a fresh look has the entry before, from which a damaged one is rebuilt
            self._restart(generation)
            restarted, found = True, read_log(self.folder, self.schema)
        visible, head = acknowledged(self.folder, self.commits + len(found.entries))
        entries = found.entries[: visible - self.commits]
        self.lost_commits = found.lost
        self.rebuilt += [number for number in found.rebuilt if number < visible]
        self.commits += len(entries)
        numbers = self.folder.segments()
        first = max(head.first_segment if head else 0, numbers[0] if numbers else 0)
        entries = entries[entries["segment"] >= first]
        for number in np.unique(entries["segment"]).tolist():
            self._extend(number, entries[entries["segment"] == number])
        if restarted or len(entries) or self.commits == 0:
            begins = np.array([segment.begin for segment in self._segments], np.int64)
            arrays = (self._flags.values, self._position.values, self._run_begin.values)
            self.view = View(self.folder, *arrays, tuple(self._segments), begins)
        return restarted or len(entries) > 0

    def _compacted_since(self) -> bool:
        """Whether a segment that was read as lz4 has been compacted."""
        if not any(segment.codec == "lz4" for segment in self._segments):
            return False
        compacted = {int(path.stem) for path in self.folder.path.glob("*.zst") if path.stem.isdigit()}
        return any(segment.codec == "lz4" and segment.number in compacted for segment in self._segments)

    def _extend(self, number: int, entries: Array) -> None:
        """Take in appends of one segment."""
        if not self._segments or self._segments[-1].number != number:
            self._segments.append(Segment(number, self.folder.codec(number), len(self._flags.values)))
        segment = self._segments[-1]
        begin, end = segment.rows, int(entries["row_end"][-1])
        index = load_index(self.folder, number, segment.codec, self.schema, end) if begin == 0 else None
        if index is None:
            index = build_index(self.folder, number, segment.codec, self.schema, begin, end, segment.frame_bytes)
        self._flags.extend(index.flags)
        self._position.extend(index.position)
        lane_rows = entries["lane_rows"].reshape(-1)
        self._run_begin.extend(segment.begin + begin + np.cumsum(lane_rows, dtype=np.int64))
        self._segments[-1] = replace(segment, rows=end, frame_bytes=int(entries["frame_end"][-1]))


# -- The index of a whole segment: what a reader keeps in memory of each row, five bytes.
#
#     header     magic, codec, rows, crc32c of what follows
#     flags      u1[rows]
#     position   u4[rows]     lz4: where the row's frames end; zst: where the chunk that holds them begins
#
# It can always be built again from the records and frames, and is, where it is missing or does not match.

INDEX_HEADER = struct.Struct("<8s4sQI")
INDEX_MAGIC = b"millindx"


@dataclass(frozen=True)
class SegmentIndex:
    flags: Array
    position: Array


def write_index(stream: StreamFolder, number: int, schema: Schema, rows: int) -> None:
    """Keep the index of a segment that is complete."""
    codec = stream.codec(number)
    index = build_index(stream, number, codec, schema, 0, rows, 0)
    if np.any(index.flags == DAMAGED):
        return  # better none than one that hides what is wrong
    body = index.flags.tobytes() + index.position.astype("<u4").tobytes()
    header = INDEX_HEADER.pack(INDEX_MAGIC, codec.encode(), rows, google_crc32c.value(body))
    path = stream.segment(number, "index")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(header + body)
        os.replace(temporary, path)
    except OSError:  # no space: readers build it themselves
        temporary.unlink(missing_ok=True)


def load_index(stream: StreamFolder, number: int, codec: str, schema: Schema, rows: int) -> SegmentIndex | None:
    """The index from its file; None where that is missing, damaged, or of another state of the segment."""
    try:
        data = stream.segment(number, "index").read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < INDEX_HEADER.size:
        return None
    magic, kind, count, checksum = INDEX_HEADER.unpack_from(data)
    body = data[INDEX_HEADER.size :]
    positions = count if schema.compressed else 0
    if (
        magic != INDEX_MAGIC
        or kind.rstrip(b"\0") != codec.encode()
        or count != rows
        or len(body) != count + 4 * positions
    ):
        return None
    if google_crc32c.value(body) != checksum:
        return None
    return SegmentIndex(np.frombuffer(body, np.uint8, count), np.frombuffer(body, "<u4", positions, count))


def build_index(
    stream: StreamFolder, number: int, codec: str, schema: Schema, begin: int, end: int, frame_begin: int
) -> SegmentIndex:
    """The index of rows `begin` to `end` from their records, whose checksums are compared; bad ones are `DAMAGED`."""
    width = schema.record.itemsize
    records = np.fromfile(stream.segment(number, "steps"), schema.record, count=end - begin, offset=begin * width)
    if len(records) < end - begin:
        records = np.concatenate([records, np.zeros(end - begin - len(records), schema.record)])
    damaged = row_checksums(records) != records["checksum"]
    flags = np.where(damaged, np.uint8(DAMAGED), records["flags"])
    if not schema.compressed:
        return SegmentIndex(flags, np.empty(0, np.uint32))
    if codec == "zst":
        return SegmentIndex(flags, chunk_positions(stream.segment(number, "zst"), end)[begin:])
    ends = records["frame_end"].copy()
    for row in np.flatnonzero(damaged).tolist():
        ends[row] = _frame_end(stream, number, schema, int(ends[row - 1]) if row else frame_begin)
    return SegmentIndex(flags, ends)


def _frame_end(stream: StreamFolder, number: int, schema: Schema, begin: int) -> int:
    """Where a row's frames end, from their own headers."""
    with open(stream.segment(number, "lz4"), "rb") as file:
        for _ in schema.compressed:
            file.seek(begin)
            header = file.read(FRAME_HEADER_BYTES)
            if len(header) < FRAME_HEADER_BYTES:
                return begin
            begin += FRAME_HEADER_BYTES + int.from_bytes(header[:4], "little")
    return min(begin, 2**32 - 1)


# -- A one-dimensional array that grows: appended to in place, copied only when its room is used up.


class Growing:
    def __init__(self, dtype: Any) -> None:
        self._room = np.empty(0, dtype)
        self._length = 0

    @property
    def values(self) -> Array:
        return self._room[: self._length]

    def extend(self, values: Array) -> None:
        needed = self._length + len(values)
        if needed > len(self._room):
            # A quarter more than is needed; what is not used of it is never touched, and takes no memory.
            room = np.empty(needed + needed // 4, self._room.dtype)
            room[: self._length] = self.values
            self._room = room
        self._room[self._length : needed] = values
        self._length = needed

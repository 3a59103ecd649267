"""A reader's view of one stream: five bytes per record, the runs of each append, and the segments.

The index of a complete segment has the five bytes per record that a reader keeps in memory:

    header     magic, codec, rows, crc32c of what follows
    flags      u1[rows]
    position   u4[rows]     lz4: where the record's frames end; zst: where the chunk that holds them begins

It can always be rebuilt from the records and frames, and is, if it is missing or does not match.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from millpond.replay.lake.codec import chunk_positions, record_checksums
from millpond.replay.lake.format import StreamFolder, acknowledged, read_log
from millpond.replay.schema import DAMAGED, FRAME_HEADER_BYTES, Schema
from millpond.replay.transitions import count_transitions

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Segment:
    """A segment as a reader sees it. `begin` is its first record, counted over the records that the stream still has."""

    number: int
    codec: str
    begin: int
    num_records: int = 0
    frame_bytes: int = 0


@dataclass(frozen=True)
class View:
    """A stream at one moment; it does not change while the reader follows the writer.

    flags      u1[records]  see the schema
    position   u4[records]  lz4: where the record's frames end in its segment; zst: where its chunk begins
    run_begin  i8[runs+1]   first record of each run, see `walk`
    """

    folder: StreamFolder
    flags: Array
    position: Array
    run_begin: Array
    segments: tuple[Segment, ...]
    segment_begin: Array
    counts: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        return len(self.flags)

    @property
    def lanes(self) -> int:
        return self.folder.lanes

    def transitions(self, stack: int = 1, n_step: int = 1) -> int:
        """Return the number of valid transitions."""
        key = (stack, n_step)
        if key not in self.counts:
            self.counts[key] = int(count_transitions(self.flags, self.run_begin, self.lanes, stack, n_step))
        return self.counts[key]

    def segment_of(self, numbers: Array) -> Array:
        """Return the index in `segments` for each of these record numbers."""
        return np.searchsorted(self.segment_begin, numbers, side="right") - 1

    @cached_property
    def steps_files(self) -> list[Path]:
        return [self.folder.segment(each.number, "steps") for each in self.segments]

    @cached_property
    def frames_files(self) -> list[Path]:
        """Files of the segments' frames, of either codec."""
        return [self.folder.segment(each.number, each.codec) for each in self.segments]

    @cached_property
    def compacted(self) -> Array:
        """bool[segments]: compacted to zstd."""
        return np.array([each.codec == "zst" for each in self.segments], bool)

    @cached_property
    def frame_bytes(self) -> Array:
        """i8[segments]: where the frames of each segment end."""
        return np.array([each.frame_bytes for each in self.segments], np.int64)


class GrowingArray:
    """A one-dimensional array that is appended to in place, and copied only when its capacity is used up."""

    def __init__(self, dtype: Any) -> None:
        self._allocated = np.empty(0, dtype)
        self._length = 0

    @property
    def values(self) -> Array:
        return self._allocated[: self._length]

    def extend(self, values: Array) -> None:
        needed = self._length + len(values)
        if needed > len(self._allocated):
            # A quarter more than needed; the unused part is never touched, and takes no memory.
            larger = np.empty(needed + needed // 4, self._allocated.dtype)
            larger[: self._length] = self.values
            self._allocated = larger
        self._allocated[self._length : needed] = values
        self._length = needed


class StreamReader:
    """Follows one stream. Only acknowledged appends are ever seen."""

    def __init__(self, folder: StreamFolder, schema: Schema) -> None:
        self.folder, self.schema, self.name = folder, schema, folder.name
        self.replayed = 0
        self._restart(0)
        self.refresh()

    def _restart(self, generation: int) -> None:
        self.generation, self.commits, self.lost_commits = generation, 0, 0
        self.rebuilt: list[int] = []
        self._segments: list[Segment] = []
        self._flags, self._position = GrowingArray(np.uint8), GrowingArray(np.uint32)
        self._run_begin = GrowingArray(np.int64)
        self._run_begin.extend(np.zeros(1, np.int64))

    def refresh(self) -> bool:
        """Read what was acknowledged since the last call; return True if anything changed."""
        head = acknowledged(self.folder, 0)[1]
        generation = head.generation if head else 0
        restarted = generation != self.generation or self._compacted_since()
        if restarted:
            self._restart(generation)
        log = read_log(self.folder, self.schema, self.commits)
        if log.lost and self.commits:  # a damaged entry is rebuilt from the one before it: read the whole log
            self._restart(generation)
            restarted, log = True, read_log(self.folder, self.schema)
        visible, head = acknowledged(self.folder, self.commits + len(log.entries))
        entries = log.entries[: visible - self.commits]
        self.lost_commits = log.lost
        self.rebuilt += [number for number in log.rebuilt if number < visible]
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
        """Return True if a segment that was read as lz4 has been compacted."""
        if not any(segment.codec == "lz4" for segment in self._segments):
            return False
        compacted = {int(path.stem) for path in self.folder.path.glob("*.zst") if path.stem.isdigit()}
        return any(segment.codec == "lz4" and segment.number in compacted for segment in self._segments)

    def _extend(self, number: int, entries: Array) -> None:
        """Add appends of one segment to the view."""
        if not self._segments or self._segments[-1].number != number:
            self._segments.append(Segment(number, self.folder.codec(number), len(self._flags.values)))
        segment = self._segments[-1]
        begin, end = segment.num_records, int(entries["row_end"][-1])
        index = load_index(self.folder, number, segment.codec, self.schema, end) if begin == 0 else None
        if index is None:
            index = build_index(self.folder, number, segment.codec, self.schema, begin, end, segment.frame_bytes)
        self._flags.extend(index.flags)
        self._position.extend(index.position)
        lane_rows = entries["lane_rows"].reshape(-1)
        self._run_begin.extend(segment.begin + begin + np.cumsum(lane_rows, dtype=np.int64))
        self._segments[-1] = replace(segment, num_records=end, frame_bytes=int(entries["frame_end"][-1]))


# -- the index of a complete segment

INDEX_HEADER = struct.Struct("<8s4sQI")
INDEX_MAGIC = b"millindx"


@dataclass(frozen=True)
class SegmentIndex:
    """`position` is empty if the schema has no compressed fields."""

    flags: Array
    position: Array


def write_index(stream: StreamFolder, number: int, schema: Schema, num_records: int) -> None:
    """Write the index of a complete segment."""
    codec = stream.codec(number)
    index = build_index(stream, number, codec, schema, 0, num_records, 0)
    if np.any(index.flags == DAMAGED):
        return  # an index would hide the damage
    body = index.flags.tobytes() + index.position.astype("<u4").tobytes()
    header = INDEX_HEADER.pack(INDEX_MAGIC, codec.encode(), num_records, google_crc32c.value(body))
    path = stream.segment(number, "index")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(header + body)
        os.replace(temporary, path)
    except OSError:  # no space: readers build it in memory
        temporary.unlink(missing_ok=True)


def load_index(stream: StreamFolder, number: int, codec: str, schema: Schema, num_records: int) -> SegmentIndex | None:
    """Read the index from its file; None if that is missing, damaged, or of another state of the segment."""
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
        or count != num_records
        or len(body) != count + 4 * positions
    ):
        return None
    if google_crc32c.value(body) != checksum:
        return None
    return SegmentIndex(np.frombuffer(body, np.uint8, count), np.frombuffer(body, "<u4", positions, count))


def build_index(
    stream: StreamFolder, number: int, codec: str, schema: Schema, begin: int, end: int, frame_begin: int
) -> SegmentIndex:
    """Build the index of records `begin` to `end`; those that do not match their checksums are `DAMAGED`."""
    width = schema.record.itemsize
    records = np.fromfile(stream.segment(number, "steps"), schema.record, count=end - begin, offset=begin * width)
    if len(records) < end - begin:
        records = np.concatenate([records, np.zeros(end - begin - len(records), schema.record)])
    damaged = record_checksums(records) != records["checksum"]
    flags = np.where(damaged, np.uint8(DAMAGED), records["flags"])
    if not schema.compressed:
        return SegmentIndex(flags, np.empty(0, np.uint32))
    if codec == "zst":
        return SegmentIndex(flags, chunk_positions(stream.segment(number, "zst"), end)[begin:])
    ends = records["frame_end"].copy()
    for k in np.flatnonzero(damaged).tolist():
        ends[k] = _frame_end(stream, number, schema, int(ends[k - 1]) if k else frame_begin)
    return SegmentIndex(flags, ends)


def _frame_end(stream: StreamFolder, number: int, schema: Schema, begin: int) -> int:
    """Return where a record's frames end, from the frames' headers."""
    with open(stream.segment(number, "lz4"), "rb") as file:
        for _ in schema.compressed:
            file.seek(begin)
            header = file.read(FRAME_HEADER_BYTES)
            if len(header) < FRAME_HEADER_BYTES:
                return begin
            begin += FRAME_HEADER_BYTES + int.from_bytes(header[:4], "little")
    return min(begin, 2**32 - 1)

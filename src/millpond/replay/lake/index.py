"""The index of a complete segment: the five bytes per record that a reader keeps in memory.

    header     magic, codec, rows, crc32c of what follows (version 2: and of codec and rows, at the segment)
    flags      u1[rows]
    position   u4[rows]     lz4: where the record's frames end; zst: where the chunk that holds them begins

It can always be rebuilt from the records and frames, and is, if it is missing or does not match.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.durable import DiskFile, read_file, replace_file
from millpond.replay.lake.checksum import consecutive_places, record_checksums
from millpond.replay.lake.codec import chunk_positions
from millpond.replay.lake.format import StreamFolder
from millpond.replay.lake.log import read_steps
from millpond.replay.schema import DAMAGED, FRAME_HEADER_BYTES, STORED_FLAGS, Schema

Array = np.ndarray[Any, Any]
INDEX_HEADER = struct.Struct("<8s4sQI")
INDEX_MAGIC = b"millindx"
RECORDS_PER_READ = 1 << 16


@dataclass(frozen=True)
class SegmentIndex:
    """`position` is empty if the schema has no compressed fields."""

    flags: Array
    position: Array


def write_index(stream: StreamFolder, number: int, schema: Schema, num_records: int) -> None:
    """Write the index of a complete segment."""
    codec = stream.codec(number)
    index = build_index(stream, number, codec, schema, 0, num_records, 0)
    if np.any(index.flags & DAMAGED):
        return  # an index would hide the damage
    body = index.flags.tobytes() + index.position.astype("<u4").tobytes()
    header = INDEX_HEADER.pack(
        INDEX_MAGIC, codec.encode(), num_records, _checksum(stream, number, codec, num_records, body)
    )
    try:
        replace_file(stream.segment(number, "index"), header + body)
    except OSError:  # no space: readers build it in memory
        return


def _checksum(stream: StreamFolder, number: int, codec: str, num_records: int, body: bytes) -> int:
    covered = struct.pack("<4sQ", codec.encode(), num_records) + body if stream.binding else body
    return stream.binding.checksum(covered, "index", number)


def load_index(stream: StreamFolder, number: int, codec: str, schema: Schema, num_records: int) -> SegmentIndex | None:
    """Read the index from its file; None if that is missing, damaged, or of another state of the segment."""
    positions = num_records if schema.compressed else 0
    nbytes = INDEX_HEADER.size + num_records + 4 * positions
    try:
        data = read_file(stream.segment(number, "index"), nbytes)
    except OSError:
        return None
    if len(data) != nbytes:
        return None
    magic, kind, count, checksum = INDEX_HEADER.unpack_from(data)
    body = data[INDEX_HEADER.size :]
    if magic != INDEX_MAGIC or kind.rstrip(b"\0") != codec.encode() or count != num_records:
        return None
    if _checksum(stream, number, codec, num_records, body) != checksum:
        return None
    index = SegmentIndex(np.frombuffer(body, np.uint8, count), np.frombuffer(body, "<u4", positions, count))
    return None if np.any(index.flags & ~np.uint8(STORED_FLAGS)) else index


def build_index(
    stream: StreamFolder, number: int, codec: str, schema: Schema, begin: int, end: int, frame_begin: int
) -> SegmentIndex:
    """Build the index of records `begin` to `end`; those that do not match their checksums are `DAMAGED`."""
    flags, ends = np.empty(end - begin, np.uint8), np.zeros(end - begin, np.uint32)
    for at in range(begin, end, RECORDS_PER_READ):
        count = min(RECORDS_PER_READ, end - at)
        records = read_steps(stream, schema, number, at, count)
        if len(records) < count:
            records = np.concatenate([records, np.zeros(count - len(records), schema.record)])
        places = consecutive_places(number, at, count)
        bad = record_checksums(records, stream.binding, "steps", places) != records["checksum"]
        bad |= (records["flags"] & ~np.uint8(STORED_FLAGS)) > 0
        flags[at - begin : at - begin + count] = np.where(bad, np.uint8(DAMAGED), records["flags"])
        ends[at - begin : at - begin + count] = records["frame_end"]
    if not schema.compressed:
        return SegmentIndex(flags, np.empty(0, np.uint32))
    if codec == "zst":
        return SegmentIndex(flags, _chunk_positions(stream, number, schema, end)[begin:])
    for k in np.flatnonzero(flags & DAMAGED).tolist():
        ends[k] = _frame_end(stream, number, schema, int(ends[k - 1]) if k else frame_begin)
    return SegmentIndex(flags, ends)


def _chunk_positions(stream: StreamFolder, number: int, schema: Schema, end: int) -> Array:
    file = DiskFile(stream.segment(number, "zst"), os.O_RDONLY)
    try:
        if file.size == 0:
            return chunk_positions(np.empty(0, np.uint8), end, schema.frame_bytes)
        with mmap.mmap(file.fd, file.size, access=mmap.ACCESS_READ) as mapped:
            data = np.frombuffer(mapped, np.uint8)
            positions = chunk_positions(data, end, schema.frame_bytes)
            del data  # a map cannot be closed while an array refers to it
            return positions
    finally:
        file.close()


def _frame_end(stream: StreamFolder, number: int, schema: Schema, begin: int) -> int:
    """Return where a record's frames end, from the frames' headers."""
    file = DiskFile(stream.segment(number, "lz4"), os.O_RDONLY)
    try:
        for _ in schema.compressed:
            header = file.read(begin, FRAME_HEADER_BYTES)
            if len(header) < FRAME_HEADER_BYTES:
                return begin
            begin += FRAME_HEADER_BYTES + int.from_bytes(header[:4], "little")
    finally:
        file.close()
    return min(begin, 2**32 - 1)

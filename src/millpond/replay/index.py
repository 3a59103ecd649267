"""The index of a whole segment: what a reader keeps in memory of each row, five bytes.

    header     magic, codec, rows, crc32c of what follows
    flags      u1[rows]
    position   u4[rows]     lz4: where the row's frames end; zst: where the chunk that holds them begins

It can always be built again from the records and frames, and is, where it is missing or does not match.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np

from millpond.replay.checksum import row_checksums
from millpond.replay.layout import StreamFolder
from millpond.replay.schema import Schema
from millpond.replay.widths import FRAME_HEADER_BYTES
from millpond.replay.zst_chunks import chunk_positions

Array = np.ndarray[Any, Any]
HEADER = struct.Struct("<8s4sQI")
MAGIC = b"millindx"
DAMAGED = 128  # a flag in memory only: the row's record does not match its checksum


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
    header = HEADER.pack(MAGIC, codec.encode(), rows, google_crc32c.value(body))
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
    if len(data) < HEADER.size:
        return None
    magic, kind, count, checksum = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    positions = count if schema.compressed else 0
    if magic != MAGIC or kind.rstrip(b"\0") != codec.encode() or count != rows or len(body) != count + 4 * positions:
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

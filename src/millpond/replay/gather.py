"""From row numbers to records and frames: which bytes to read, read them, check them, decode them.

# n rows asked for (NO_ROW: zeros)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.replay.checksum import row_checksums
from millpond.replay.compiled import compiled
from millpond.replay.faults import LakeDamaged
from millpond.replay.lz4_frames import GOOD, WORDS_FOR, decode_rows
from millpond.replay.reading import SpanReader
from millpond.replay.schema import Schema
from millpond.replay.stream import View
from millpond.replay.walk import NO_ROW
from millpond.replay.zst_chunks import CHUNK_HEADER, NOWHERE, decode_chunk

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Damage:
    """Something on disk that does not match its checksum."""

    file: str
    row: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}: {self.what}"


@compiled
def _spans(rows: Any, segment: Any, slots: Any, first: Any) -> Any:
    """Mark where a span begins: wherever a row does not follow the one before it, on disk and in the result."""
    count = 0
    for i in range(len(rows)):
        if i == 0 or rows[i] != rows[i - 1] + 1 or segment[i] != segment[i - 1] or slots[i] != slots[i - 1] + 1:
            first[count] = i
            count += 1
    return count


def _span_starts(rows: Array, segment: Array, slots: Array) -> tuple[Array, Array]:
    """First and last entry of each span."""
    first = np.empty(len(rows), np.int64)
    first = first[: _spans(rows, segment, slots, first)]
    return first, np.append(first[1:], len(rows)) - 1


def read_records(view: View, schema: Schema, reader: SpanReader, rows: Array) -> tuple[Array, list[tuple[int, Damage]]]:
    """Records of `rows` [n], zeros for NO_ROW; and what is damaged, by place in `rows`."""
    records = np.zeros(len(rows), schema.record)
    slots = np.flatnonzero(rows != NO_ROW)
    if not len(slots):
        return records, []
    wanted = rows[slots]
    segment = view.segment_of(wanted)
    first, last = _span_starts(wanted, segment, slots)
    width = schema.record.itemsize
    offset = (wanted[first] - view.segment_begin[segment[first]]) * width
    buffer = records.view(np.uint8).data
    reader.read(view.steps_files, segment[first], offset, (last - first + 1) * width, slots[first] * width, buffer)
    # A padding of zeros does not match the checksum of zeros: compare only what was read.
    bad = slots[(row_checksums(records) != records["checksum"])[slots]]
    return records, [(int(i), _damage(view, int(rows[i]), "steps", "checksum does not match")) for i in bad]


def _damage(view: View, row: int, kind: str, what: str) -> Damage:
    segment = int(view.segment_of(np.array([row]))[0])
    files = view.steps_files if kind == "steps" else view.frames_files
    return Damage(str(files[segment]), row - int(view.segment_begin[segment]), what)


def read_frames(
    view: View, schema: Schema, reader: SpanReader, rows: Array, slots: Array, targets: dict[str, Array]
) -> list[tuple[int, Damage]]:
    """Decode the frames of `rows` into `targets[field][slots]`, flat byte arrays; NO_ROW gives zeros.

    Returns what is damaged, by place in `rows`.
    """
    there = rows != NO_ROW
    entries = np.flatnonzero(there)
    if len(entries) < len(rows):
        for field in schema.compressed:
            if field.name in targets:
                targets[field.name].reshape(-1, field.nbytes)[slots[~there]] = 0
    segment = view.segment_of(rows[entries])
    compacted = view.compacted[segment]
    damaged: list[tuple[int, Damage]] = []
    if not compacted.all():
        damaged += _read_lz4(view, schema, reader, rows, slots, targets, entries[~compacted], segment[~compacted])
    if compacted.any():
        damaged += _read_zst(view, schema, reader, rows, slots, targets, entries[compacted], segment[compacted])
    return damaged


def _read_lz4(
    view: View,
    schema: Schema,
    reader: SpanReader,
    rows: Array,
    slots: Array,
    targets: dict[str, Array],
    entries: Array,
    segment: Array,
) -> list[tuple[int, Damage]]:
    wanted = rows[entries]
    ends = view.position[wanted].astype(np.int64)
    begins = np.where(wanted == view.segment_begin[segment], 0, view.position[wanted - 1]).astype(np.int64)
    limits = view.frame_bytes[segment]
    usable = (begins < ends) & (ends <= limits)  # what a damaged record says may be anything
    damaged = [
        (int(entries[i]), _damage(view, int(wanted[i]), "frames", WORDS_FOR[1])) for i in np.flatnonzero(~usable)
    ]
    if damaged:
        entries, segment, wanted, begins, ends = (a[usable] for a in (entries, segment, wanted, begins, ends))
    if not len(entries):
        return damaged
    first, last = _span_starts(wanted, segment, np.arange(len(entries)))
    nbytes = ends[last] - begins[first]
    place = np.cumsum(nbytes) - nbytes
    source = np.empty(int(nbytes.sum()), np.uint8)
    reader.read(view.frames_files, segment[first], begins[first], nbytes, place, source.data)
    shift = np.repeat(place - begins[first], last - first + 1)
    status = np.empty(len(entries), np.uint8)
    for number, field in enumerate(schema.compressed):
        if field.name in targets:
            flat = targets[field.name]
            decode_rows(source, begins + shift, ends + shift, slots[entries], flat, field.nbytes, number, status)
            bad = np.flatnonzero(status != GOOD).tolist()
            damaged += [(int(entries[i]), _damage(view, int(wanted[i]), "frames", WORDS_FOR[status[i]])) for i in bad]
    return damaged


def _read_zst(
    view: View,
    schema: Schema,
    reader: SpanReader,
    rows: Array,
    slots: Array,
    targets: dict[str, Array],
    entries: Array,
    segment: Array,
) -> list[tuple[int, Damage]]:
    """Each chunk is read and decompressed once, however many of its rows are wanted."""
    damaged: list[tuple[int, Damage]] = []
    row_bytes = sum(field.nbytes for field in schema.compressed)
    files = view.frames_files
    position = view.position[rows[entries]]
    keys = segment.astype(np.int64) << 32 | position
    for key in np.unique(keys).tolist():
        members = entries[keys == key]
        number, at = key >> 32, key & 0xFFFFFFFF
        try:
            held, frames = decode_chunk(_read_chunk(reader, files[number], at), row_bytes, f"{files[number]} at {at}")
            within = np.searchsorted(held, rows[members] - view.segment_begin[number])
            within = np.minimum(within, len(held) - 1)
            if not np.array_equal(held[within], rows[members] - view.segment_begin[number]):
                raise LakeDamaged(f"{files[number]} at {at}: the chunk does not hold the rows that it should")
        except LakeDamaged as error:
            damaged += [(int(i), _damage(view, int(rows[i]), "frames", str(error))) for i in members]
            continue
        begin = 0
        for field in schema.compressed:
            if field.name in targets:
                flat = targets[field.name].reshape(-1, field.nbytes)
                flat[slots[members]] = frames[within, begin : begin + field.nbytes]
            begin += field.nbytes
    return damaged


def _read_chunk(reader: SpanReader, path: Any, at: int) -> bytes:
    """The bytes of the chunk at a position."""
    if at == NOWHERE:
        raise LakeDamaged(f"{path}: no chunk holds the row")
    file = reader.open(path)
    header = os.pread(file.fd, CHUNK_HEADER.size, at)
    if len(header) < CHUNK_HEADER.size:
        raise LakeDamaged(f"{path} at {at}: the chunk is cut off")
    _, length, rows, _ = CHUNK_HEADER.unpack(header)
    rest = min(4 * rows + length, os.fstat(file.fd).st_size - at - CHUNK_HEADER.size)  # the numbers may be damaged
    return header + os.pread(file.fd, rest, at + CHUNK_HEADER.size)

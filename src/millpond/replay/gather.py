"""From row numbers to records and frames: which bytes to read, read them, check them, decode them.

# n rows asked for (NO_ROW: zeros)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.durable import read_at
from millpond.replay.checksum import row_checksums
from millpond.replay.faults import LakeDamaged
from millpond.replay.lz4_frames import CHUNKED, WORDS_FOR, decode_rows
from millpond.replay.reading import SpanReader
from millpond.replay.schema import Schema
from millpond.replay.spans import frame_spans, record_spans
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


def read_records(view: View, schema: Schema, reader: SpanReader, rows: Array) -> tuple[Array, list[tuple[int, Damage]]]:
    """Records of `rows` [n], zeros for NO_ROW; and what is damaged, by place in `rows`."""
    records = np.zeros(len(rows), schema.record)
    spans = record_spans(view, rows, schema.record.itemsize)
    if len(spans.segment):
        reader.read(view.steps_files, spans, records.view(np.uint8).data)
    bad = row_checksums(records) != records["checksum"]
    if not bad.any():
        return records, []
    # Zeros of NO_ROW do not match either, and are right all the same.
    places = np.flatnonzero(bad & (rows != NO_ROW)).tolist()
    return records, [(i, _damage(view, int(rows[i]), "steps", "checksum does not match")) for i in places]


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
    spans, state, begins, ends = frame_spans(view, rows)
    source = np.empty(int(spans.nbytes.sum()), np.uint8)
    if len(source):
        reader.read(view.frames_files, spans, source.data)
    damaged: list[tuple[int, Damage]] = []
    status = np.empty(len(rows), np.uint8)
    for number, field in enumerate(schema.compressed):
        if field.name in targets:
            flat = targets[field.name]
            decode_rows(source, begins, ends, state, slots, flat, field.nbytes, number, status)
            bad = np.flatnonzero(status).tolist() if status.any() else []
            damaged += [(i, _damage(view, int(rows[i]), "frames", WORDS_FOR[status[i]])) for i in bad]
    entries = np.flatnonzero(state == CHUNKED) if view.compacted.any() else ()
    if len(entries):
        damaged += _read_zst(view, schema, reader, rows, slots, targets, np.asarray(entries))
    return damaged


def _read_zst(
    view: View, schema: Schema, reader: SpanReader, rows: Array, slots: Array, targets: dict[str, Array], entries: Array
) -> list[tuple[int, Damage]]:
    """Each chunk is read and decompressed once, however many of its rows are wanted, several at the same time."""
    row_bytes = sum(field.nbytes for field in schema.compressed)
    segment = view.segment_of(rows[entries])
    wanted = rows[entries] - view.segment_begin[segment]
    keys = segment << 32 | view.position[rows[entries]].astype(np.int64)
    order = np.argsort(keys, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)

    def place(members: Array) -> list[tuple[int, Damage]]:
        file, at = view.frames_files[segment[members[0]]], int(keys[members[0]] & 0xFFFFFFFF)
        try:
            held, frames = decode_chunk(_read_chunk(reader, file, at), row_bytes, f"{file} at {at}")
            within = np.minimum(np.searchsorted(held, wanted[members]), len(held) - 1)
            if not np.array_equal(held[within], wanted[members]):
                raise LakeDamaged(f"{file} at {at}: the chunk does not hold the rows that it should")
        except LakeDamaged as error:
            return [(int(entries[m]), _damage(view, int(rows[entries[m]]), "frames", str(error))) for m in members]
        begin = 0
        for field in schema.compressed:
            if field.name in targets:
                flat = targets[field.name].reshape(-1, field.nbytes)
                flat[slots[entries[members]]] = frames[within, begin : begin + field.nbytes]
            begin += field.nbytes
        return []

    return [found for damage in reader.each(place, groups) for found in damage]


def _read_chunk(reader: SpanReader, path: Any, at: int) -> bytes:
    """The bytes of the chunk at a position."""
    if at == NOWHERE:
        raise LakeDamaged(f"{path}: no chunk holds the row")
    file = reader.open(path)
    header = bytearray(CHUNK_HEADER.size)
    if read_at(file.fd, memoryview(header), at) < CHUNK_HEADER.size:
        raise LakeDamaged(f"{path} at {at}: the chunk is cut off")
    _, length, rows, _ = CHUNK_HEADER.unpack(header)
    rest = min(4 * rows + length, os.fstat(file.fd).st_size - at - CHUNK_HEADER.size)  # the numbers may be damaged
    body = bytearray(max(rest, 0))
    count = read_at(file.fd, memoryview(body), at + CHUNK_HEADER.size)
    return bytes(header + body[:count])

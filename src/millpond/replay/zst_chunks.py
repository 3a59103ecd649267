"""Frames of a compacted segment: consecutive frames of one lane compressed together with zstd.

A chunk is

    magic   u4
    length  u4       bytes of the zstd frame
    rows    u4       how many rows it holds
    crc32c  u4       of the row numbers and the zstd frame
    row     u4[rows] which rows of the segment these are, ascending
    bytes            a zstd frame of rows x (all compressed fields, as they are)
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zstandard

from millpond.replay.faults import LakeDamaged

Array = np.ndarray[Any, Any]
CHUNK_HEADER = struct.Struct("<IIII")
MAGIC = 0x6B6E6863
LEVEL = 3
NOWHERE = 2**32 - 1


def encode_chunk(rows: Array, frames: Array) -> bytes:
    """`frames` is `[rows, bytes]`."""
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(np.ascontiguousarray(frames).tobytes())
    body = rows.astype("<u4").tobytes() + packed
    return CHUNK_HEADER.pack(MAGIC, len(packed), len(rows), google_crc32c.value(body)) + body


def decode_chunk(data: bytes | memoryview, row_bytes: int, what: str) -> tuple[Array, Array]:
    """Row numbers and frames `[rows, bytes]` of a whole chunk."""
    if len(data) < CHUNK_HEADER.size:
        raise LakeDamaged(f"{what}: the chunk is cut off")
    magic, length, rows, checksum = CHUNK_HEADER.unpack_from(data)
    body = bytes(data[CHUNK_HEADER.size : CHUNK_HEADER.size + 4 * rows + length])
    if magic != MAGIC or len(body) != 4 * rows + length or google_crc32c.value(body) != checksum:
        raise LakeDamaged(f"{what}: the chunk does not match its checksum")
    raw = zstandard.ZstdDecompressor().decompress(body[4 * rows :], max_output_size=rows * row_bytes)
    if len(raw) != rows * row_bytes:
        raise LakeDamaged(f"{what}: the chunk has {len(raw)} bytes of frames, not {rows} x {row_bytes}")
    return np.frombuffer(body, "<u4", rows), np.frombuffer(raw, np.uint8).reshape(rows, row_bytes)


def chunk_positions(path: Path, rows: int) -> Array:
    """For each row of a segment where its chunk begins, read from the chunks' headers; NOWHERE for those not found."""
    positions = np.full(rows, NOWHERE, np.uint32)
    data = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    at = 0
    while at + CHUNK_HEADER.size <= len(data):
        magic, length, count, _ = CHUNK_HEADER.unpack(bytes(data[at : at + CHUNK_HEADER.size]))
        if magic != MAGIC or at + CHUNK_HEADER.size + 4 * count + length > len(data):
            break
        begin = at + CHUNK_HEADER.size
        held = np.frombuffer(bytes(data[begin : begin + 4 * count]), "<u4")
        positions[held[held < rows]] = at
        at = begin + 4 * count + length
    return positions

"""CRC32C (Castagnoli) of many pieces of a buffer at once, without the GIL. The same values as google-crc32c's."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zstandard

from millpond.compiled import compiled
from millpond.replay.errors import LakeDamaged
from millpond.replay.lake.intrinsics import (
    HAS_CRC32C,
    Position,
    crc32c_word,
    load32,
    load64,
    lz4_compress,
    lz4_decompress,
    store32,
)
from millpond.replay.schema import FRAME_HEADER_BYTES

POLYNOMIAL = 0x82F63B78  # reflected
ONES = np.uint32(0xFFFFFFFF)


def _tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """tables[k, b]: what byte b contributes with k zero bytes behind it (slicing by eight)."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 255]
    return tables


TABLES = _tables()


@compiled
def words_by_table(data: Any, start: Any, words: Any, value: Any) -> Any:
    """Eight bytes at a time, on any processor."""
    for _ in range(words):
        word = load64(data, start) ^ np.uint64(value)
        value = np.uint32(0)
        for k in range(8):
            value ^= TABLES[7 - k, (word >> np.uint64(8 * k)) & np.uint64(255)]
        start += Position(8)
    return value


@compiled
def words_by_processor(data: Any, start: Any, words: Any, value: Any) -> Any:
    """Eight bytes at a time, with the instruction made for it."""
    wide = np.uint64(value)
    for _ in range(words):
        wide = crc32c_word(wide, load64(data, start))
        start += Position(8)
    return np.uint32(wide)


words_checksum = words_by_processor if HAS_CRC32C else words_by_table


@compiled
def range_checksum(data: Any, start: Any, end: Any) -> Any:
    """CRC32C of data[start:end]; both are positions inside the buffer."""
    words = (end - start) // Position(8)
    value = words_checksum(data, start, words, ONES)
    position = start + words * Position(8)
    while position < end:
        value = TABLES[0, (value ^ data[position]) & np.uint32(255)] ^ (value >> np.uint32(8))
        position += Position(1)
    return value ^ ONES


@compiled
def _row_checksums(data: Any, width: Any, skip: Any, out: Any) -> None:
    for row in range(len(out)):
        start = Position(row) * Position(width)
        out[row] = range_checksum(data, start + Position(skip), start + Position(width))


def row_checksums(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The checksum of each record, over all its bytes but the first four, which are the place of the checksum."""
    flat = np.ascontiguousarray(rows).reshape(-1)
    out = np.empty(len(flat), np.uint32)
    if len(flat):
        _row_checksums(flat.view(np.uint8), flat.dtype.itemsize, 4, out)
    return out


# -- Frames in the frames file: compressed one by one with lz4, many of them in one call that does not hold the GIL.
#
# A row's frames lie behind one another in the order of the schema, each as
#
#     length  u4    bytes that follow the two numbers
#     crc32c  u4    of those bytes
#     bytes         an lz4 block; the array itself where compression would not make it smaller
#
# A row whose bytes do not add up, or do not match their checksum, decodes to nothing: its status says so.

Array = np.ndarray[Any, Any]
# What is with the frames of a row that is to be decoded.
HERE, NOTHING, CHUNKED, UNUSABLE = 0, 1, 2, 3
# Status of a decoded frame.
GOOD, BAD_LENGTH, BAD_CHECKSUM, BAD_BLOCK = 0, 1, 2, 3
WORDS_FOR = ("good", "length that leads out of its row", "checksum does not match", "lz4 block does not decode")


def longest_block(width: int) -> int:
    """What lz4 may need in the worst case for `width` bytes (LZ4_COMPRESSBOUND)."""
    return width + width // 255 + 16


@compiled
def _encode_rows(order: Any, rows: Any, more: Any, widths: Any, out: Any, ends: Any) -> Any:
    at = Position(0)
    for k in range(len(order)):
        number, begin = order[k], 0
        source = rows[number] if number < len(rows) else more[number - len(rows)]
        for width in widths:
            body = at + Position(8)
            room = np.int32(width + width // 255 + 16)
            start = Position(source.ctypes.data) + Position(begin)
            length = lz4_compress(start, Position(out.ctypes.data) + body, np.int32(width), room)
            if length <= 0 or length >= width:
                out[body : body + Position(width)] = source[begin : begin + width]
                length = width
            stop = body + Position(length)
            store32(out, at, np.uint32(length))
            store32(out, at + Position(4), range_checksum(out, body, stop))
            at, begin = stop, begin + width
        ends[k] = at
    return at


def encode_rows(order: Array, rows: Array, more: Array, widths: list[int]) -> tuple[Array, Array]:
    """The bytes of rows `order`, and where each ends. `rows` and `more` are `[n, bytes]`; numbers go on into `more`.

    `widths` are the bytes of the frames that a row consists of.
    """
    room = len(order) * sum(longest_block(width) + FRAME_HEADER_BYTES for width in widths)
    out, ends = np.empty(room, np.uint8), np.empty(len(order), np.int64)
    return out[: _encode_rows(order, rows, more, np.array(widths), out, ends)], ends


@compiled
def decode_frame(source: Any, at: Any, end: Any, target: Any, to: Any, width: Any) -> Any:
    """The frame at source[at:end] with its header goes to target[to:][:width]. Returns a status."""
    if end - at < Position(8):
        return BAD_LENGTH
    length = Position(load32(source, at))
    checksum = load32(source, at + Position(4))
    at += Position(8)
    if length > end - at:
        return BAD_LENGTH
    stop = at + length
    if range_checksum(source, at, stop) != checksum:
        return BAD_CHECKSUM
    if length == width:
        target[to : to + width] = source[at:stop]
        return GOOD
    start, place = Position(source.ctypes.data) + at, Position(target.ctypes.data) + to
    if lz4_decompress(start, place, np.int32(length), np.int32(width)) != np.int32(width):
        return BAD_BLOCK
    return GOOD


@compiled
def decode_rows(
    source: Any, begins: Any, ends: Any, state: Any, slots: Any, target: Any, width: Any, skip: Any, status: Any
) -> None:
    """The frame number `skip` of many rows: source[begins[i]:ends[i]] goes to target[slots[i] * width:][:width].

    `state` says where there is nothing to decode: zeros then, or, for rows of compacted segments, nothing at all.
    """
    for i in range(len(begins)):
        to = Position(slots[i]) * Position(width)
        status[i] = GOOD
        if state[i] == HERE:
            at, end = Position(begins[i]), Position(ends[i])
            for _ in range(skip):
                if end - at >= Position(8) and Position(load32(source, at)) <= end - at - Position(8):
                    at += Position(8) + Position(load32(source, at))
                else:
                    at = end
            status[i] = decode_frame(source, at, end, target, to, Position(width))
        elif state[i] == NOTHING:
            target[to : to + Position(width)] = 0
        elif state[i] == UNUSABLE:
            status[i] = BAD_LENGTH


# -- Frames of a compacted segment: consecutive frames of one lane compressed together with zstd.
#
# A chunk is
#
#     magic   u4
#     length  u4       bytes of the zstd frame
#     rows    u4       how many rows it holds
#     crc32c  u4       of the row numbers and the zstd frame
#     row     u4[rows] which rows of the segment these are, ascending
#     bytes            a zstd frame of rows x (all compressed fields, as they are)

CHUNK_HEADER = struct.Struct("<IIII")
CHUNK_MAGIC = 0x6B6E6863
LEVEL = 3
NOWHERE = 2**32 - 1


def encode_chunk(rows: Array, frames: Array) -> bytes:
    """`frames` is `[rows, bytes]`."""
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(np.ascontiguousarray(frames).tobytes())
    body = rows.astype("<u4").tobytes() + packed
    return CHUNK_HEADER.pack(CHUNK_MAGIC, len(packed), len(rows), google_crc32c.value(body)) + body


def decode_chunk(data: bytes | memoryview, row_bytes: int, what: str) -> tuple[Array, Array]:
    """Row numbers and frames `[rows, bytes]` of a whole chunk."""
    if len(data) < CHUNK_HEADER.size:
        raise LakeDamaged(f"{what}: the chunk is cut off")
    magic, length, rows, checksum = CHUNK_HEADER.unpack_from(data)
    body = bytes(data[CHUNK_HEADER.size : CHUNK_HEADER.size + 4 * rows + length])
    if magic != CHUNK_MAGIC or len(body) != 4 * rows + length or google_crc32c.value(body) != checksum:
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
        if magic != CHUNK_MAGIC or at + CHUNK_HEADER.size + 4 * count + length > len(data):
            break
        begin = at + CHUNK_HEADER.size
        held = np.frombuffer(bytes(data[begin : begin + 4 * count]), "<u4")
        positions[held[held < rows]] = at
        at = begin + 4 * count + length
    return positions

"""Frames in the frames file: compressed one by one with lz4, many of them in one call that does not hold the GIL.

A row's frames lie behind one another in the order of the schema, each as

    length  u4    bytes that follow the two numbers
    crc32c  u4    of those bytes
    bytes         an lz4 block; the array itself where compression would not make it smaller

A row whose bytes do not add up, or do not match their checksum, decodes to nothing: its status says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millpond.compiled import compiled
from millpond.replay.checksum import range_checksum
from millpond.replay.memory import load32, lz4_compress, lz4_decompress, store32
from millpond.replay.position import Position
from millpond.replay.widths import FRAME_HEADER_BYTES

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

"""Frames in the frames file: written one by one with lz4, read back many at a time without the GIL.

A row's frames lie behind one another in the order of the schema, each as

    length  u4    bytes that follow the two numbers
    crc32c  u4    of those bytes
    bytes         an lz4 block; the array itself where compression would not make it smaller

A row whose bytes do not add up, or do not match their checksum, decodes to nothing: its status says so.
"""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import lz4.block
import numpy as np

from millpond.replay.checksum import range_checksum
from millpond.replay.compiled import Position, compiled
from millpond.replay.memory import copy16, copy32, fill16, load16, load32

FRAME_HEADER = struct.Struct("<II")
# Status of a decoded frame.
GOOD, BAD_LENGTH, BAD_CHECKSUM, BAD_BLOCK = 0, 1, 2, 3
WORDS_FOR = ("good", "length that leads out of its row", "checksum does not match", "lz4 block does not decode")


def encode_frame(frame: Any) -> bytes:
    """One array as it stands in the frames file."""
    block: bytes = lz4.block.compress(frame, store_size=False)
    if len(block) >= frame.nbytes:
        block = frame.tobytes()
    return FRAME_HEADER.pack(len(block), google_crc32c.value(block)) + block


@compiled
def _extended(source: Any, at: Any, end: Any, length: Any) -> Any:
    """A length of 15 or more goes on in further bytes, until one is not 255. Returns position 0 where they run out."""
    more = Position(255)
    while more == Position(255):
        if at >= end:
            return Position(0), length
        more = Position(source[at])
        at += Position(1)
        length += more
    return at, length


@compiled
def _copy_match(target: Any, to: Any, distance: Any, length: Any) -> None:
    """Repeat what stands `distance` before `to`; may write up to 31 bytes past the end of the match."""
    start, done = to - distance, Position(0)
    if distance >= Position(32):
        while done < length:
            copy32(target, to + done, target, start + done)
            done += Position(32)
    elif distance >= Position(16):
        while done < length:
            copy16(target, to + done, target, start + done)
            done += Position(16)
    elif distance == Position(1) or distance == Position(2) or distance == Position(4):
        if distance == Position(1):
            pattern = np.uint64(target[start]) * np.uint64(0x0101010101010101)
        elif distance == Position(2):
            pattern = np.uint64(load16(target, start)) * np.uint64(0x0001000100010001)
        else:
            pattern = np.uint64(load32(target, start)) * np.uint64(0x0000000100000001)
        while done < length:
            fill16(target, to + done, pattern)
            done += Position(16)
    else:
        for _ in range(length):
            target[to + done] = target[start + done]
            done += Position(1)


@compiled
def decode_block(source: Any, at: Any, end: Any, target: Any, to: Any, target_end: Any) -> Any:
    """One lz4 block, source[at:end], into exactly target[to:target_end]. False where it is not such a block.

    Never reads or writes outside those two ranges, whatever the bytes are: copies of 16 or 32 bytes at once are
    made only where there is room for all of them, and byte by byte near the ends.
    """
    begin = to
    room = Position(32)
    while at < end:
        token = Position(source[at])
        at += Position(1)
        length = token >> Position(4)
        if length == Position(15):
            at, length = _extended(source, at, end, length)
            if at == Position(0):
                return False
        if length > end - at or length > target_end - to:
            return False
        if length + room <= end - at and length + room <= target_end - to:
            copy16(target, to, source, at)
            done = Position(16)
            while done < length:
                copy16(target, to + done, source, at + done)
                done += Position(16)
        else:
            for k in range(length):
                target[to + Position(k)] = source[at + Position(k)]
        at += length
        to += length
        if end - at < Position(2):
            return at == end and to == target_end
        distance = Position(load16(source, at))
        at += Position(2)
        if distance == Position(0) or distance > to - begin:
            return False
        length = (token & Position(15)) + Position(4)
        if length == Position(19):
            at, length = _extended(source, at, end, length)
            if at == Position(0):
                return False
        if length > target_end - to:
            return False
        if length + room <= target_end - to:
            _copy_match(target, to, distance, length)
        else:
            for k in range(length):
                target[to + Position(k)] = target[to + Position(k) - distance]
        to += length
    return False


@compiled
def decode_frame(source: Any, at: Any, end: Any, target: Any, to: Any, target_end: Any) -> Any:
    """One frame with its header. Returns the position behind it and a status."""
    if end - at < Position(8):
        return end, BAD_LENGTH
    length = Position(load32(source, at))
    checksum = load32(source, at + Position(4))
    at += Position(8)
    if length > end - at:
        return end, BAD_LENGTH
    stop = at + length
    if range_checksum(source, at, stop) != checksum:
        return stop, BAD_CHECKSUM
    if length == target_end - to:
        target[to:target_end] = source[at:stop]
    elif not decode_block(source, at, stop, target, to, target_end):
        return stop, BAD_BLOCK
    return stop, GOOD


@compiled
def decode_rows(
    source: Any, begins: Any, ends: Any, slots: Any, target: Any, width: Any, skip: Any, status: Any
) -> None:
    """The frame number `skip` of many rows: source[begins[i]:ends[i]] goes to target[slots[i] * width:][:width]."""
    for i in range(len(begins)):
        at, end = Position(begins[i]), Position(ends[i])
        for _ in range(skip):
            if end - at >= Position(8) and Position(load32(source, at)) <= end - at - Position(8):
                at += Position(8) + Position(load32(source, at))
            else:
                at = end
        to = Position(slots[i]) * Position(width)
        at, status[i] = decode_frame(source, at, end, target, to, to + Position(width))

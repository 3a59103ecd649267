"""Compression of the frames of many records at once, in compiled code that does not hold the GIL.

The frames of a record are compressed with lz4, one by one in the order of the schema, each stored as

    length  u4    number of bytes that follow these two numbers
    crc32c  u4    of those bytes, at their segment and row
    bytes         an lz4 block; the array itself if compression would not make it smaller

A frame whose length or checksum is wrong is not decoded: its status tells why.

In a compacted segment, consecutive frames of one lane are compressed together with zstd. A chunk is

    magic   u4
    length  u4       bytes of the zstd frame
    rows    u4       number of records
    crc32c  u4       version 2: of length, rows and all that follows, at its segment; version 1: of all that follows
    row     u4[rows] numbers of the records within the segment, ascending
    bytes            a zstd frame of rows x (all compressed fields)
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import lz4.block
import numpy as np
import zstandard
from numba.core import types

from millpond.compiled import compiled
from millpond.replay.lake.checksum import (
    ONES,
    PLACE,
    Binding,
    Position,
    frame_kinds,
    load32,
    place_state,
    range_checksum,
    store32,
)
from millpond.replay.schema import FRAME_HEADER_BYTES, LakeDamaged

Array = np.ndarray[Any, Any]

# Where the frames of a record are: in an lz4 file, nowhere (zeros), in a chunk of a compacted segment, or out of bounds.
IN_LZ4, ABSENT, IN_CHUNK, UNUSABLE = 0, 1, 2, 3
# Status of a decoded frame.
GOOD, BAD_LENGTH, BAD_CHECKSUM, BAD_BLOCK = 0, 1, 2, 3
STATUS_TEXT = ("good", "length exceeds its record", "checksum does not match", "lz4 block does not decode")

CHUNK_HEADER = struct.Struct("<IIII")
CHUNK_MAGIC = 0x6B6E6863
RECORDS_PER_CHUNK = 16  # at most
ZSTD_LEVEL = 3
NOWHERE = 2**32 - 1


# -- C functions, called without the GIL

LZ4_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)


def compress_block(source: int, target: int, nbytes: int, room: int) -> int:
    """Do what LZ4_compress_default does, through the Python module and with the GIL; return 0 if it does not fit."""
    block = lz4.block.compress(ctypes.string_at(source, nbytes), store_size=False)
    if len(block) > room:
        return 0
    ctypes.memmove(target, block, len(block))
    return len(block)


def decompress_block(source: int, target: int, nbytes: int, room: int) -> int:
    """Do what LZ4_decompress_safe does, in the same way; return -1 if the bytes are not a block of at most `room` bytes."""
    try:
        data = lz4.block.decompress(ctypes.string_at(source, nbytes), uncompressed_size=room)
    except lz4.block.LZ4BlockError:
        return -1
    ctypes.memmove(target, data, len(data))
    return len(data)


def _lz4(name: str, through_python: Any) -> Any:
    """Return a function of the lz4 package's liblz4: (source, target, source bytes, target bytes) -> bytes.

    The package's builds for Windows do not export these functions; compiled code then calls back into Python.
    """
    if llvmlite.binding.address_of_symbol(name) is None:
        callback = LZ4_FUNCTION(through_python)
        _callbacks.append(callback)
        llvmlite.binding.add_symbol(name, ctypes.cast(callback, ctypes.c_void_p).value)
    return types.ExternalFunction(name, types.int32(types.uintp, types.uintp, types.int32, types.int32))


_callbacks: list[Any] = []  # keeps them alive: compiled code has their addresses
llvmlite.binding.load_library_permanently(lz4.block._block.__file__)
lz4_compress = _lz4("LZ4_compress_default", compress_block)
lz4_decompress = _lz4("LZ4_decompress_safe", decompress_block)  # stays inside both buffers, whatever the bytes are

# memcpy: (target, source, bytes) -> target.
copy_bytes: Any = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))
# The system call. Called only if `os.RWF_NOWAIT` is defined, that is, if the system has it.
preadv2: Any = types.ExternalFunction(
    "preadv2", types.intp(types.int32, types.uintp, types.int32, types.int64, types.int32)
)


# -- lz4


def longest_block(width: int) -> int:
    """Return the largest size of an lz4 block of `width` bytes (LZ4_COMPRESSBOUND)."""
    return width + width // 255 + 16


@compiled
def _compress_frames(
    order: Any, frames: Any, finals: Any, widths: Any, seeds: Any, first_place: Any, out: Any, ends: Any
) -> Any:
    at = Position(0)
    for k in range(len(order)):
        number, begin = order[k], 0
        source = frames[number] if number < len(frames) else finals[number - len(frames)]
        place = first_place + (np.uint64(k) << np.uint64(32))
        for field, width in enumerate(widths):
            body = at + Position(8)
            room = np.int32(width + width // 255 + 16)
            start = Position(source.ctypes.data) + Position(begin)
            length = lz4_compress(start, Position(out.ctypes.data) + body, np.int32(width), room)
            if length <= 0 or length >= width:
                out[body : body + Position(width)] = source[begin : begin + width]
                length = width
            stop = body + Position(length)
            state = place_state(seeds[field], place) if len(seeds) else ONES
            store32(out, at, np.uint32(length))
            store32(out, at + Position(4), range_checksum(out, body, stop, state))
            at, begin = stop, begin + width
        ends[k] = at
    return at


def compress_frames(
    order: Array, frames: Array, finals: Array, widths: list[int], binding: Binding, segment: int, row: int
) -> tuple[Array, Array]:
    """Return the stored bytes of records in the given order, the first at `row` of a segment, and where each record ends.

    `frames` [n, bytes] and `finals` [k, bytes] are numbered 0 to n + k - 1; `order` holds these numbers.
    `widths` are the bytes of the frames that a record consists of.
    """
    room = len(order) * sum(longest_block(width) + FRAME_HEADER_BYTES for width in widths)
    out, ends = np.empty(room, np.uint8), np.empty(len(order), np.int64)
    seeds, first = binding.seeds(frame_kinds(len(widths))), np.uint64(segment | row << 32)
    return out[: _compress_frames(order, frames, finals, np.array(widths), seeds, first, out, ends)], ends


@compiled
def reseed_frames(data: Any, ends: Any, places: Any, seeds: Any) -> None:
    """Replace the checksums of valid frames in place: record k ends at ends[k], at places[k]."""
    at = Position(0)
    for k in range(len(ends)):
        for field in range(len(seeds)):
            body = at + Position(8)
            stop = body + Position(load32(data, at))
            if stop > Position(ends[k]):
                return
            store32(data, at + Position(4), range_checksum(data, body, stop, place_state(seeds[field], places[k])))
            at = stop


@compiled
def decompress_frame(source: Any, at: Any, end: Any, state: Any, target: Any, to: Any, width: Any) -> Any:
    """Decompress the frame with its header at source[at:end] into target[to:][:width]; return a status.

    `state`: of the checksum before the frame's bytes.
    """
    if end - at < Position(8):
        return BAD_LENGTH
    length = Position(load32(source, at))
    checksum = load32(source, at + Position(4))
    at += Position(8)
    if length > end - at:
        return BAD_LENGTH
    stop = at + length
    if range_checksum(source, at, stop, state) != checksum:
        return BAD_CHECKSUM
    if length == width:
        target[to : to + width] = source[at:stop]
        return GOOD
    start, place = Position(source.ctypes.data) + at, Position(target.ctypes.data) + to
    if lz4_decompress(start, place, np.int32(length), np.int32(width)) != np.int32(width):
        return BAD_BLOCK
    return GOOD


@compiled
def decompress_frames(
    source: Any,
    begins: Any,
    ends: Any,
    state: Any,
    places: Any,
    seeds: Any,
    slots: Any,
    target: Any,
    width: Any,
    field: Any,
    status: Any,
) -> None:
    """Decompress the frames of one field of many records: source[begins[i]:ends[i]] into target[slots[i] * width:][:width].

    Where `state` is ABSENT zeros are written; where it is IN_CHUNK nothing is. `seeds` [fields], empty if unbound.
    """
    for i in range(len(begins)):
        to = Position(slots[i]) * Position(width)
        status[i] = GOOD
        if state[i] == IN_LZ4:
            at, end = Position(begins[i]), Position(ends[i])
            for _ in range(field):
                if end - at >= Position(8) and Position(load32(source, at)) <= end - at - Position(8):
                    at += Position(8) + Position(load32(source, at))
                else:
                    at = end
            before = place_state(seeds[field], places[i]) if len(seeds) else ONES
            status[i] = decompress_frame(source, at, end, before, target, to, Position(width))
        elif state[i] == ABSENT:
            target[to : to + Position(width)] = 0
        elif state[i] == UNUSABLE:
            status[i] = BAD_LENGTH


# -- zstd


def encode_chunk(numbers: Array, frames: Array, binding: Binding, segment: int) -> bytes:
    """Return the bytes of a chunk: records `numbers` [n] of a segment, with their frames [n, bytes]."""
    packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(np.ascontiguousarray(frames).tobytes())
    body = numbers.astype("<u4").tobytes() + packed
    checksum = _chunk_checksum(len(packed), len(numbers), body, binding, segment)
    return CHUNK_HEADER.pack(CHUNK_MAGIC, len(packed), len(numbers), checksum) + body


def _chunk_checksum(length: int, count: int, body: bytes, binding: Binding, segment: int) -> int:
    covered = PLACE.pack(length, count) + body if binding else body
    return binding.checksum(covered, "chunk", segment)


def chunk_body_bytes(header: bytes | bytearray, frame_bytes: int) -> int:
    """Return the bytes that follow a chunk's header; 0 if its numbers cannot be those of a chunk."""
    if len(header) < CHUNK_HEADER.size:
        return 0
    magic, length, count, _ = CHUNK_HEADER.unpack_from(header)
    most = longest_zstd(RECORDS_PER_CHUNK * frame_bytes)
    valid = magic == CHUNK_MAGIC and 1 <= count <= RECORDS_PER_CHUNK and 1 <= length <= most
    return 4 * count + length if valid else 0


def longest_zstd(nbytes: int) -> int:
    """Return the largest size of a zstd frame of `nbytes` bytes (ZSTD_COMPRESSBOUND, rounded up)."""
    return nbytes + (nbytes >> 8) + 1024


def decode_chunk(data: bytes, frame_bytes: int, where: str, binding: Binding, segment: int) -> tuple[Array, Array]:
    """Return record numbers [n] and frames [n, frame_bytes] of a whole chunk; errors name `where` it is."""
    nbytes = chunk_body_bytes(data, frame_bytes)
    body = data[CHUNK_HEADER.size :]
    if not nbytes or len(body) != nbytes:
        raise LakeDamaged(f"{where}: the chunk's header does not match its bytes")
    _, length, count, checksum = CHUNK_HEADER.unpack_from(data)
    if _chunk_checksum(length, count, body, binding, segment) != checksum:
        raise LakeDamaged(f"{where}: the chunk does not match its checksum")
    packed = body[4 * count :]
    try:  # the size that the frame declares is what the decompressor allocates
        declared = zstandard.frame_content_size(packed)
        if declared != count * frame_bytes:
            raise LakeDamaged(f"{where}: the chunk declares {declared} bytes of frames, not {count} x {frame_bytes}")
        raw = zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise LakeDamaged(f"{where}: the chunk does not decompress: {error}") from None
    numbers = np.frombuffer(body, "<u4", count)
    if len(raw) != count * frame_bytes or np.any(np.diff(numbers.astype(np.int64)) <= 0):
        raise LakeDamaged(f"{where}: the chunk's records are not in order, or not complete")
    return numbers, np.frombuffer(raw, np.uint8).reshape(count, frame_bytes)


def chunk_positions(data: Array, num_records: int, frame_bytes: int) -> Array:
    """Return, for each record of a segment, where its chunk begins in the segment's bytes, from the chunks' headers.

    NOWHERE for a record that no chunk holds.
    """
    positions = np.full(num_records, NOWHERE, np.uint32)
    at = 0
    while at + CHUNK_HEADER.size <= len(data):
        header = bytes(data[at : at + CHUNK_HEADER.size])
        nbytes, begin = chunk_body_bytes(header, frame_bytes), at + CHUNK_HEADER.size
        if not nbytes or begin + nbytes > len(data):
            break
        numbers = np.frombuffer(bytes(data[begin : begin + 4 * CHUNK_HEADER.unpack(header)[2]]), "<u4")
        positions[numbers[numbers < num_records]] = at
        at = begin + nbytes
    return positions

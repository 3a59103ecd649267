"""Checksums and compression of many records at once, in compiled code that does not hold the GIL.

Checksums are CRC32C (Castagnoli), the same values as google-crc32c's.

The frames of a record are compressed with lz4, one by one in the order of the schema, each stored as

    length  u4    number of bytes that follow these two numbers
    crc32c  u4    of those bytes
    bytes         an lz4 block; the array itself if compression would not make it smaller

A frame whose length or checksum is wrong is not decoded: its status tells why.

In a compacted segment, consecutive frames of one lane are compressed together with zstd. A chunk is

    magic   u4
    length  u4       bytes of the zstd frame
    rows    u4       number of records
    crc32c  u4       of the record numbers and the zstd frame
    row     u4[rows] numbers of the records within the segment, ascending
    bytes            a zstd frame of rows x (all compressed fields)
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import llvmlite.binding  # type: ignore[import-untyped]
import lz4.block
import numpy as np
import zstandard
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from millpond.compiled import compiled, target_features
from millpond.replay.schema import FRAME_HEADER_BYTES, LakeDamaged

Array = np.ndarray[Any, Any]

# Positions in buffers are unsigned: Numba then omits the code for negative indices.
Position = np.uintp
WORD = ir.IntType(64)

# CRC32C
POLYNOMIAL = 0x82F63B78  # reflected
ONES = np.uint32(0xFFFFFFFF)

# Where the frames of a record are: in an lz4 file, nowhere (zeros), in a chunk of a compacted segment, or out of bounds.
IN_LZ4, ABSENT, IN_CHUNK, UNUSABLE = 0, 1, 2, 3
# Status of a decoded frame.
GOOD, BAD_LENGTH, BAD_CHECKSUM, BAD_BLOCK = 0, 1, 2, 3
STATUS_TEXT = ("good", "length exceeds its record", "checksum does not match", "lz4 block does not decode")

CHUNK_HEADER = struct.Struct("<IIII")
CHUNK_MAGIC = 0x6B6E6863
ZSTD_LEVEL = 3
NOWHERE = 2**32 - 1


# -- operations that Numba lacks: unaligned loads and stores, the CRC32C instruction, and calls of C without the GIL
# They check nothing: the caller has compared all positions with the ends of the buffers.


def _loader(bits: int, result: Any) -> Any:
    """Return an intrinsic that loads a number of `bits` bits from any position of a byte array."""

    def load(typing: Any, source: Any, start: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            address = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(bits).as_pointer())
            return builder.load(address, align=1)

        return result(source, types.uintp), generate

    return intrinsic(load)


def _storer(bits: int, value: Any) -> Any:
    """Return an intrinsic that stores a number of `bits` bits at any position of a byte array."""

    def store(typing: Any, target: Any, to: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            address = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(bits).as_pointer())
            builder.store(args[2], address, align=1)
            return context.get_dummy_value()

        return types.void(target, types.uintp, value), generate

    return intrinsic(store)


def _crc32c_word(typing: Any, checksum: Any, word: Any) -> Any:
    """Update a CRC32C by eight bytes with the processor's instruction (SSE 4.2)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(WORD, [WORD, WORD])
        return builder.call(builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind), args)

    return types.uint64(types.uint64, types.uint64), generate


load32 = _loader(32, types.uint32)
load64 = _loader(64, types.uint64)
store32 = _storer(32, types.uint32)
crc32c_word = intrinsic(_crc32c_word)

HAS_CRC32C = "sse4.2" in target_features()


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


# -- checksums


def _tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return tables[k, b]: the contribution of byte b followed by k zero bytes (slicing by eight)."""
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
    """Update a checksum by `words` words of eight bytes, on any processor."""
    for _ in range(words):
        word = load64(data, start) ^ np.uint64(value)
        value = np.uint32(0)
        for k in range(8):
            value ^= TABLES[7 - k, (word >> np.uint64(8 * k)) & np.uint64(255)]
        start += Position(8)
    return value


@compiled
def words_by_processor(data: Any, start: Any, words: Any, value: Any) -> Any:
    """Update a checksum by `words` words of eight bytes, with the CRC32C instruction."""
    wide = np.uint64(value)
    for _ in range(words):
        wide = crc32c_word(wide, load64(data, start))
        start += Position(8)
    return np.uint32(wide)


words_checksum = words_by_processor if HAS_CRC32C else words_by_table


@compiled
def range_checksum(data: Any, start: Any, end: Any) -> Any:
    """Return the CRC32C of data[start:end]; both are positions inside the buffer."""
    words = (end - start) // Position(8)
    value = words_checksum(data, start, words, ONES)
    position = start + words * Position(8)
    while position < end:
        value = TABLES[0, (value ^ data[position]) & np.uint32(255)] ^ (value >> np.uint32(8))
        position += Position(1)
    return value ^ ONES


@compiled
def _record_checksums(data: Any, width: Any, skip: Any, out: Any) -> None:
    for k in range(len(out)):
        start = Position(k) * Position(width)
        out[k] = range_checksum(data, start + Position(skip), start + Position(width))


def record_checksums(records: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the checksum of each record, over all its bytes but the first four, where the checksum is stored."""
    flat = np.ascontiguousarray(records).reshape(-1)
    out = np.empty(len(flat), np.uint32)
    if len(flat):
        _record_checksums(flat.view(np.uint8), flat.dtype.itemsize, 4, out)
    return out


# -- lz4


def longest_block(width: int) -> int:
    """Return the largest size of an lz4 block of `width` bytes (LZ4_COMPRESSBOUND)."""
    return width + width // 255 + 16


@compiled
def _compress_frames(order: Any, frames: Any, finals: Any, widths: Any, out: Any, ends: Any) -> Any:
    at = Position(0)
    for k in range(len(order)):
        number, begin = order[k], 0
        source = frames[number] if number < len(frames) else finals[number - len(frames)]
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


def compress_frames(order: Array, frames: Array, finals: Array, widths: list[int]) -> tuple[Array, Array]:
    """Return the stored bytes of records in the given order, and where each record ends.

    `frames` [n, bytes] and `finals` [k, bytes] are numbered 0 to n + k - 1; `order` holds these numbers.
    `widths` are the bytes of the frames that a record consists of.
    """
    room = len(order) * sum(longest_block(width) + FRAME_HEADER_BYTES for width in widths)
    out, ends = np.empty(room, np.uint8), np.empty(len(order), np.int64)
    return out[: _compress_frames(order, frames, finals, np.array(widths), out, ends)], ends


@compiled
def decompress_frame(source: Any, at: Any, end: Any, target: Any, to: Any, width: Any) -> Any:
    """Decompress the frame with its header at source[at:end] into target[to:][:width]; return a status."""
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
def decompress_frames(
    source: Any, begins: Any, ends: Any, state: Any, slots: Any, target: Any, width: Any, skip: Any, status: Any
) -> None:
    """Decompress frame number `skip` of many records: source[begins[i]:ends[i]] into target[slots[i] * width:][:width].

    Where `state` is ABSENT zeros are written; where it is IN_CHUNK nothing is.
    """
    for i in range(len(begins)):
        to = Position(slots[i]) * Position(width)
        status[i] = GOOD
        if state[i] == IN_LZ4:
            at, end = Position(begins[i]), Position(ends[i])
            for _ in range(skip):
                if end - at >= Position(8) and Position(load32(source, at)) <= end - at - Position(8):
                    at += Position(8) + Position(load32(source, at))
                else:
                    at = end
            status[i] = decompress_frame(source, at, end, target, to, Position(width))
        elif state[i] == ABSENT:
            target[to : to + Position(width)] = 0
        elif state[i] == UNUSABLE:
            status[i] = BAD_LENGTH


# -- zstd


def encode_chunk(numbers: Array, frames: Array) -> bytes:
    """Return the bytes of a chunk: records `numbers` [n] of a segment, with their frames [n, bytes]."""
    packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(np.ascontiguousarray(frames).tobytes())
    body = numbers.astype("<u4").tobytes() + packed
    return CHUNK_HEADER.pack(CHUNK_MAGIC, len(packed), len(numbers), google_crc32c.value(body)) + body


def decode_chunk(data: bytes | memoryview, frame_bytes: int, where: str) -> tuple[Array, Array]:
    """Return record numbers [n] and frames [n, frame_bytes] of a whole chunk; errors name `where` it is."""
    if len(data) < CHUNK_HEADER.size:
        raise LakeDamaged(f"{where}: the chunk is cut off")
    magic, length, count, checksum = CHUNK_HEADER.unpack_from(data)
    body = bytes(data[CHUNK_HEADER.size : CHUNK_HEADER.size + 4 * count + length])
    if magic != CHUNK_MAGIC or len(body) != 4 * count + length or google_crc32c.value(body) != checksum:
        raise LakeDamaged(f"{where}: the chunk does not match its checksum")
    raw = zstandard.ZstdDecompressor().decompress(body[4 * count :], max_output_size=count * frame_bytes)
    if len(raw) != count * frame_bytes:
        raise LakeDamaged(f"{where}: the chunk has {len(raw)} bytes of frames, not {count} x {frame_bytes}")
    return np.frombuffer(body, "<u4", count), np.frombuffer(raw, np.uint8).reshape(count, frame_bytes)


def chunk_positions(path: Path, num_records: int) -> Array:
    """Return, for each record of a segment, where its chunk begins, from the chunks' headers; NOWHERE if it has none."""
    positions = np.full(num_records, NOWHERE, np.uint32)
    data = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    at = 0
    while at + CHUNK_HEADER.size <= len(data):
        magic, length, count, _ = CHUNK_HEADER.unpack(bytes(data[at : at + CHUNK_HEADER.size]))
        if magic != CHUNK_MAGIC or at + CHUNK_HEADER.size + 4 * count + length > len(data):
            break
        begin = at + CHUNK_HEADER.size
        numbers = np.frombuffer(bytes(data[begin : begin + 4 * count]), "<u4")
        positions[numbers[numbers < num_records]] = at
        at = begin + 4 * count + length
    return positions

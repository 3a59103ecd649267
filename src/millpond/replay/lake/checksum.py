"""CRC32C checksums of bytes at their place, of many records at once, in compiled code that does not hold the GIL.

Checksums are CRC32C (Castagnoli), the same values as google-crc32c's. In lakes of version 2 a checksum covers the place of
the bytes before the bytes themselves, so that data in the wrong file, stream or row does not match:

    crc32c(lake id, stream, kind of data | segment u4, row u4 | bytes)

`Binding` has the checksum of the part before the first bar, the seed; version 1 covers the bytes alone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import google_crc32c
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from millpond.compiled import compiled, target_features

Array = np.ndarray[Any, Any]

# Positions in buffers are unsigned: Numba then omits the code for negative indices.
Position = np.uintp
WORD = ir.IntType(64)
POLYNOMIAL = 0x82F63B78  # reflected
ONES = np.uint32(0xFFFFFFFF)
PLACE = struct.Struct("<II")  # segment, row


# -- operations that Numba lacks: unaligned loads and stores, and the CRC32C instruction
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


# -- checksums


@dataclass(frozen=True)
class Binding:
    """The stream that checksums are bound to. `stream` is empty in lakes of version 1, whose checksums cover bytes alone."""

    stream: bytes = b""

    @staticmethod
    def of(lake_id: str, stream: str) -> Binding:
        return Binding(f"{lake_id}/{stream}".encode())

    def __bool__(self) -> bool:
        return bool(self.stream)

    def seed(self, kind: str) -> int:
        """Return the checksum of the lake's id, the stream's name and a kind of data."""
        return _seed(self.stream, kind)

    def checksum(self, data: bytes, kind: str, segment: int = 0, row: int = 0) -> int:
        """Return the checksum of bytes at their place."""
        if not self:
            return int(google_crc32c.value(data))
        return int(google_crc32c.extend(self.seed(kind), PLACE.pack(segment, row) + data))

    def seeds(self, kinds: list[str]) -> Array:
        """Return seeds for compiled code: u4[kinds], empty if checksums cover bytes alone."""
        return np.array([self.seed(kind) for kind in kinds] if self else [], np.uint32)


@cache
def _seed(stream: bytes, kind: str) -> int:
    return int(google_crc32c.value(stream + b"/" + kind.encode()))


def frame_kinds(count: int) -> list[str]:
    """Return the kinds of the compressed fields of a record."""
    return [f"frame {number}" for number in range(count)]


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
def place_by_table(seed: Any, place: Any) -> Any:
    """Return the state of a checksum after its seed and a place of eight bytes, on any processor."""
    word = place ^ np.uint64(seed ^ ONES)
    value = np.uint32(0)
    for k in range(8):
        value ^= TABLES[7 - k, (word >> np.uint64(8 * k)) & np.uint64(255)]
    return value


@compiled
def place_by_processor(seed: Any, place: Any) -> Any:
    """Return the state of a checksum after its seed and a place of eight bytes, with the CRC32C instruction."""
    return np.uint32(crc32c_word(np.uint64(seed ^ ONES), place))


place_state = place_by_processor if HAS_CRC32C else place_by_table


@compiled
def place_of(segment: Any, row: Any) -> Any:
    """Return segment and row as eight bytes."""
    return np.uint64(segment) | np.uint64(row) << np.uint64(32)


@compiled
def range_checksum(data: Any, start: Any, end: Any, state: Any) -> Any:
    """Return the CRC32C of data[start:end] after `state` (ONES: of these bytes alone); both are inside the buffer."""
    words = (end - start) // Position(8)
    value = words_checksum(data, start, words, state)
    position = start + words * Position(8)
    while position < end:
        value = TABLES[0, (value ^ data[position]) & np.uint32(255)] ^ (value >> np.uint32(8))
        position += Position(1)
    return value ^ ONES


@compiled
def _record_checksums(data: Any, width: Any, skip: Any, seeds: Any, places: Any, out: Any) -> None:
    for k in range(len(out)):
        start = Position(k) * Position(width)
        state = place_state(seeds[0], places[k]) if len(seeds) else ONES
        out[k] = range_checksum(data, start + Position(skip), start + Position(width), state)


def record_checksums(
    records: np.ndarray[Any, Any], binding: Binding, kind: str, places: Array
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the checksum of each record at its place, over all its bytes but the first four, where it is stored.

    places u8[n]: see `place_of`; not read if checksums cover bytes alone.
    """
    flat = np.ascontiguousarray(records).reshape(-1)
    out = np.empty(len(flat), np.uint32)
    if len(flat):
        _record_checksums(flat.view(np.uint8), flat.dtype.itemsize, 4, binding.seeds([kind]), places, out)
    return out


def consecutive_places(segment: int, begin: int, count: int) -> Array:
    """Return the places of rows `begin` to `begin + count` of one segment."""
    return np.uint64(segment) | (np.uint64(begin) + np.arange(count, dtype=np.uint64)) << np.uint64(32)

"""CRC32C (Castagnoli) of many pieces of a buffer at once, without the GIL. The same values as google-crc32c's."""

from __future__ import annotations

from typing import Any

import numpy as np

from millpond.compiled import compiled
from millpond.replay.memory import HAS_CRC32C, crc32c_word, load64
from millpond.replay.position import Position

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

"""Checksums computed here are those of google-crc32c, by table and by processor."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.replay.checksum import ONES, range_checksum, row_checksums, words_by_processor, words_by_table
from millpond.replay.memory import HAS_CRC32C
from millpond.replay.position import Position


@given(data=st.binary(min_size=1, max_size=300), start=st.integers(0, 40), end=st.integers(0, 300))
def test_range(data: bytes, start: int, end: int) -> None:
    end = min(end, len(data))
    start = min(start, end)
    buffer = np.frombuffer(data, np.uint8).copy()
    assert range_checksum(buffer, Position(start), Position(end)) == google_crc32c.value(data[start:end])


def test_the_table_knows_the_published_check_value() -> None:
    buffer = np.frombuffer(b"12345678", np.uint8).copy()
    assert words_by_table(buffer, Position(0), Position(1), ONES) ^ ONES == google_crc32c.value(b"12345678")
    assert google_crc32c.value(b"123456789") == 0xE3069283


@pytest.mark.skipif(not HAS_CRC32C, reason="the processor has no CRC32C instruction")
@given(data=st.binary(min_size=8, max_size=200))
def test_processor_and_table_agree(data: bytes) -> None:
    buffer, words = np.frombuffer(data, np.uint8).copy(), Position(len(data) // 8)
    by_table = words_by_table(buffer, Position(0), words, ONES)
    assert words_by_processor(buffer, Position(0), words, ONES) == by_table


def test_rows_leave_out_their_own_checksum() -> None:
    rows = np.zeros(3, [("checksum", "<u4"), ("rest", "S13")])
    rows["rest"] = [b"a", b"bb", b"a"]
    values = row_checksums(rows)
    assert values.tolist() == [google_crc32c.value(row.tobytes()[4:]) for row in rows]
    rows["checksum"] = 7
    assert row_checksums(rows).tolist() == values.tolist()

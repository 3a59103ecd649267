"""Checksums against google-crc32c."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.replay.lake.checksum import (
    HAS_CRC32C,
    ONES,
    Binding,
    Position,
    consecutive_places,
    place_by_processor,
    place_by_table,
    place_of,
    range_checksum,
    record_checksums,
    words_by_processor,
    words_by_table,
)

UNBOUND, BOUND = Binding(), Binding.of("0123456789abcdef0123456789abcdef", "agent0")  # formats 1 and 2


@given(data=st.binary(min_size=1, max_size=300), start=st.integers(0, 40), end=st.integers(0, 300))
def test_range_checksum_equals_google_crc32c(data: bytes, start: int, end: int) -> None:
    end = min(end, len(data))
    start = min(start, end)
    buffer = np.frombuffer(data, np.uint8).copy()
    assert range_checksum(buffer, Position(start), Position(end), ONES) == google_crc32c.value(data[start:end])


def test_table_gives_the_published_check_value() -> None:
    buffer = np.frombuffer(b"12345678", np.uint8).copy()
    assert words_by_table(buffer, Position(0), Position(1), ONES) ^ ONES == google_crc32c.value(b"12345678")
    assert google_crc32c.value(b"123456789") == 0xE3069283


@pytest.mark.skipif(not HAS_CRC32C, reason="the processor has no CRC32C instruction")
@given(data=st.binary(min_size=8, max_size=200))
def test_crc32c_instruction_and_table_agree(data: bytes) -> None:
    buffer, words = np.frombuffer(data, np.uint8).copy(), Position(len(data) // 8)
    by_table = words_by_table(buffer, Position(0), words, ONES)
    assert words_by_processor(buffer, Position(0), words, ONES) == by_table


def test_place_state_is_that_of_eight_bytes_after_the_seed() -> None:
    for segment, row in ((0, 0), (3, 2), (2**32 - 1, 2**32 - 1)):
        place = np.uint64(place_of(segment, row))
        expected = google_crc32c.extend(77, np.array([segment, row], "<u4").tobytes())
        assert place_by_table(np.uint32(77), place) ^ ONES == expected
        if HAS_CRC32C:
            assert place_by_processor(np.uint32(77), place) ^ ONES == expected


@pytest.mark.parametrize("binding", [UNBOUND, BOUND])
def test_record_checksum_excludes_its_own_bytes(binding: Binding) -> None:
    records = np.zeros(3, [("checksum", "<u4"), ("rest", "S13")])
    records["rest"] = [b"a", b"bb", b"a"]
    places = consecutive_places(4, 10, 3)
    values = record_checksums(records, binding, "steps", places)
    plain = [binding.checksum(record.tobytes()[4:], "steps", 4, 10 + k) for k, record in enumerate(records)]
    assert values.tolist() == plain
    records["checksum"] = 7
    assert record_checksums(records, binding, "steps", places).tolist() == values.tolist()


def test_checksum_depends_on_lake_stream_kind_segment_and_row() -> None:
    other_lake, other_stream = Binding.of("f" * 32, "agent0"), Binding.of("0123456789abcdef0123456789abcdef", "agent1")
    values = {
        BOUND.checksum(b"data", "steps", 1, 2),
        BOUND.checksum(b"data", "steps", 1, 3),
        BOUND.checksum(b"data", "steps", 2, 2),
        BOUND.checksum(b"data", "commit", 1, 2),
        other_lake.checksum(b"data", "steps", 1, 2),
        other_stream.checksum(b"data", "steps", 1, 2),
    }
    assert len(values) == 6
    assert UNBOUND.checksum(b"data", "steps", 1, 2) == UNBOUND.checksum(b"data", "commit", 2, 3)

"""Checksums and frames against google-crc32c and the lz4 package, and on random bytes."""

from __future__ import annotations

import google_crc32c
import lz4.block
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.replay.lake.codec import (
    BAD_BLOCK,
    BAD_CHECKSUM,
    BAD_LENGTH,
    GOOD,
    HAS_CRC32C,
    IN_LZ4,
    ONES,
    Position,
    compress_block,
    compress_frames,
    decompress_block,
    decompress_frames,
    range_checksum,
    record_checksums,
    words_by_processor,
    words_by_table,
)

WIDTH, OTHER, GUARD = 300, 40, 64
# Runs of small alphabets give matches of all distances and lengths; noise does not compress at all.
frames = st.one_of(
    st.binary(min_size=WIDTH + OTHER, max_size=WIDTH + OTHER),
    st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 40)), min_size=1, max_size=20).map(
        lambda runs: b"".join(piece * times for piece, times in runs).ljust(WIDTH + OTHER, b"x")[: WIDTH + OTHER]
    ),
)


@given(data=st.binary(min_size=1, max_size=300), start=st.integers(0, 40), end=st.integers(0, 300))
def test_range_checksum_equals_google_crc32c(data: bytes, start: int, end: int) -> None:
    end = min(end, len(data))
    start = min(start, end)
    buffer = np.frombuffer(data, np.uint8).copy()
    assert range_checksum(buffer, Position(start), Position(end)) == google_crc32c.value(data[start:end])


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


def test_record_checksum_excludes_its_own_bytes() -> None:
    records = np.zeros(3, [("checksum", "<u4"), ("rest", "S13")])
    records["rest"] = [b"a", b"bb", b"a"]
    values = record_checksums(records)
    assert values.tolist() == [google_crc32c.value(record.tobytes()[4:]) for record in records]
    records["checksum"] = 7
    assert record_checksums(records).tolist() == values.tolist()


def decode(source: np.ndarray, begins: np.ndarray, ends: np.ndarray, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode records in reverse order, between two guards that must stay unchanged."""
    width = (WIDTH, OTHER)[skip]
    guarded = np.full(GUARD + width * len(ends) + GUARD, 0xA5, np.uint8)
    target, status = guarded[GUARD:-GUARD], np.empty(len(ends), np.uint8)
    state = np.full(len(ends), IN_LZ4, np.uint8)
    decompress_frames(source, begins, ends, state, np.arange(len(ends))[::-1].copy(), target, width, skip, status)
    assert (guarded[:GUARD] == 0xA5).all()
    assert (guarded[-GUARD:] == 0xA5).all()
    return target.reshape(-1, width)[::-1], status


@given(records=st.lists(frames, min_size=1, max_size=6), split=st.integers(0, 6), flip=st.integers(0))
def test_frames_round_trip_and_a_flipped_bit_is_detected(records: list[bytes], split: int, flip: int) -> None:
    arrays = np.array([np.frombuffer(record, np.uint8) for record in records])
    order = np.random.default_rng(flip).permutation(len(records))
    coded, ends = compress_frames(order, arrays[:split], arrays[split:], [WIDTH, OTHER])
    begins = np.append(0, ends[:-1])
    assert ends[-1] == len(coded)
    first, second = (decode(coded, begins, ends, skip) for skip in (0, 1))
    assert (first[1] == GOOD).all()
    assert (second[1] == GOOD).all()
    np.testing.assert_array_equal(np.concatenate([first[0], second[0]], axis=1), arrays[order])
    # The stored bytes are those that the lz4 package writes and reads.
    length, checksum = coded[:8].view("<u4")
    block = coded[8 : 8 + length].tobytes()
    assert google_crc32c.value(block) == checksum
    plain = block if length == WIDTH else lz4.block.decompress(block, uncompressed_size=WIDTH)
    assert plain == arrays[order[0], :WIDTH].tobytes()
    # One flipped bit: the record that it is in is rejected, and no other.
    place = flip % (8 * len(coded))
    damaged = coded.copy()
    damaged[place // 8] ^= 1 << (place % 8)
    damaged_record = int(np.searchsorted(ends, place // 8, side="right"))
    status = np.maximum(decode(damaged, begins, ends, 0)[1], decode(damaged, begins, ends, 1)[1])
    assert status[damaged_record] in (BAD_CHECKSUM, BAD_LENGTH)
    assert (np.delete(status, damaged_record) == GOOD).all()


@given(noise=st.binary(max_size=200), right=st.booleans())
def test_random_bytes_are_rejected_without_writing_out_of_bounds(noise: bytes, right: bool) -> None:
    """Also if length and checksum are right and only the lz4 block is invalid."""
    header = np.array([len(noise), google_crc32c.value(noise)], "<u4").tobytes() if right else b""
    source = np.frombuffer(header + noise, np.uint8).copy()
    _, status = decode(source, np.array([0]), np.array([len(source)]), 0)
    assert status[0] in (BAD_LENGTH, BAD_CHECKSUM, BAD_BLOCK)


def test_incompressible_frames_are_stored_uncompressed() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, WIDTH), np.uint8)
    coded, ends = compress_frames(np.arange(3), noise, noise[:0], [WIDTH])
    assert ends.tolist() == [308, 616, 924]
    assert coded[8:308].tobytes() == noise[0].tobytes()


@given(frame=frames, room=st.integers(1, WIDTH + OTHER))
def test_python_fallbacks_of_lz4_stay_within_their_buffers(frame: bytes, room: int) -> None:
    """Compiled code calls these if liblz4 does not export its functions."""
    source, block = np.frombuffer(frame, np.uint8), np.zeros(2 * len(frame), np.uint8)
    length = compress_block(source.ctypes.data, block.ctypes.data, len(source), len(block))
    assert compress_block(source.ctypes.data, block.ctypes.data, len(source), length - 1) == 0
    back = np.full(len(frame) + GUARD, 0xA5, np.uint8)
    fits = room == len(frame)
    count = decompress_block(block.ctypes.data, back.ctypes.data, length, room)
    assert count == (len(frame) if fits else -1)
    assert (back[room:] == 0xA5).all()
    assert not fits or back[:room].tobytes() == frame

"""The decoder without the GIL against the lz4 package, and against bytes that nobody wrote."""

from __future__ import annotations

import lz4.block
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millpond.replay.compiled import Position
from millpond.replay.lz4_frames import BAD_CHECKSUM, BAD_LENGTH, GOOD, decode_block, decode_rows, encode_frame

# Runs of small alphabets give matches of all distances and lengths, also overlapping ones.
repetitive = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 60)), min_size=1, max_size=30).map(
    lambda runs: b"".join(piece * times for piece, times in runs)
)
GUARD = 64


def decode(block: bytes, size: int) -> bytes | None:
    """Decode between two guards that must stay as they are."""
    source = np.frombuffer(block, np.uint8).copy() if block else np.zeros(1, np.uint8)
    target = np.full(size + 2 * GUARD, 0xA5, np.uint8)
    good = decode_block(source, Position(0), Position(len(block)), target, Position(GUARD), Position(GUARD + size))
    assert (target[:GUARD] == 0xA5).all(), "wrote before its place"
    assert (target[GUARD + size :] == 0xA5).all(), "wrote behind its place"
    return target[GUARD : GUARD + size].tobytes() if good else None


@given(data=st.one_of(st.binary(min_size=1, max_size=3_000), repetitive), high=st.booleans())
def test_decodes_what_lz4_compresses(data: bytes, high: bool) -> None:
    mode = {"mode": "high_compression"} if high else {}
    block = lz4.block.compress(data, store_size=False, **mode)
    assert decode(block, len(data)) == data
    assert decode(block, len(data) + 1) is None
    assert decode(block, len(data) - 1) is None
    assert decode(block[:-1], len(data)) is None


@given(data=repetitive, at=st.integers(0), bit=st.integers(0, 7), noise=st.binary(max_size=200))
def test_damaged_blocks_never_leave_their_place(data: bytes, at: int, bit: int, noise: bytes) -> None:
    block = bytearray(lz4.block.compress(data, store_size=False))
    block[at % len(block)] ^= 1 << bit
    decode(bytes(block), len(data))
    decode(noise, 100)


@given(
    frames=st.lists(st.lists(st.integers(0, 3), min_size=50, max_size=50), min_size=1, max_size=5), flip=st.integers(0)
)
def test_rows_of_frames(frames: list[list[int]], flip: int) -> None:
    arrays = [np.array(frame, np.uint8) for frame in frames]
    pieces = [encode_frame(array) for array in arrays]
    ends = np.cumsum([len(piece) for piece in pieces])
    begins = ends - [len(piece) for piece in pieces]
    source = np.frombuffer(b"".join(pieces), np.uint8).copy()
    slots = np.arange(len(frames))[::-1].copy()
    target, status = np.zeros(50 * len(frames), np.uint8), np.empty(len(frames), np.uint8)
    decode_rows(source, begins, ends, slots, target, 50, 0, status)
    assert (status == GOOD).all()
    np.testing.assert_array_equal(target.reshape(-1, 50)[::-1], arrays)
    place = flip % (8 * len(source))
    source[place // 8] ^= 1 << (place % 8)
    decode_rows(source, begins, ends, slots, target, 50, 0, status)
    struck = int(np.searchsorted(ends, place // 8, side="right"))
    assert status[struck] in (BAD_CHECKSUM, BAD_LENGTH)
    assert (np.delete(status, struck) == GOOD).all()


def test_what_does_not_shrink_is_stored_as_it_is() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 500, np.uint8)
    assert len(encode_frame(noise)) == 508

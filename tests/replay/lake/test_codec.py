"""Frames against the lz4 package, and on random bytes."""

from __future__ import annotations

import google_crc32c
import lz4.block
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.replay import LakeDamaged
from millpond.replay.lake.checksum import (
    Binding,
    consecutive_places,
    frame_kinds,
)
from millpond.replay.lake.codec import (
    BAD_BLOCK,
    BAD_CHECKSUM,
    BAD_LENGTH,
    GOOD,
    IN_LZ4,
    compress_block,
    compress_frames,
    decode_chunk,
    decompress_block,
    decompress_frames,
    encode_chunk,
)

WIDTH, OTHER, GUARD = 300, 40, 64
UNBOUND, BOUND = Binding(), Binding.of("0123456789abcdef0123456789abcdef", "agent0")  # formats 1 and 2
# Runs of small alphabets give matches of all distances and lengths; noise does not compress at all.
frames = st.one_of(
    st.binary(min_size=WIDTH + OTHER, max_size=WIDTH + OTHER),
    st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 40)), min_size=1, max_size=20).map(
        lambda runs: b"".join(piece * times for piece, times in runs).ljust(WIDTH + OTHER, b"x")[: WIDTH + OTHER]
    ),
)


@pytest.mark.parametrize("binding", [UNBOUND, BOUND])
def test_chunk_declares_its_size_before_it_is_decompressed(binding: Binding) -> None:
    numbers, frames = np.array([3, 5]), np.arange(80, dtype=np.uint8).reshape(2, 40)
    chunk = encode_chunk(numbers, frames, binding, 7)
    decoded = decode_chunk(chunk, 40, "here", binding, 7)
    assert decoded[0].tolist() == [3, 5]
    np.testing.assert_array_equal(decoded[1], frames)
    with pytest.raises(LakeDamaged, match="here: the chunk declares 80 bytes of frames, not 2 x 39"):
        decode_chunk(chunk, 39, "here", binding, 7)
    bomb = encode_chunk(numbers, np.zeros((2, 1 << 20), np.uint8), binding, 7)
    with pytest.raises(LakeDamaged, match="declares 2097152 bytes"):
        decode_chunk(bomb, 40, "here", binding, 7)
    if binding:
        with pytest.raises(LakeDamaged, match="does not match its checksum"):
            decode_chunk(chunk, 40, "here", binding, 8)


def decode(
    source: np.ndarray, begins: np.ndarray, ends: np.ndarray, skip: int, binding: Binding = UNBOUND, row: int = 9
) -> tuple[np.ndarray, np.ndarray]:
    """Decode records of segment 4 in reverse order, between two guards that must stay unchanged."""
    width = (WIDTH, OTHER)[skip]
    guarded = np.full(GUARD + width * len(ends) + GUARD, 0xA5, np.uint8)
    target, status = guarded[GUARD:-GUARD], np.empty(len(ends), np.uint8)
    state = np.full(len(ends), IN_LZ4, np.uint8)
    slots, seeds = np.arange(len(ends))[::-1].copy(), binding.seeds(frame_kinds(2))
    places = consecutive_places(4, row, len(ends))
    decompress_frames(source, begins, ends, state, places, seeds, slots, target, width, skip, status)
    assert (guarded[:GUARD] == 0xA5).all()
    assert (guarded[-GUARD:] == 0xA5).all()
    return target.reshape(-1, width)[::-1], status


@given(records=st.lists(frames, min_size=1, max_size=6), split=st.integers(0, 6), flip=st.integers(0), bound=...)
def test_frames_round_trip_and_a_flipped_bit_is_detected(
    records: list[bytes], split: int, flip: int, bound: bool
) -> None:
    binding = BOUND if bound else UNBOUND
    arrays = np.array([np.frombuffer(record, np.uint8) for record in records])
    order = np.random.default_rng(flip).permutation(len(records))
    coded, ends = compress_frames(order, arrays[:split], arrays[split:], [WIDTH, OTHER], binding, 4, 9)
    begins = np.append(0, ends[:-1])
    assert ends[-1] == len(coded)
    first, second = (decode(coded, begins, ends, skip, binding) for skip in (0, 1))
    assert (first[1] == GOOD).all()
    assert (second[1] == GOOD).all()
    np.testing.assert_array_equal(np.concatenate([first[0], second[0]], axis=1), arrays[order])
    # The stored bytes are those that the lz4 package writes and reads.
    length, checksum = coded[:8].view("<u4")
    block = coded[8 : 8 + length].tobytes()
    assert binding.checksum(block, "frame 0", 4, 9) == checksum
    plain = block if length == WIDTH else lz4.block.decompress(block, uncompressed_size=WIDTH)
    assert plain == arrays[order[0], :WIDTH].tobytes()
    # One flipped bit: the record that it is in is rejected, and no other.
    place = flip % (8 * len(coded))
    damaged = coded.copy()
    damaged[place // 8] ^= 1 << (place % 8)
    damaged_record = int(np.searchsorted(ends, place // 8, side="right"))
    status = np.maximum(decode(damaged, begins, ends, 0, binding)[1], decode(damaged, begins, ends, 1, binding)[1])
    assert status[damaged_record] in (BAD_CHECKSUM, BAD_LENGTH)
    assert (np.delete(status, damaged_record) == GOOD).all()
    # In another row the same bytes are rejected, if checksums are bound to their place.
    elsewhere = decode(coded, begins, ends, 0, binding, row=10)[1]
    assert (elsewhere == (BAD_CHECKSUM if bound else GOOD)).all()


@given(noise=st.binary(max_size=200), right=st.booleans())
def test_random_bytes_are_rejected_without_writing_out_of_bounds(noise: bytes, right: bool) -> None:
    """Also if length and checksum are right and only the lz4 block is invalid."""
    header = np.array([len(noise), google_crc32c.value(noise)], "<u4").tobytes() if right else b""
    source = np.frombuffer(header + noise, np.uint8).copy()
    _, status = decode(source, np.array([0]), np.array([len(source)]), 0)
    assert status[0] in (BAD_LENGTH, BAD_CHECKSUM, BAD_BLOCK)


def test_incompressible_frames_are_stored_uncompressed() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, WIDTH), np.uint8)
    coded, ends = compress_frames(np.arange(3), noise, noise[:0], [WIDTH], BOUND, 0, 0)
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

"""Reads from maps, from the page cache and from the disk give the same bytes, with few files open."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from millpond.replay import Lake
from millpond.replay.lake.read import SpanReader, Spans
from tests.support.naive_lake import FRAME, NaiveLake


def spans(*spans_read: tuple[int, int, int, int]) -> Spans:
    return Spans(*(np.array(column, np.int64) for column in zip(*spans_read, strict=True)))


@pytest.mark.parametrize("how", ["map", "cold", "without NOWAIT"])
def test_spans_are_read_correctly_from_map_cache_and_disk(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    content = [rng.integers(0, 256, 50_000, np.uint8) for _ in range(3)]
    paths = [tmp_path / str(k) for k in range(3)]
    for path, data in zip(paths, content, strict=True):
        path.write_bytes(data.tobytes())
        if how == "cold" and hasattr(os, "posix_fadvise"):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if how == "without NOWAIT":
        monkeypatch.setattr("millpond.replay.lake.read.NOWAIT", 0)
    requests = [(int(rng.integers(3)), int(rng.integers(49_000)), int(rng.integers(1, 900))) for _ in range(100)]
    places = np.cumsum([0, *(count for _, _, count in requests)])
    buffer = np.zeros(places[-1], np.uint8)
    reader = SpanReader()
    spans_read = [(file, offset, count, int(at)) for (file, offset, count), at in zip(requests, places, strict=False)]
    reader.read(paths, spans(*spans_read), buffer.data)
    expected = np.concatenate([content[file][offset : offset + count] for file, offset, count in requests])
    np.testing.assert_array_equal(buffer, expected)
    reader.close()


def test_reads_past_the_end_give_zeros_and_see_a_file_grow(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 100)
    reader, buffer = SpanReader(), np.full(80, 7, np.uint8)
    paths = [path]
    reader.read(paths, spans((0, 60, 80, 0)), buffer.data)
    assert buffer.tobytes() == b"a" * 40 + bytes(40)
    with open(path, "ab") as file:
        file.write(b"b" * 100)  # after the mapped part
    reader.read(paths, spans((0, 60, 40, 0), (0, 100, 40, 40)), buffer.data)
    assert buffer.tobytes() == b"a" * 40 + b"b" * 40
    reader.close()


def test_sampling_works_with_more_segments_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.replay.lake.read.OPEN_FILES", 5)
    naive, rng = NaiveLake(), np.random.default_rng(0)
    before = len(os.listdir("/dev/fd"))
    with Lake.create(tmp_path, FRAME, segment_bytes=1) as lake:
        with lake.writer("a", 2) as writer:
            for _ in range(30):
                writer.append(naive.generate("a", 2, 3, rng, FRAME, fresh=False, ends=0.1))
        lake.refresh()
        assert len(lake.view("a").segments) == 30
        valid = naive.transitions(stack=4, n_step=1, gamma=1.0, repeat=False)
        assert set(lake.sample(4_000, rng, stack=4).record["id"].tolist()) == set(valid)
        assert len(os.listdir("/dev/fd")) - before <= 2 * 5
    assert len(os.listdir("/dev/fd")) <= before

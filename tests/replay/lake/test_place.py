"""Checksums are bound to their place: data in the wrong stream, segment, file or row is damage, not data."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

from millpond.replay import Lake, LakeDamaged
from millpond.replay.tools import compact, verify
from tests.support.naive_lake import MIXED, NaiveLake, assert_transition


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NaiveLake]:
    """Two streams of equal lengths, so that their files can be swapped; the first segment of each is compacted."""
    folder, naive, rng = tmp_path_factory.mktemp("place") / "lake", NaiveLake(), np.random.default_rng(0)
    with Lake.create(folder, MIXED, segment_bytes=4_000) as lake:
        for name in ("a", "b"):
            with lake.writer(name, 2) as writer:
                for _ in range(6):
                    writer.append(naive.generate(name, 2, 4, rng, MIXED, fresh=False, ends=0))
    compact(folder, keep=2)
    assert verify(folder).good
    return folder, naive


@pytest.fixture
def folder(intact: tuple[Path, NaiveLake], tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact[0], tmp_path / "lake"))


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def assert_damage_is_found_and_not_returned(folder: Path, naive: NaiveLake) -> None:
    assert not verify(folder).good
    valid = naive.transitions(stack=1, n_step=1, gamma=1.0, repeat=False)
    with Lake(folder) as lake:
        with pytest.raises(LakeDamaged):
            lake.sample(2_000, np.random.default_rng(0))
        batch = lake.sample(100, np.random.default_rng(0), on_damage="skip")
        for i in range(100):
            assert_transition(batch, i, valid[int(batch.record["id"][i])], MIXED, stacked=False)
        assert lake.damage


KINDS = ("000002.lz4", "000001.lz4", "000000.zst", "000001.steps", "000001.index", "commits", "head")


@pytest.mark.parametrize("name", KINDS)
def test_file_swapped_between_streams_is_damage(folder: Path, intact: tuple[Path, NaiveLake], name: str) -> None:
    swap(folder / "streams" / "a" / name, folder / "streams" / "b" / name)
    if name in ("commits", "head", "000001.index"):  # nothing else is lost: their content is found again, or refused
        assert not verify(folder).good
    else:
        assert_damage_is_found_and_not_returned(folder, intact[1])


@pytest.mark.parametrize("kind", ["lz4", "steps"])
def test_file_swapped_between_segments_is_damage(folder: Path, intact: tuple[Path, NaiveLake], kind: str) -> None:
    stream = folder / "streams" / "a"
    swap(stream / f"000001.{kind}", stream / f"000002.{kind}")
    assert_damage_is_found_and_not_returned(folder, intact[1])


def test_stream_folders_swapped_are_damage(folder: Path) -> None:
    streams = folder / "streams"
    (streams / "a").rename(streams / "other")
    (streams / "b").rename(streams / "a")
    (streams / "other").rename(streams / "b")
    report = verify(folder)
    assert not report.good
    assert "it belongs to stream 'b'" in "\n".join(report.lines())
    with Lake(folder) as lake, pytest.raises(LakeDamaged, match="restore the stream under its own name"):
        lake.sample(1, np.random.default_rng(0))


def test_stream_of_another_lake_is_damage(folder: Path, tmp_path: Path) -> None:
    naive, rng = NaiveLake(), np.random.default_rng(0)
    with Lake.create(tmp_path / "other", MIXED) as lake, lake.writer("a", 2) as writer:
        writer.append(naive.generate("a", 2, 4, rng, MIXED, fresh=False, ends=0))
    shutil.rmtree(folder / "streams" / "a")
    shutil.copytree(tmp_path / "other" / "streams" / "a", folder / "streams" / "a")
    assert not verify(folder).good


def test_any_two_records_or_frames_swapped_are_damage(folder: Path) -> None:
    """Within a file: every record with every other, byte for byte at the other's place."""
    width = MIXED.record.itemsize
    steps = folder / "streams" / "a" / "000001.steps"
    data = steps.read_bytes()
    rows = range(len(data) // width)
    for one, other in itertools.islice(itertools.combinations(rows, 2), 40):
        swapped = bytearray(data)
        swapped[one * width : one * width + width] = data[other * width : other * width + width]
        swapped[other * width : other * width + width] = data[one * width : one * width + width]
        steps.write_bytes(swapped)
        assert not verify(folder).good, (one, other)
    steps.write_bytes(data)
    assert verify(folder).good
    # Frames of equal stored length in the same file.
    frames = folder / "streams" / "a" / "000002.lz4"
    data = frames.read_bytes()
    ends = np.fromfile(folder / "streams" / "a" / "000002.steps", MIXED.record)["frame_end"].tolist()
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    equal = [(p, q) for p, q in itertools.combinations(spans, 2) if p[1] - p[0] == q[1] - q[0]]
    assert equal, "no two frames have the same length"
    for one, other in equal:
        swapped = bytearray(data)
        swapped[slice(*one)], swapped[slice(*other)] = data[slice(*other)], data[slice(*one)]
        frames.write_bytes(swapped)
        assert not verify(folder).good, (one, other)

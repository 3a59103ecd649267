"""Flipped bits and torn files: never returned as data, always reported."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.replay import Lake, LakeDamaged, LakeError
from millpond.replay.tools import compact, verify
from tests.support.naive_lake import MIXED, NaiveLake, assert_transition

# These two files hold a process id for people to read, nothing else.
NO_DATA = {"lock", "maintenance"}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NaiveLake]:
    folder, naive, rng = tmp_path_factory.mktemp("whole") / "lake", NaiveLake(), np.random.default_rng(0)
    with Lake.create(folder, MIXED, segment_bytes=7_000) as lake:
        for name, lanes in (("a", 2), ("b", 3)):
            with lake.writer(name, lanes) as writer:
                for _ in range(9):
                    writer.append(naive.generate(name, lanes, 4, rng, MIXED, fresh=False, ends=0.15))
            compact(folder, name, keep=2)
    assert {path.suffix for path in folder.rglob("*.*")} >= {".lz4", ".zst", ".steps", ".index", ".json"}
    assert verify(folder).good
    return folder, naive


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in NO_DATA and p.stat().st_size)


def assert_only_valid_data_is_returned(folder: Path, naive: NaiveLake) -> None:
    report = verify(folder)
    assert not report.good
    valid = naive.transitions(stack=2, n_step=1, gamma=1.0, repeat=False)
    with suppress(LakeError), Lake(folder) as lake:  # an error is a report too
        batch = lake.sample(150, np.random.default_rng(0), stack=2, on_damage="skip")
        for i in range(150):
            assert_transition(batch, i, valid[int(batch.record["id"][i])], MIXED, stacked=True)
    assert sum(stream.readable for stream in report.streams) <= len(
        naive.transitions(stack=1, n_step=1, gamma=1.0, repeat=False)
    )


def test_changed_last_byte_of_any_file_is_reported(intact: tuple[Path, NaiveLake], tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(intact[0], folder)
    for damaged_file in files(folder):
        data = damaged_file.read_bytes()
        damaged_file.write_bytes(data[:-2] + bytes([data[-2] ^ 16]) + data[-1:])
        assert not verify(folder).good, damaged_file
        damaged_file.write_bytes(data)
    assert verify(folder).good


@settings(max_examples=40)
@given(file=st.integers(0), place=st.integers(0), bit=st.integers(0, 7))
def test_flipped_bit_is_reported_and_never_returned(
    intact: tuple[Path, NaiveLake], file: int, place: int, bit: int
) -> None:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "lake"
        shutil.copytree(intact[0], folder)
        damaged_file = files(folder)[file % len(files(folder))]
        data = bytearray(damaged_file.read_bytes())
        data[place % len(data)] ^= 1 << bit
        damaged_file.write_bytes(data)
        assert_only_valid_data_is_returned(folder, intact[1])


@settings(max_examples=30)
@given(file=st.integers(0), size=st.integers(0))
def test_torn_file_is_reported_or_recovered(intact: tuple[Path, NaiveLake], file: int, size: int) -> None:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "lake"
        shutil.copytree(intact[0], folder)
        damaged_file = files(folder)[file % len(files(folder))]
        keep = size % damaged_file.stat().st_size
        with open(damaged_file, "r+b") as torn:
            torn.truncate(keep)
        assert_only_valid_data_is_returned(folder, intact[1])
        # A writer then continues or is refused with a reason, and only valid data is returned.
        try:
            with Lake(folder) as lake, lake.writer("a", 2) as writer:
                steps = intact[1].generate("unused", 2, 3, np.random.default_rng(1), MIXED, fresh=True, ends=0)
                writer.append(steps)
        except LakeError:
            return
        finally:
            intact[1].lanes.pop(("unused", 0), None)
            intact[1].lanes.pop(("unused", 1), None)
        with Lake(folder) as lake:
            assert lake.transitions() > 0


def test_damage_error_names_file_and_record(intact: tuple[Path, NaiveLake], tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(intact[0], folder)
    damaged_file = sorted((folder / "streams" / "a").glob("*.lz4"))[0]
    data = bytearray(damaged_file.read_bytes())
    for place in range(20, len(data), 300):
        data[place] ^= 255
    damaged_file.write_bytes(data)
    with Lake(folder) as lake:
        with pytest.raises(LakeDamaged, match=rf"{damaged_file.name}, record \d+: .*lake verify"):
            lake.sample(500, np.random.default_rng(0))
        lake.sample(200, np.random.default_rng(0), on_damage="skip")
        assert any(damaged_file.name in str(damage) for damage in lake.damage)
    report = verify(folder)
    damaged = next(stream for stream in report.streams if stream.name == "a")
    assert 0 < damaged.readable < damaged.transitions
    assert "DAMAGED" in report.lines()[0]
    assert damaged_file.name in "\n".join(report.lines())


def test_damaged_log_entry_is_rebuilt_from_records(intact: tuple[Path, NaiveLake], tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(intact[0], folder)
    with Lake(folder) as lake:
        expected = lake.transitions(2)
    log = folder / "streams" / "b" / "commits"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 4
    log.write_bytes(data)
    with Lake(folder) as lake:
        assert lake.transitions(2) == expected
        assert len(lake.reader("b").rebuilt) == 1
    assert not verify(folder).good

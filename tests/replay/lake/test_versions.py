"""Lakes of every format version that was ever released are readable, writable, and can be upgraded."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from millpond.replay import Lake, LakeBusy, LakeDamaged
from millpond.replay.lake.format import VERSION, Manifest
from millpond.replay.tools import compact, info, verify
from tests.support.lake_versions import STREAMS, VERSIONS, contents
from tests.support.naive_lake import MIXED, NaiveLake

ALL = sorted(path.name for path in VERSIONS.iterdir())


@pytest.fixture(params=ALL)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(VERSIONS / request.param, tmp_path / "lake"))


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return Path(shutil.copytree(VERSIONS / "1", tmp_path / "lake"))


def expected(folder: Path) -> dict[str, object]:
    stored: dict[str, object] = json.loads((folder / "expected.json").read_text())
    return stored


def test_there_is_a_lake_of_every_version() -> None:
    assert [str(version) for version in range(1, VERSION + 1)] == ALL
    assert [Manifest.read(VERSIONS / name).version for name in ALL] == [int(name) for name in ALL]


def test_lake_of_any_version_is_read(folder: Path) -> None:
    assert contents(folder) == expected(folder)
    report = verify(folder)
    assert report.good, report.lines()
    assert [stream.readable for stream in report.streams] == [stream.transitions for stream in report.streams]
    assert info(folder).version == Manifest.read(folder).version
    with Lake(folder) as lake:
        lake.sample(50, np.random.default_rng(0), stack=2)


def test_lake_of_any_version_is_appended_to(folder: Path) -> None:
    naive, rng = NaiveLake(), np.random.default_rng(1)
    before = contents(folder)
    with Lake(folder) as lake:
        for name, lanes in STREAMS.items():
            with lake.writer(name, lanes) as writer:
                position = writer.position
                writer.append(naive.generate(name, lanes, 3, rng, MIXED, fresh=True, ends=0))
                writer.append(naive.generate(name, lanes, 3, rng, MIXED, fresh=True, ends=0))
                writer.rollback(position)
    assert verify(folder).good
    assert contents(folder) == before


def test_verify_names_the_guarantees_that_version_1_lacks(first: Path) -> None:
    lines = "\n".join(verify(first).lines())
    assert "format version 1: checksums cover bytes, not their place" in lines
    assert "`millpond lake compact` upgrades" in lines


def test_compact_upgrades_to_the_newest_version(first: Path) -> None:
    with Lake(first) as reader:
        before = reader.sample(40, np.random.default_rng(3), stack=2)
        done = compact(first)
        assert done.upgraded_from == 1
        reader.refresh()  # a reader that was open before follows
        after = reader.sample(40, np.random.default_rng(3), stack=2)
    for name in ("left", "right", "speed"):
        np.testing.assert_array_equal(before.observation[name], after.observation[name])
    manifest = Manifest.read(first)
    assert (manifest.version, len(manifest.id)) == (VERSION, 32)
    assert contents(first) == expected(first)
    report = verify(first)
    assert report.good
    assert not report.notes
    assert not (first / "streams").exists()
    assert compact(first).upgraded_from is None
    with Lake(first) as lake, lake.writer("a", STREAMS["a"]) as writer:
        writer.append(NaiveLake().generate("a", 2, 3, np.random.default_rng(1), MIXED, fresh=True, ends=0))
    assert verify(first).good
    # From now on a file in the wrong place is noticed.
    streams = first / manifest.streams
    shutil.copy(streams / "b" / "000001.steps", streams / "b" / "000002.steps")
    assert not verify(first).good


def test_lake_is_not_upgraded_under_an_active_writer_or_with_damage(first: Path) -> None:
    with Lake(first) as lake, lake.writer("b", STREAMS["b"]), pytest.raises(LakeBusy, match="'b'"):
        compact(first)
    frames = first / "streams" / "b" / "000001.lz4"
    data = bytearray(frames.read_bytes())
    data[40] ^= 1
    frames.write_bytes(data)
    with pytest.raises(LakeDamaged, match="is damaged, and is not upgraded"):
        compact(first)
    assert Manifest.read(first).version == 1


def test_upgrade_that_dies_at_any_call_leaves_the_old_or_the_new_lake(first: Path, tmp_path: Path) -> None:
    versions = set()
    for call in range(1, 2_000, 7):
        folder = Path(shutil.copytree(first, tmp_path / f"copy{call}"))
        child = os.fork()
        if child == 0:
            from tests.support.lake_crashes import die_at_call

            die_at_call(call, half=False)
            compact(folder)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        versions.add(Manifest.read(folder).version)
        assert contents(folder) == expected(first)
        assert verify(folder).good, verify(folder).lines()
        compact(folder)
        assert contents(folder) == expected(first)
        assert sorted(path.name for path in folder.iterdir()) == ["expected.json", "lake.json", "streams-2"]
        shutil.rmtree(folder)
        if os.WIFEXITED(status):
            break
    assert versions == {1, 2}

"""A hole is damage: what the head promises and the files do not hold is never taken for dropped, cut off or unacknowledged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from millpond.replay import Lake, LakeDamaged
from millpond.replay.lake.log import commit_dtype
from millpond.replay.tools import compact, info, repair, verify
from tests.support.naive_lake import FRAME, NaiveLake, assert_transition

LANES = 2


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NaiveLake]:
    folder, naive, rng = tmp_path_factory.mktemp("holes") / "lake", NaiveLake(), np.random.default_rng(0)
    with Lake.create(folder, FRAME, segment_bytes=4_000) as lake:
        for name in ("a", "b"):
            with lake.writer(name, LANES) as writer:
                for _ in range(8):
                    writer.append(naive.generate(name, LANES, 4, rng, FRAME, fresh=False, ends=0.1))
    assert len(list(folder.glob("streams/a/*.steps"))) >= 3
    return folder, naive


@pytest.fixture
def folder(intact: tuple[Path, NaiveLake], tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact[0], tmp_path / "lake"))


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def truncate_log(stream: Path) -> None:
    log = stream / "commits"
    os.truncate(log, log.stat().st_size - commit_dtype(LANES).itemsize)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 64
    path.write_bytes(data)


HOLES = {
    "oldest records gone": lambda stream: (stream / "000000.steps").unlink(),
    "oldest frames gone": lambda stream: (stream / "000000.lz4").unlink(),
    "middle records gone": lambda stream: (stream / "000001.steps").unlink(),
    "newest records gone": lambda stream: sorted(stream.glob("*.steps"))[-1].unlink(),
    "log one entry short": truncate_log,
    "log gone": lambda stream: (stream / "commits").unlink(),
    "head gone": lambda stream: (stream / "head").unlink(),
    "stream.json gone": lambda stream: (stream / "stream.json").unlink(),
    "stream.json damaged": lambda stream: flip(stream / "stream.json"),
    "record damaged, no index": lambda stream: (
        flip(stream / "000000.steps"),
        (stream / "000000.index").unlink(),
    ),
    "records are a pipe": lambda stream: ((stream / "000000.steps").unlink(), os.mkfifo(stream / "000000.steps")),
    "frames are a link": lambda stream: (
        (stream / "000000.lz4").unlink(),
        (stream / "000000.lz4").symlink_to("/dev/zero"),
    ),
}


@pytest.mark.parametrize("hole", HOLES)
def test_hole_is_reported_and_refused_and_repair_goes_on_without_it(
    folder: Path, intact: tuple[Path, NaiveLake], hole: str
) -> None:
    HOLES[hole](folder / "streams" / "a")
    regular = {path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}
    before = {path: path.read_bytes() for path in regular if path.name != "lock"}
    report = verify(folder)
    assert not report.good
    assert [stream.name for stream in report.streams if stream.damage] == ["a"]
    assert next(stream for stream in report.streams if stream.name == "b").readable > 0
    assert info(folder).damage
    valid = intact[1].transitions(stack=1, n_step=1, gamma=1.0, repeat=False)
    with Lake(folder) as lake:
        if hole != "head gone":  # the log says all that the head would
            assert lake.known_damage()
        with pytest.raises(LakeDamaged):
            lake.sample(10, np.random.default_rng(0))
        with pytest.raises(LakeDamaged):
            list(lake.episodes())
        with pytest.raises(LakeDamaged):
            lake.sample_sequences(2, np.random.default_rng(0), length=2)
        batch = lake.sample(60, np.random.default_rng(0), on_damage="skip")
        for i in range(60):
            assert_transition(batch, i, valid[int(batch.record["id"][i])], FRAME, stacked=False)
        if hole.startswith("record damaged"):  # nothing that a writer appends to is missing
            lake.writer("a", LANES).close()
        else:
            with pytest.raises(LakeDamaged):
                lake.writer("a", LANES)
        lake.writer("b", LANES).close()
    kept = {path: data for path, data in before.items() if path.parent.name == "a" and path.name != "head"}
    assert {path: path.read_bytes() for path in kept} == kept, "a refused writer changed something"
    if hole.startswith(("records are", "frames are")):
        return  # the user must remove what is not a file
    offered = repair(folder)
    rebuilt_only = hole.startswith("stream.json")
    assert bool(offered.lost) != rebuilt_only
    if not rebuilt_only:
        assert "Nothing was changed" in "\n".join(offered.lines())
        assert {path: path.read_bytes() for path in kept} == kept
        done = repair(folder, accept_loss=True)
        assert done.lost == offered.lost
    assert verify(folder).good, verify(folder).lines()
    assert repair(folder).lines() == [f"{folder}: nothing to repair"]
    with Lake(folder) as lake:
        batch = lake.sample(60, np.random.default_rng(0))
        for i in range(60):
            assert_transition(batch, i, valid[int(batch.record["id"][i])], FRAME, stacked=False)
        nothing_lost = rebuilt_only or hole == "head gone"
        assert (lake.transitions() == len(valid)) == nothing_lost
        with lake.writer("a", LANES) as writer:
            writer.append(NaiveLake().generate("a", LANES, 3, np.random.default_rng(0), FRAME, fresh=True, ends=0))
            writer.append(NaiveLake().generate("a", LANES, 3, np.random.default_rng(0), FRAME, fresh=True, ends=0))
    report = verify(folder)
    assert report.good, report.lines()


def test_loss_is_written_down_with_its_place(folder: Path) -> None:
    (folder / "streams" / "a" / "000001.steps").unlink()
    repair(folder, accept_loss=True)
    missing, records = notes_of_a(folder)
    assert missing.startswith("accepted as lost: ")
    assert "000001.steps: the file is missing" in missing
    assert records.startswith("accepted as lost: records 0 to ")
    assert " of segment 1 (on 20" in records


def test_lost_appends_are_written_down_next_to_earlier_losses(folder: Path) -> None:
    (folder / "streams" / "a" / "000001.steps").unlink()
    repair(folder, accept_loss=True)
    commits = folder / "streams" / "a" / "commits"
    commits.write_bytes(commits.read_bytes()[: -commit_dtype(LANES).itemsize])
    repair(folder, accept_loss=True)
    notes = notes_of_a(folder)
    assert len(notes) == 3
    assert "commits: 1 acknowledged appends after entry " in notes[2]


def notes_of_a(folder: Path) -> list[str]:
    return next(stream for stream in verify(folder).streams if stream.name == "a").notes


def test_dropped_segment_is_not_a_hole(tmp_path: Path) -> None:
    rng, naive = np.random.default_rng(0), NaiveLake()
    with Lake.create(tmp_path, FRAME, segment_bytes=2_000, max_bytes=40_000) as lake:
        with lake.writer("a", LANES) as writer:
            for _ in range(60):
                writer.append(naive.generate("a", LANES, 4, rng, FRAME, fresh=False, ends=0.1))
        assert not (tmp_path / "streams" / "a" / "000000.steps").exists()
        lake.refresh()
        lake.sample(50, rng)
    assert verify(tmp_path).good


def test_known_damage_does_not_hide_other_streams_from_verify(folder: Path) -> None:
    """`verify` goes on past a file that cannot be read, names it, and checks the rest."""
    (folder / "streams" / "a" / "stream.json").unlink()
    flip(folder / "streams" / "b" / "000000.lz4")
    lines = "\n".join(verify(folder).lines())
    assert "stream.json cannot be read" in lines
    assert "000000.lz4, record" in lines


def test_rolled_back_bytes_are_freed(tmp_path: Path) -> None:
    naive, rng = NaiveLake(), np.random.default_rng(0)
    with Lake.create(tmp_path, FRAME) as lake, lake.writer("a", LANES) as writer:
        writer.append(naive.generate("a", LANES, 4, rng, FRAME, fresh=False, ends=0))
        before = writer.stream.stored_bytes()
        lake.refresh()
        lake.sample(4, rng)  # the reader maps the files
        for _ in range(20):
            writer.append(NaiveLake().generate("a", LANES, 4, rng, FRAME, fresh=False, ends=0))
        lake.refresh()
        lake.sample(100, rng)
        assert writer.stream.stored_bytes() > 5 * before
        writer.rollback(1)
        assert writer.stream.stored_bytes() <= before + 1_024  # the head has two copies, and a lock was made
        writer.append(naive.generate("a", LANES, 4, rng, FRAME, fresh=False, ends=0))
        assert [path.name for path in writer.stream.path.glob("*.steps")] == ["000000.steps"]
        lake.refresh()
        assert lake.transitions() == len(naive.transitions(stack=1, n_step=1, gamma=1.0, repeat=False))
    assert verify(tmp_path).good


def test_compacted_segment_without_its_file_is_a_hole(folder: Path) -> None:
    compact(folder, keep=1)
    (folder / "streams" / "a" / "000000.zst").unlink()
    assert not verify(folder).good
    with Lake(folder) as lake, pytest.raises(LakeDamaged, match=r"000000\.lz4: the file is missing"):
        lake.sample(10, np.random.default_rng(0))

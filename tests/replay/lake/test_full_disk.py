"""No space and short writes: a clear error, no acknowledged append is lost, and appends continue once there is space."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from millpond.replay import Lake, LakeFull, Writer
from millpond.replay.tools import verify
from tests.support.naive_lake import FRAME, NaiveLake


def fill_until_refused(writer: Writer, naive: NaiveLake, rng: np.random.Generator) -> tuple[int, str]:
    """Append until it is refused; the naive lake keeps only what was acknowledged."""
    for _ in range(2_000):
        before, numbers = {key: list(steps) for key, steps in naive.lanes.items()}, naive.numbers
        steps = naive.generate("a", 2, 20, rng, FRAME, fresh=False, ends=0.1)
        try:
            writer.append(steps)
        except LakeFull as error:
            naive.lanes, naive.numbers = before, numbers
            return writer.position, str(error)
    raise AssertionError("the disk never filled up")


def assert_same(folder: Path, naive: NaiveLake) -> None:
    expected = {step.number for steps in naive.lanes.values() for step in steps}
    with Lake(folder) as lake:
        view = lake.view("a")
        records, damaged = lake.assembler().records(np.zeros(1, np.int32), np.arange(view.num_records)[None])
        assert not damaged
        assert set(records[0]["id"][records[0]["flags"] & 8 == 0].tolist()) == expected
        assert lake.transitions(3) == len(naive.transitions(stack=3, n_step=1, gamma=1.0, repeat=False))
    assert verify(folder).good


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte, if this user may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small file system; the other test needs no mount")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_full_disk_is_a_clear_error_and_appends_continue_after_space_is_freed(small_disk: Path) -> None:
    naive, rng, folder = NaiveLake(), np.random.default_rng(0), small_disk / "lake"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    with Lake.create(folder, FRAME, segment_bytes=150_000) as lake, lake.writer("a", 2) as writer:
        position, message = fill_until_refused(writer, naive, rng)
        assert position > 1
        assert str(folder / "streams" / "a") in message
        assert "no space for an append of" in message
        assert "bytes are free" in message
        with pytest.raises(LakeFull):
            writer.append(NaiveLake().generate("a", 2, 20, rng, FRAME, fresh=False, ends=0))
        assert writer.position == position
        assert_same(folder, naive)
        ballast.unlink()
        assert fill_until_refused(writer, naive, rng)[0] > position
    assert_same(folder, naive)


def test_short_write_at_a_file_size_limit_is_undone(tmp_path: Path) -> None:
    """Under RLIMIT_FSIZE a write that crosses the limit is short, and only the next one is refused."""
    naive, rng, folder = NaiveLake(), np.random.default_rng(0), tmp_path / "lake"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    short = []
    original = os.pwrite

    def watched(fd: int, data: memoryview, offset: int) -> int:
        written = original(fd, data, offset)
        short.append(written < len(data))
        return written

    with Lake.create(folder, FRAME) as lake, lake.writer("a", 2) as writer:
        writer.append(naive.generate("a", 2, 20, rng, FRAME, fresh=False, ends=0.1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
        os.pwrite = watched
        try:
            position, message = fill_until_refused(writer, naive, rng)
        finally:
            os.pwrite = original
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert any(short), "no write was cut short"
        assert "File too large" in message
        assert (folder / "streams" / "a" / "000000.lz4").stat().st_size < 60_000
        assert_same(folder, naive)
        for _ in range(30):
            writer.append(naive.generate("a", 2, 20, rng, FRAME, fresh=False, ends=0.1))
        assert writer.position == position + 30
    assert_same(folder, naive)

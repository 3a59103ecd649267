"""Lakes that a stranger may have made: valid checksums and hostile numbers. The commands answer in a line or a report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from millpond.replay.lake.codec import CHUNK_HEADER, CHUNK_MAGIC
from millpond.replay.lake.format import signed_json
from millpond.replay.lake.log import commit_dtype, entry_checksums
from tests.support.lake_fuzz import LANES, Forger, make_lake

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "lake"
    make_lake(folder)
    return folder


def fuzz(cases: int, seed: int, **environment: str) -> str:
    """Open hostile lakes in a separate process, whose crash would be seen; return what it prints."""
    command = [sys.executable, "-m", "tests.support.lake_fuzz", "--cases", str(cases), "--seed", str(seed)]
    done = subprocess.run(
        command, cwd=PROJECT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hostile_numbers_with_valid_checksums_never_crash() -> None:
    assert "80 hostile lakes" in fuzz(80, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_hostile_numbers_stay_within_the_bounds_of_every_array(tmp_path: Path) -> None:
    checked = fuzz(1_500, seed=11, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
    assert "1500 hostile lakes" in checked


def lane_rows_beyond_the_rows(forger: Forger) -> None:
    entries = np.frombuffer((forger.stream / "commits").read_bytes(), commit_dtype(LANES)).copy()
    entries["lane_rows"][1] = 2**31
    entries["checksum"] = entry_checksums(entries, forger.binding, 0)
    (forger.stream / "commits").write_bytes(entries.tobytes())


def rows_that_contradict_each_other(forger: Forger) -> None:
    entries = np.frombuffer((forger.stream / "commits").read_bytes(), commit_dtype(LANES)).copy()
    entries["row_begin"][2] += 1
    entries["row_end"][2] += 1
    entries["checksum"] = entry_checksums(entries, forger.binding, 0)
    (forger.stream / "commits").write_bytes(entries.tobytes())


def replace_chunk(forger: Forger, packed: bytes) -> None:
    path = forger.stream / "000000.zst"
    _, _, count, _ = CHUNK_HEADER.unpack_from(path.read_bytes())
    numbers = path.read_bytes()[CHUNK_HEADER.size :][: 4 * count]
    covered = np.array([len(packed), count], "<u4").tobytes() + numbers + packed
    checksum = forger.binding.checksum(covered, "chunk", 0)
    path.write_bytes(CHUNK_HEADER.pack(CHUNK_MAGIC, len(packed), count, checksum) + numbers + packed)


def chunk_that_declares_a_terabyte(forger: Forger) -> None:
    replace_chunk(forger, b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x0b\x00\x00\x00")


def chunk_of_four_gigabytes(forger: Forger) -> None:
    part = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 26))
    replace_chunk(forger, part * 64)


def records_are_a_pipe(forger: Forger) -> None:
    (forger.stream / "000001.steps").unlink()
    os.mkfifo(forger.stream / "000001.steps")


def frames_are_endless(forger: Forger) -> None:
    (forger.stream / "000001.lz4").unlink()
    (forger.stream / "000001.lz4").symlink_to("/dev/zero")


def log_is_endless(forger: Forger) -> None:
    (forger.stream / "commits").unlink()
    (forger.stream / "commits").symlink_to("/dev/zero")


def manifest_with(change: Callable[[dict], None]) -> Callable[[Forger], None]:
    def forge(forger: Forger) -> None:
        path = forger.folder / "lake.json"
        tree = json.loads(path.read_text())
        tree.pop("crc32c")
        change(tree)
        path.write_bytes(signed_json(tree))

    return forge


def deep_json(forger: Forger) -> None:
    (forger.folder / "lake.json").write_text("[" * 200_000)


def huge_shape(tree: dict) -> None:
    tree["schema"]["observation"][0]["shape"] = [10**12]


def negative_shape(tree: dict) -> None:
    tree["schema"]["action"]["shape"] = [-1]


HOSTILE: dict[str, tuple[Callable[[Forger], None], str]] = {
    "lane_rows beyond the rows": (lane_rows_beyond_the_rows, "entry 1 contradicts"),
    "rows that contradict each other": (rows_that_contradict_each_other, "entry 2 contradicts"),
    "a chunk that declares a terabyte": (chunk_that_declares_a_terabyte, "declares 1099511627776 bytes"),
    "a chunk of four gigabytes": (chunk_of_four_gigabytes, "000000.zst"),
    "records are a pipe": (records_are_a_pipe, "000001.steps: the file is missing, or not a regular file"),
    "frames are endless": (frames_are_endless, "000001.lz4: the file is missing, or not a regular file"),
    "a log is endless": (log_is_endless, "commits: not a regular file"),
    "deep JSON": (deep_json, "lake.json cannot be read"),
    "a shape of 10^12": (manifest_with(huge_shape), "lake.json is damaged: field 'left': shape=[1000000000000]"),
    "a negative shape": (manifest_with(negative_shape), "lake.json is damaged: field 'action': shape=[-1]"),
    "segments of -1 bytes": (manifest_with(lambda tree: tree.update(segment_bytes=-1)), "segment_bytes=-1 is not"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_commands_answer_a_hostile_lake_without_a_traceback(intact: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(intact, tmp_path / "lake"))
    forge, expected = HOSTILE[name]
    forge(Forger(folder, None))  # type: ignore[arg-type]
    for verb in ("info", "verify"):
        command = [sys.executable, "-m", "millpond", "lake", verb, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in ((0, 1, 2) if verb == "info" else (1, 2)), done.stderr
        if verb == "verify":
            assert expected in done.stdout + done.stderr, done.stdout + done.stderr

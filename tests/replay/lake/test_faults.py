"""Lakes on disks that fail at any call, in processes that die at any call, and on machines that lose power at any moment.

Acknowledged appends are there and equal; an append that failed is not; one in flight is there completely or not at all.
`python -m tests.support.faults` runs all cases and counts them.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from tests.support.disk_calls import DiskCalls
from tests.support.faults import Cases
from tests.support.faulty_disk import DiskFaults, Killed
from tests.support.lake_session import SCRIPTS
from tests.support.power_loss import DiskTrace, files_below

QUICK = {"faults": 30, "exits": 6, "cuts": 80, "both": 12}


def run(session: str, kind: str, folder: Path, count: int | None) -> None:
    cases = Cases(session, folder)
    chosen = cases.sample(kind, count)
    failures = cases.run(chosen)
    print(f"{session}: {len(chosen):,} of {len(cases.kinds[kind]):,} {kind} of {cases.calls:,} calls")
    assert not failures, "\n".join([f"{len(failures)} of {len(chosen)} failed", *failures[:10]])


@pytest.mark.parametrize("session", SCRIPTS)
def test_acknowledged_appends_survive_a_fault_at_any_call(tmp_path: Path, session: str) -> None:
    run(session, "faults", tmp_path, QUICK["faults"])


@pytest.mark.parametrize("session", SCRIPTS)
def test_acknowledged_appends_survive_the_end_of_the_process_at_any_call(tmp_path: Path, session: str) -> None:
    run(session, "exits", tmp_path, QUICK["exits"])


@pytest.mark.parametrize("session", SCRIPTS)
def test_acknowledged_appends_survive_a_power_cut_at_any_moment(tmp_path: Path, session: str) -> None:
    run(session, "cuts", tmp_path, QUICK["cuts"])


@pytest.mark.parametrize("session", SCRIPTS)
def test_acknowledged_appends_survive_a_power_cut_after_a_failed_call(tmp_path: Path, session: str) -> None:
    run(session, "both", tmp_path, QUICK["both"])


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", QUICK)
@pytest.mark.parametrize("session", SCRIPTS)
def test_acknowledged_appends_survive_every_fault_exit_and_power_cut(tmp_path: Path, session: str, kind: str) -> None:
    run(session, kind, tmp_path, None)


# -- the simulated disk itself


def write(path: Path, data: bytes, *, sync: bool, sync_folder: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, data)
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)
    if sync_folder:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)


def left(trace: DiskTrace, folder: Path, seed: int, names: float, data: float) -> dict[str, bytes | None]:
    trace.disk(len(trace.events)).cut_power(folder, random.Random(seed), names=names, data=data)
    return files_below(folder)


def test_simulated_disk_keeps_what_was_synced_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    trace = DiskTrace(root)
    with DiskCalls(root, trace=trace):
        write(root / "durable", b"a" * 700, sync=True, sync_folder=False)
        write(root / "empty", b"b", sync=False, sync_folder=True)
        write(root / "nameless", b"c", sync=True, sync_folder=False)
        os.rename(root / "durable", root / "renamed")
    assert left(trace, tmp_path / "none", 0, 0, 0) == {"durable": b"a" * 700, "empty": b""}
    assert left(trace, tmp_path / "all", 0, 1, 1) == files_below(root)
    assert left(trace, tmp_path / "names", 0, 1, 0) == {"renamed": b"a" * 700, "empty": b"", "nameless": b"c"}


def test_simulated_disk_tears_writes_at_sectors_and_renames_never(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(bytes(2048))
    trace = DiskTrace(root)
    with DiskCalls(root, trace=trace):
        write(root / "file", b"x" * 2048, sync=False, sync_folder=False)
        os.replace(root / "file", root / "other")
    states = [left(trace, tmp_path / f"cut{k}", k, 0.5, 0.5) for k in range(40)]
    assert {tuple(state) for state in states} == {("file",), ("other",)}
    contents = {data for state in states for data in state.values() if data is not None}
    assert all(set(data[k : k + 512]) in ({0}, {120}) for data in contents for k in range(0, 2048, 512))
    assert len(contents) > 8


def test_failed_sync_may_lose_what_a_later_sync_does_not_bring_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(bytes(512))
    trace, faults = DiskTrace(root), DiskFaults("EIO", 3)
    with DiskCalls(root, faults=faults, trace=trace):
        descriptor = os.open(root / "file", os.O_WRONLY)
        os.pwrite(descriptor, b"x" * 512, 0)
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(descriptor)
        os.fsync(descriptor)
        os.close(descriptor)
    assert left(trace, tmp_path / "cut", 0, 1, 0) == {"file": bytes(512)}


def test_faults_hit_pathlib_shutil_and_open_below_the_folder_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_bytes(b"1")
    faults = DiskFaults("EIO onwards", 1)
    with DiskCalls(root, faults=faults):
        for work in (
            lambda: (root / "folder").mkdir(),
            lambda: (root / "file").write_bytes(b"1"),
            lambda: (root / "file").write_text("1"),
            lambda: open(root / "file", "wb"),  # noqa: SIM115
            lambda: (tmp_path / "outside").rename(root / "moved"),
        ):
            with pytest.raises(OSError, match="Input/output error") as raised:
                work()
            assert raised.value.errno == errno.EIO
        (tmp_path / "outside").write_bytes(b"2")
    assert faults.injected == 5
    assert list(root.iterdir()) == []


def test_nothing_changes_after_a_kill(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with DiskCalls(root, faults=DiskFaults("torn kill", 2)) as calls:
        with pytest.raises(Killed):
            (root / "file").write_bytes(b"12345678")
        with pytest.raises(Killed):
            (root / "file").unlink()
        calls.close_all()
    assert files_below(root) == {"file": b"1234"}

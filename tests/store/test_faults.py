"""Checkpoints on disks that fail at any call, in processes that die at any call, and after power cuts at any moment.

The newest complete checkpoint is found, bit for bit; the one in flight is there completely or not at all.
"""

from pathlib import Path

import pytest

from tests.support.faults import CHECKPOINTS, Cases

QUICK = {"faults": 120, "exits": 12, "cuts": 200}


def run(kind: str, folder: Path, count: int | None) -> None:
    cases = Cases(CHECKPOINTS, folder)
    chosen = cases.sample(kind, count)
    failures = cases.run(chosen)
    print(f"checkpoints: {len(chosen):,} of {len(cases.kinds[kind]):,} {kind} of {cases.calls:,} calls")
    assert not failures, "\n".join([f"{len(failures)} of {len(chosen)} failed", *failures[:10]])


def test_newest_checkpoint_is_found_after_a_fault_at_any_call(tmp_path: Path) -> None:
    run("faults", tmp_path, QUICK["faults"])


def test_newest_checkpoint_is_found_after_the_end_of_the_process_at_any_call(tmp_path: Path) -> None:
    run("exits", tmp_path, QUICK["exits"])


def test_newest_checkpoint_is_found_after_a_power_cut_at_any_moment(tmp_path: Path) -> None:
    run("cuts", tmp_path, QUICK["cuts"])


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", QUICK)
def test_newest_checkpoint_is_found_after_every_fault_exit_and_power_cut(tmp_path: Path, kind: str) -> None:
    run(kind, tmp_path, None)

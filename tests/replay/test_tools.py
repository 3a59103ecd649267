"""Compacted segments give the same samples from fewer bytes, also to readers that were open before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from millpond.replay import Lake, LakeError
from millpond.replay.tools import compact, verify
from tests.support.naive_lake import MIXED, NaiveLake, assert_transition


def test_compaction_keeps_samples_while_others_read_and_write(tmp_path: Path) -> None:
    naive, rng, folder = NaiveLake(), np.random.default_rng(0), tmp_path / "lake"
    lake = Lake.create(folder, MIXED, segment_bytes=12_000)
    writer = lake.writer("a", 2)

    def append(times: int) -> None:
        for _ in range(times):
            writer.append(naive.generate("a", 2, 7, rng, MIXED, fresh=False, ends=0.1))

    append(25)
    before, reader = Lake(folder), Lake(folder)
    expected = before.sample(200, np.random.default_rng(4), stack=3)
    sizes = compact(folder, keep=2)
    assert sizes.segments >= 3
    assert sizes.after < sizes.before
    assert len(list(folder.rglob("*.zst"))) == sizes.segments
    for lake_now in (before, reader, Lake(folder)):  # two that were open, one with files open already; one afresh
        batch = lake_now.sample(200, np.random.default_rng(4), stack=3)
        np.testing.assert_array_equal(batch.record, expected.record)
        np.testing.assert_array_equal(batch.observation["left"], expected.observation["left"])
    append(25)
    assert compact(folder, "a", keep=2).segments >= 3
    assert compact(folder, "a", keep=2).segments == 0
    lake.refresh()
    valid = naive.transitions(stack=3, n_step=2, gamma=1.0, repeat=False)
    batch = lake.sample(400, rng, stack=3, n_step=2)
    for i in range(400):
        assert_transition(batch, i, valid[int(batch.record["id"][i])], MIXED, stacked=True)
    assert verify(folder).good
    with pytest.raises(LakeError, match="no stream"):
        compact(folder, "b")
    # Rollback into a compacted segment: it stays, and a new segment begins after it.
    writer.rollback(5)
    expected = NaiveLake()
    replay = np.random.default_rng(0)
    for _ in range(5):
        expected.generate("a", 2, 7, replay, MIXED, fresh=False, ends=0.1)
    writer.append(expected.generate("a", 2, 7, replay, MIXED, fresh=False, ends=0.1))
    lake.refresh()
    assert lake.transitions(3) == len(expected.transitions(stack=3, n_step=1, gamma=1.0, repeat=False))
    writer.close()
    assert verify(folder).good
    for each in (lake, before, reader):
        each.close()

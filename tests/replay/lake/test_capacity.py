"""The oldest files of the largest stream are dropped, and readers continue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from millpond.replay import Lake, LakeError
from millpond.replay.tools.verify import verify
from tests.support.naive_lake import FRAME, NaiveLake, assert_transition

LIMIT = 600_000


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in {".steps", ".lz4", ".zst", ".index"})


def test_max_bytes_holds_over_all_streams(tmp_path: Path) -> None:
    naive, rng, folder = NaiveLake(), np.random.default_rng(0), tmp_path / "lake"
    with Lake.create(folder, FRAME, max_bytes=LIMIT, segment_bytes=20_000) as lake:
        writers = {name: lake.writer(name, 2) for name in ("fast", "slow")}
        valid: dict[int, object] = {}
        for turn in range(500):
            for name in ("fast", "slow") if turn % 4 == 0 else ("fast",):
                writers[name].append(naive.generate(name, 2, 6, rng, FRAME, fresh=False, ends=0.1))
            assert used(folder) <= LIMIT
            if turn == 49:
                lake.refresh()
            if turn % 50 == 49:
                # The reader may look at files that are gone by now: it looks afresh by itself.
                valid = naive.transitions(stack=3, n_step=1, gamma=1.0, repeat=False)
                batch = lake.sample(100, rng, stack=3)
                for i in range(0, 100, 9):
                    assert_transition(batch, i, valid[int(batch.record["id"][i])], FRAME, stacked=True)
        for writer in writers.values():
            writer.close()
        lake.refresh()
        assert used(folder) > LIMIT // 2
        shares = {name: lake.view(name).transitions() for name in lake.streams}
        # `slow` wrote a fifth of all and keeps nearly everything, since `fast` always held more.
        assert shares["slow"] > 125 * 12 * 0.8
        assert shares["fast"] < 500 * 12 * 0.7
        assert verify(folder).good
        # A stack that would reach into a dropped file is not returned, one that does not is.
        fast = [lake.view("fast").transitions(stack) for stack in (1, 2, 3)]
        assert fast[0] >= fast[1] >= fast[2] > 0
        ids = set(lake.sample(5_000, rng, stack=3).record["id"].tolist())
        assert ids <= set(valid) | set(naive.transitions(stack=3, n_step=1, gamma=1.0, repeat=False))
        assert lake.transitions(3) >= len(ids)


def test_new_writer_continues_after_dropped_files(tmp_path: Path) -> None:
    naive, rng = NaiveLake(), np.random.default_rng(1)
    with Lake.create(tmp_path, FRAME, max_bytes=200_000, segment_bytes=10_000) as lake:
        for _ in range(4):
            with lake.writer("a", 1) as writer:
                position = writer.position
                for _ in range(60):
                    writer.append(naive.generate("a", 1, 6, rng, FRAME, fresh=True, ends=0.1))
                assert writer.position == position + 60
        lake.refresh()
        assert lake.view("a").segments[0].number > 0
        assert verify(tmp_path).good
        with lake.writer("a", 1) as writer, pytest.raises(LakeError, match="was dropped"):
            writer.rollback(1)


def test_segments_of_an_idle_stream_are_dropped_too(tmp_path: Path) -> None:
    naive, rng = NaiveLake(), np.random.default_rng(1)
    with Lake.create(tmp_path, FRAME, max_bytes=200_000, segment_bytes=10_000) as lake:
        for name in ("idle", "busy"):
            with lake.writer(name, 1) as writer:
                for _ in range(200):
                    writer.append(naive.generate(name, 1, 6, rng, FRAME, fresh=False, ends=0.1))
        lake.refresh()
        idle, busy = (lake.view(name).num_records for name in ("idle", "busy"))
        assert 0.5 < idle / busy < 2
        assert used(tmp_path) <= 200_000


def test_max_bytes_below_eight_segments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="less than 8 segments"):
        Lake.create(tmp_path, FRAME, max_bytes=1_000, segment_bytes=1_000)

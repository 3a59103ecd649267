"""Blocks of consecutive steps: in a lake, in a ring, and in a pond that was filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millpond.replay import Field, Lake, Pond, Schema, Steps
from millpond.replay.blocks import block_records, list_blocks
from millpond.replay.schema import FINAL
from millpond.replay.transfer import fill, fill_blocks

SCHEMA = Schema((Field("observation", (1,), "float32"),), Field("action", (), "int32"))
COLUMN = SCHEMA.column(SCHEMA.observation[0])


def played(steps: int, lanes: int, seed: int = 0, start: int = 0) -> Steps:
    """Return random episodes; the observation of step t of lane l is 1000 l + t."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((steps, lanes)) < 0.1
    truncated = (rng.random((steps, lanes)) < 0.1) & ~terminated
    seen = 1000.0 * np.arange(lanes) + start + np.arange(steps)[:, None]
    return Steps(
        observation=seen[..., None].astype(np.float32),
        action=np.zeros((steps, lanes), int),
        reward=np.ones((steps, lanes)),
        terminated=terminated,
        truncated=truncated,
        final_observation=np.full((int(truncated.sum()), 1), -1.0, np.float32),
    )


def seen_by_block(view: Any, fields: Any, **options: Any) -> list[list[float]]:
    length = options.pop("length", 8)
    blocks = list_blocks(view, length, **options)
    records = block_records(view, blocks, np.arange(len(blocks)), length)
    return [[float(fields[record]) for record in row if record >= 0] for row in records]


def filled_lake(folder: Path, appends: int = 5, steps: int = 7, lanes: int = 3) -> Lake:
    lake = Lake.create(folder, SCHEMA)
    with lake.writer("a", lanes=lanes) as writer:
        for number in range(appends):
            writer.append(played(steps, lanes, seed=number, start=number * steps))
    lake.refresh()
    return lake


def observations(lake: Lake) -> Any:
    view = lake.view("a")
    observed, _ = lake.assembler().windows(np.zeros(1, np.int32), np.arange(view.num_records)[None])
    return observed["observation"][0, :, 0]


@pytest.mark.parametrize("offset", [0, 3, 7])
def test_each_step_of_a_lake_is_in_one_block_of_consecutive_steps(tmp_path: Path, offset: int) -> None:
    with filled_lake(tmp_path / "lake") as lake:
        blocks = seen_by_block(lake.view("a"), observations(lake), offset=offset)
        for block in blocks:
            assert np.diff(block).tolist() == [1.0] * (len(block) - 1)
        together = sorted(value for block in blocks for value in block)
        expected = [1000.0 * lane + t for lane in range(3) for t in range(35)]
        last = lake.view("a").flags  # the last step of a lane has no next observation, unless it ended its episode
        assert set(together) <= set(expected)
        assert len(together) == len(set(together)) == lake.transitions()
        assert len(last) > 0
        firsts = [block for block in blocks if block[0] % 1000 == 0]
        assert [len(block) for block in firsts] == [8 - offset] * 3


def test_newest_steps_are_those_at_the_end_of_each_lane(tmp_path: Path) -> None:
    with filled_lake(tmp_path / "lake") as lake:
        every = [v for block in seen_by_block(lake.view("a"), observations(lake)) for v in block]
        newest = [v for block in seen_by_block(lake.view("a"), observations(lake), newest=10) for v in block]
        assert sorted(newest) == sorted(v for v in every if v % 1000 >= 25)


def test_ring_that_wrapped_has_blocks_of_its_newest_steps() -> None:
    pond = Pond.init(SCHEMA, 3 * 20, lanes=3)
    for number in range(6):
        pond.add(played(7, 3, seed=number, start=number * 7))
    blocks = seen_by_block(pond.view(), pond.fields[COLUMN].numpy()[:, 0])
    for block in blocks:
        assert np.diff(block).tolist() == [1.0] * (len(block) - 1)
    assert sum(map(len, blocks)) == pond.transitions()
    assert max(v % 1000 for block in blocks for v in block) in (40, 41)


def test_filled_pond_has_the_steps_of_the_drawn_blocks(tmp_path: Path) -> None:
    with filled_lake(tmp_path / "lake") as lake:
        pond = Pond.init(SCHEMA, 300)
        count = fill_blocks(pond, lake, 40, np.random.default_rng(0), length=8)
        assert 40 <= count < 48
        blocks = seen_by_block(pond.view(), pond.fields[COLUMN].numpy()[:, 0])
        assert sum(map(len, blocks)) == count == pond.transitions()
        everything = fill_blocks(pond, lake, 10**6, np.random.default_rng(0), length=8)
        assert everything == lake.transitions()
        newest = fill_blocks(pond, lake, 10**6, np.random.default_rng(0), length=8, newest=10)
        kept = pond.flags[: pond.view().num_records] & FINAL == 0
        assert newest <= 30
        assert (pond.fields[COLUMN].numpy()[: len(kept), 0][kept] % 1000 >= 25).all()


def test_blocks_are_drawn_uniformly(tmp_path: Path) -> None:
    """Every step has the same chance, whatever its place: offsets differ from fill to fill."""
    with filled_lake(tmp_path / "lake", appends=12) as lake:
        pond, seen = Pond.init(SCHEMA, 600), np.zeros(3 * 1000)
        rng = np.random.default_rng(1)
        for _ in range(600):
            fill_blocks(pond, lake, 60, rng, length=8)
            for block in seen_by_block(pond.view(), pond.fields[COLUMN].numpy()[:, 0], length=100):
                seen[np.array(block, int)] += 1
        share = seen[seen > 0] / 600
        assert len(share) == lake.transitions()
        assert share.min() > 0.15
        assert share.max() < 0.40


def test_uniform_fill_is_unchanged(tmp_path: Path) -> None:
    with filled_lake(tmp_path / "lake") as lake:
        pond = Pond.init(SCHEMA, 300)
        fill(pond, lake, 40, np.random.default_rng(0))
        assert pond.transitions() == 40

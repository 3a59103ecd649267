"""Priorities of a lake: exact proportions, exact sums, and what survives a kill."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millpond.replay import Field, Lake, LakeDamaged, LakeError, Priorities, Schema, Steps
from millpond.replay.lake.priority import BLOCK_BYTES, LEAVES
from millpond.replay.schema import LakeBusy

SCHEMA = Schema((Field("observation", (1,), "float32"),), Field("action", (), "int32"))


def steps(count: int, lanes: int, seed: int = 0) -> Steps:
    rng = np.random.default_rng(seed)
    truncated = rng.random((count, lanes)) < 0.1
    return Steps(
        observation=rng.normal(size=(count, lanes, 1)).astype(np.float32),
        action=np.zeros((count, lanes), int),
        reward=np.ones((count, lanes)),
        terminated=(rng.random((count, lanes)) < 0.1) & ~truncated,
        truncated=truncated,
        final_observation=np.zeros((int(truncated.sum()), 1), np.float32),
    )


def make(folder: Path, streams: int = 2, count: int = 40, **options: Any) -> Lake:
    lake = Lake.create(folder, SCHEMA, **options)
    for number in range(streams):
        with lake.writer(f"agent{number}", lanes=3) as writer:
            writer.append(steps(count, 3, seed=number))
    lake.refresh()
    return lake


def every_record(lake: Lake) -> tuple[Any, Any]:
    counts = [lake.view(name).num_records for name in lake.streams]
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts), np.concatenate([np.arange(n) for n in counts])


def valid_records(lake: Lake, n_step: int = 1) -> set[tuple[int, int]]:
    batch = lake.sample(20_000, np.random.default_rng(0), n_step=n_step)
    found = set(zip(batch.stream.tolist(), batch.index.tolist(), strict=True))
    assert len(found) == lake.transitions(n_step=n_step)
    return found


@pytest.mark.parametrize("n_step", [1, 3])
def test_transitions_are_drawn_in_exact_proportion_to_their_priorities(tmp_path: Path, n_step: int) -> None:
    """Chi-square over all valid transitions of two streams; priorities span five orders of magnitude."""
    with make(tmp_path / "lake") as lake, Priorities.open(lake, "big") as priorities:
        stream, index = every_record(lake)
        priority = np.exp(np.random.default_rng(1).normal(size=len(index)) * 2).astype(np.float32)
        priorities.update(stream, index, priority)
        rng, draws = np.random.default_rng(2), 60_000
        batch = lake.sample(draws, rng, priority=priorities, n_step=n_step)
        valid = valid_records(lake, n_step)
        weights = {(int(s), int(i)): float(p) for s, i, p in zip(stream, index, priority, strict=True)}
        total = sum(weights[record] for record in valid)
        counts = dict.fromkeys(valid, 0)
        for record in zip(batch.stream.tolist(), batch.index.tolist(), strict=True):
            counts[record] += 1  # a KeyError: not a valid transition
        expected = {record: draws * weights[record] / total for record in valid}
        large = [record for record in valid if expected[record] >= 5]
        rare = [record for record in valid if expected[record] < 5]
        terms = [(counts[r] - expected[r]) ** 2 / expected[r] for r in large]
        seen, hoped = sum(counts[r] for r in rare), sum(expected[r] for r in rare)
        terms.append((seen - hoped) ** 2 / max(hoped, 1e-9))
        freedom = len(terms) - 1
        assert freedom > 50
        assert abs(sum(terms) - freedom) < 4 * np.sqrt(2 * freedom)


def test_equal_priorities_give_the_uniform_distribution(tmp_path: Path) -> None:
    with make(tmp_path / "lake") as lake, Priorities.open(lake, "big") as priorities:
        batch = lake.sample(40_000, np.random.default_rng(3), priority=priorities)
        counts = np.unique(np.stack([batch.stream, batch.index]), axis=1, return_counts=True)[1]
        assert len(counts) == lake.transitions()
        mean = 40_000 / len(counts)
        assert abs(((counts - mean) ** 2 / mean).sum() - len(counts)) < 4 * np.sqrt(2 * len(counts))


def test_zero_is_never_drawn_and_new_records_get_the_largest(tmp_path: Path) -> None:
    with make(tmp_path / "lake", streams=1) as lake, Priorities.open(lake, "big") as priorities:
        stream, index = every_record(lake)
        priorities.update(stream, index, np.zeros(len(index)))
        with pytest.raises(LakeError, match=r"all priorities .* are 0"):
            lake.sample(1, np.random.default_rng(0), priority=priorities)
        priorities.update(stream[:1], index[:1], np.array([7.0]))
        with lake.writer("agent0", lanes=3) as writer:
            writer.append(steps(10, 3, seed=9))
        lake.refresh()
        with pytest.raises(LakeError, match=r"call refresh\(\)"):
            priorities.get(stream[:1], index[:1])
        priorities.refresh()
        new = np.arange(len(index), lake.view("agent0").num_records)
        found = priorities.get(np.zeros(len(new), np.int32), new)
        is_step = lake.view("agent0").flags[new] & 8 == 0
        assert set(found[is_step].tolist()) == {7.0}
        assert set(found[~is_step].tolist()) <= {0.0}
        drawn = lake.sample(500, np.random.default_rng(0), priority=priorities).index
        assert set(drawn.tolist()) <= {0, *new.tolist()}


def test_sums_are_those_of_the_numbers_after_any_updates_and_after_opening(tmp_path: Path) -> None:
    with make(tmp_path / "lake", count=900) as lake:
        stream, index = every_record(lake)
        rng = np.random.default_rng(4)
        with Priorities.open(lake, "big") as priorities:
            for _ in range(50):
                where = rng.integers(0, len(index), 64)
                priorities.update(stream[where], index[where], np.exp(rng.normal(size=64) * 9))
            before, total = priorities.get(stream, index), priorities.total
            sums = {name: each.sums.copy() for name, each in priorities._streams.items()}
            assert priorities.nbytes == 12 * sum(map(len, sums.values()))
            drawn = lake.sample(256, np.random.default_rng(5), priority=priorities)
        with Priorities.open(lake, "big") as again:
            assert again.total == total
            np.testing.assert_array_equal(again.get(stream, index), before)
            for name, each in again._streams.items():
                np.testing.assert_array_equal(each.sums, sums[name])
            same = lake.sample(256, np.random.default_rng(5), priority=again)
            np.testing.assert_array_equal(same.index, drawn.index)
            np.testing.assert_allclose(again.total, before.astype(np.float64).sum(), rtol=1e-12)


def test_what_update_returned_for_survives_a_kill(tmp_path: Path) -> None:
    """A process is killed while it updates; it notes after each update how far it is."""
    make(tmp_path / "lake", streams=1, count=1_500).close()
    note, child = tmp_path / "note", os.fork()
    if child == 0:
        try:
            with Lake(tmp_path / "lake") as lake, Priorities.open(lake, "big") as priorities:
                _, index = every_record(lake)
                fd = os.open(note, os.O_WRONLY | os.O_CREAT)
                for number in range(1, 10**9):
                    priorities.update(np.zeros(len(index), np.int32), index, np.full(len(index), number))
                    os.pwrite(fd, b"%d" % number, 0)
        finally:
            os._exit(1)
    while not note.exists() or len(note.read_bytes()) < 2:  # at least ten updates
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    done = int(note.read_bytes())
    with Lake(tmp_path / "lake") as lake, Priorities.open(lake, "big") as priorities:
        stream, index = every_record(lake)
        found = priorities.get(stream, index)
        assert set(found.tolist()) <= {float(done), float(done + 1)}  # each block is as before or after the last one
        np.testing.assert_allclose(priorities.total, found.astype(np.float64).sum(), rtol=1e-12)


def test_dropped_segments_take_their_priorities_with_them(tmp_path: Path) -> None:
    with make(tmp_path / "lake", streams=1, segment_bytes=2_000, max_bytes=16_000) as lake:
        with Priorities.open(lake, "big") as priorities:
            for number in range(12):
                with lake.writer("agent0", lanes=3) as writer:
                    writer.append(steps(10, 3, seed=number))
                lake.refresh()
                priorities.refresh()
                stream, index = every_record(lake)
                newest = index[-5:]
                priorities.update(stream[-5:], newest, np.full(5, 2.0))
                np.testing.assert_array_equal(priorities.get(stream[-5:], newest), np.full(5, 2.0))
                found = priorities.get(stream, index).astype(np.float64)
                np.testing.assert_allclose(priorities.total, found.sum(), rtol=1e-12)
            assert priorities._streams["agent0"].dropped > 0
            lake.sample(100, np.random.default_rng(0), priority=priorities)
        with Priorities.open(lake, "big") as again:
            np.testing.assert_array_equal(again.get(stream, index), found)


def test_damage_is_found_and_one_process_has_them_at_a_time(tmp_path: Path) -> None:
    with make(tmp_path / "lake", streams=1) as lake:
        with Priorities.open(lake, "big"), pytest.raises(LakeBusy, match="the priorities 'big'"):
            Priorities.open(lake, "big")
        Priorities.open(lake, "other").close()
        path = tmp_path / "lake" / "priorities" / "big" / "agent0.priorities"
        data = bytearray(path.read_bytes())
        assert len(data) == BLOCK_BYTES
        assert LEAVES == 1_023
        data[100] ^= 1
        path.write_bytes(data)
        with pytest.raises(LakeDamaged, match="block 0: the checksum does not match"):
            Priorities.open(lake, "big")
        with pytest.raises(LakeError, match="leave out weights and quotas"):
            lake.sample(1, np.random.default_rng(0), priority=Priorities.open(lake, "third"), weights={"agent0": 1})
        with pytest.raises(LakeError, match="must be finite and not negative"):
            Priorities.open(lake, "fourth").update(np.zeros(1, np.int32), np.zeros(1, int), np.array([-1.0]))

"""Ponds against the naive lake: ring edges, truncations, pouring and filling."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.replay import Lake, LakeError, LakeFull, PondFull
from millpond.replay.pond import Pond, pond_record_bytes
from millpond.replay.transfer import fill, pour
from tests.support.naive_lake import FRAME, MIXED, SCHEMAS, NaiveLake, assert_transition
from tests.support.sampling import chi_square


def in_ring(naive: NaiveLake, ring: int) -> NaiveLake:
    """What a ring of so many rows a lane still holds: the newest steps whose rows fit, and their finals."""
    kept = NaiveLake()
    for key, steps in naive.lanes.items():
        rows, first = 0, len(steps)
        while first > 0 and rows + 1 + (steps[first - 1].final is not None) <= ring:
            first -= 1
            rows += 1 + (steps[first].final is not None)
        kept.lanes[key] = steps[first:]
    return kept


def valid_in_ring(naive: NaiveLake, ring: int, stack: int, n_step: int, repeat: bool) -> dict:
    """Transitions whose whole stack is in the ring."""
    everything = naive.transitions(stack=stack, n_step=n_step, gamma=0.5, repeat=repeat)
    held = {step.number for steps in in_ring(naive, ring).lanes.values() for step in steps}
    return {k: v for k, v in everything.items() if k in held and all(n is None or n in held for n in v.stack)}


@settings(max_examples=40)
@given(
    kind=st.sampled_from(sorted(SCHEMAS)),
    lanes=st.integers(1, 3),
    ring=st.integers(4, 20),
    adds=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    ends=st.sampled_from([0.0, 0.1, 0.5]),
    stack=st.sampled_from([None, 1, 3]),
    n_step=st.integers(1, 3),
    repeat=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_samples_equal_those_of_the_naive_lake(
    kind: str,
    lanes: int,
    ring: int,
    adds: list[int],
    ends: float,
    stack: int | None,
    n_step: int,
    repeat: bool,
    seed: int,
) -> None:
    rng, schema, naive = np.random.default_rng(seed), SCHEMAS[kind], NaiveLake()
    pond = Pond.init(schema, ring * lanes, lanes=lanes)
    for count in adds:
        steps = naive.generate("a", lanes, count, rng, schema, fresh=False, ends=ends)
        if max(count + int(lane) for lane in steps.has_final.sum(axis=0)) > ring:
            with pytest.raises(PondFull):
                pond.add(steps)
            return
        pond.add(steps)
    valid = valid_in_ring(naive, ring, stack or 1, n_step, repeat)
    assert pond.transitions(stack, n_step) == len(valid)
    assert pond.can_sample(len(valid), stack=stack, n_step=n_step)
    assert not pond.can_sample(len(valid) + 1, stack=stack, n_step=n_step)
    options = {"stack": stack, "n_step": n_step, "gamma": 0.5, "padding": "repeat" if repeat else "zero"}
    if not valid:
        with pytest.raises(LakeError):
            pond.sample(1, rng, **options)
        return
    n = 25 * len(valid) + 50
    batch = pond.sample(n, rng, **options)
    ids = batch.column["id"].tolist()
    assert set(ids) == set(valid)
    for i in range(0, n, 1 + n // 60):
        assert_transition(batch, i, valid[ids[i]], schema, stacked=stack is not None)


def test_parts_of_a_sample_equal_the_full_sample() -> None:
    pond, naive = Pond.init(FRAME, 40, lanes=2), NaiveLake()
    pond.add(naive.generate("a", 2, 15, np.random.default_rng(0), FRAME, fresh=False, ends=0.1))
    whole, *parts = (
        pond.sample(9, np.random.default_rng(1), stack=3, part=part) for part in (slice(None), slice(0, 4), slice(4, 9))
    )
    for name in ("observation", "next_observation", "action", "reward", "discount"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    assert len(parts[0].action) == 4


def test_bytes_of_a_pond_equal_the_announced_number() -> None:
    said: list[str] = []
    pond = Pond.init(FRAME, 100, lanes=4, announce=said.append)
    assert said == [f"pond: 100 records of {pond_record_bytes(FRAME):,} bytes on cpu: {pond.nbytes:,} bytes"]
    with pytest.raises(LakeError, match="records=10 is not a multiple of lanes=4; try 8"):
        Pond.init(FRAME, 10, lanes=4)


def test_state_round_trips_through_a_safe_file() -> None:
    rng, naive = np.random.default_rng(0), NaiveLake()
    pond, other = (Pond.init(MIXED, 40, lanes=2, guarded=False) for _ in range(2))
    for _ in range(9):
        pond.add(naive.generate("a", 2, 4, rng, MIXED, fresh=False, ends=0.2))
    file = io.BytesIO()
    torch.save(pond.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    more = naive.generate("a", 2, 4, rng, MIXED, fresh=False, ends=0.2)
    for each in (pond, other):
        each.add(more)
    first, second = (each.sample(60, np.random.default_rng(1), stack=2, n_step=2) for each in (pond, other))
    assert torch.equal(first.observation["left"], second.observation["left"])
    assert torch.equal(first.column["id"], second.column["id"])
    with pytest.raises(LakeError, match="the saved pond has"):
        Pond.init(MIXED, 80, lanes=2).load_state_dict(pond.state_dict())


def test_pour_returns_every_step_once(tmp_path: Path) -> None:
    rng, naive = np.random.default_rng(0), NaiveLake()
    pond = Pond.init(MIXED, 60, lanes=3, guarded=True)
    with Lake.create(tmp_path, MIXED, segment_bytes=20_000) as lake, lake.writer("a", 3) as writer:
        poured = 0
        for _ in range(40):
            steps = naive.generate("a", 3, 4, rng, MIXED, fresh=False, ends=0.2)
            try:
                pond.add(steps)
            except PondFull:
                poured += sum(ack.steps for ack in pour(pond, writer, steps_per_append=15))
                pond.add(steps)
        poured += sum(ack.steps for ack in pour(pond, writer))
        assert pour(pond, writer) == []
        assert poured == 40 * 12
        lake.refresh()
        valid = naive.transitions(stack=3, n_step=2, gamma=0.5, repeat=False)
        assert lake.transitions(3, 2) == len(valid)
        batch = lake.sample(500, rng, stack=3, n_step=2, gamma=0.5)
        for i in range(0, 500, 5):
            assert_transition(batch, i, valid[int(batch.record["id"][i])], MIXED, stacked=True)
        with pytest.raises(LakeError, match="guarded=True"):
            pour(Pond.init(MIXED, 3, lanes=3), writer)


def test_steps_that_are_not_poured_are_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, naive = np.random.default_rng(0), NaiveLake()
    pond = Pond.init(FRAME, 20, lanes=2, guarded=True)
    with Lake.create(tmp_path, FRAME) as lake, lake.writer("a", 2) as writer:
        pond.add(naive.generate("a", 2, 9, rng, FRAME, fresh=False, ends=0))
        assert pond.room == 1
        with pytest.raises(PondFull, match="1 records left in its fullest lane and needs 3: pour it first"):
            pond.add(NaiveLake().generate("a", 2, 3, rng, FRAME, fresh=False, ends=0))

        def refuse(*arguments: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("os.pwrite", refuse)
            with pytest.raises(LakeFull):
                pour(pond, writer)
        assert pond.room == 1
        assert sum(ack.steps for ack in pour(pond, writer)) == 18
        assert pond.room == 10


@pytest.mark.parametrize("share", [0.05, 0.4, 1.0])
def test_fill_is_uniform_without_duplicates(tmp_path: Path, share: float) -> None:
    rng, naive = np.random.default_rng(0), NaiveLake()
    with Lake.create(tmp_path, MIXED, segment_bytes=30_000) as lake:
        for name, lanes, appends in (("a", 2, 15), ("b", 3, 4)):
            with lake.writer(name, lanes) as writer:
                for _ in range(appends):
                    writer.append(naive.generate(name, lanes, 5, rng, MIXED, fresh=False, ends=0.1))
        lake.refresh()
        valid = naive.transitions(stack=3, n_step=2, gamma=0.5, repeat=False)
        n = max(1, int(share * len(valid)))
        pond = Pond.init(MIXED, 400)
        seen = dict.fromkeys(valid, 0)
        for _ in range(40):
            said: list[tuple[int, int]] = []
            rows = fill(
                pond, lake, n, rng, stack=3, n_step=2, progress=lambda done, of, said=said: said.append((done, of))
            )
            assert said[-1] == (rows, rows)
            assert pond.transitions(3, 2) == n
            batch = pond.sample(400, rng, stack=3, n_step=2, gamma=0.5)
            ids = batch.column["id"].tolist()
            assert len(set(ids)) <= n
            for number in set(ids):
                seen[number] += 1
        for i in range(0, 400, 4):
            assert_transition(batch, i, valid[ids[i]], MIXED, stacked=True)
        assert rows <= n * 6
        if share == 1.0:
            assert rows <= lake.view("a").num_records + lake.view("b").num_records
        if share == 0.4:
            assert abs(chi_square(np.array(list(seen.values())))) < 6
        # A deeper stack than was filled is never made up.
        deeper = naive.transitions(stack=6, n_step=2, gamma=0.5, repeat=False)
        if pond.can_sample(stack=6, n_step=2):
            batch = pond.sample(100, rng, stack=6, n_step=2, gamma=0.5)
            for i in range(100):
                assert_transition(batch, i, deeper[int(batch.column["id"][i])], MIXED, stacked=True)
        with pytest.raises(LakeError, match="clear"):
            pond.add(naive.generate("x", 1, 1, rng, MIXED, fresh=True, ends=0))
        with pytest.raises(PondFull, match=r"need [\d,]+ records; the pond has 2"):
            fill(Pond.init(MIXED, 2), lake, 3, rng, stack=3)
        with pytest.raises(LakeError, match="were requested"):
            fill(pond, lake, len(valid) + 50, rng, stack=3)

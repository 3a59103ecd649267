"""Ponds against the naive lake: ring edges, truncations, state."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.replay import LakeError, PondFull
from millpond.replay.pond import Pond, pond_record_bytes
from tests.support.naive_lake import FRAME, MIXED, SCHEMAS, NaiveLake, assert_transition


def in_ring(naive: NaiveLake, ring: int) -> NaiveLake:
    """Return the content of a ring of `ring` records per lane: the newest steps that fit, and their final observations."""
    newest = NaiveLake()
    for key, steps in naive.lanes.items():
        records, first = 0, len(steps)
        while first > 0 and records + 1 + (steps[first - 1].final is not None) <= ring:
            first -= 1
            records += 1 + (steps[first].final is not None)
        newest.lanes[key] = steps[first:]
    return newest


def valid_in_ring(naive: NaiveLake, ring: int, stack: int, n_step: int, repeat: bool) -> dict:
    """Return the transitions whose whole stack is in the ring."""
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


def test_parts_of_a_sample_concatenate_to_the_whole_sample() -> None:
    pond, naive = Pond.init(FRAME, 40, lanes=2), NaiveLake()
    pond.add(naive.generate("a", 2, 15, np.random.default_rng(0), FRAME, fresh=False, ends=0.1))
    whole, *parts = (
        pond.sample(9, np.random.default_rng(1), stack=3, part=part) for part in (slice(None), slice(0, 4), slice(4, 9))
    )
    for name in ("observation", "next_observation", "action", "reward", "discount"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    assert len(parts[0].action) == 4


@pytest.mark.parametrize("stack", [None, 1, 3])
def test_many_batches_equal_single_ones_drawn_one_after_the_other(stack: int | None) -> None:
    pond, naive = Pond.init(FRAME, 40, lanes=2), NaiveLake()
    pond.add(naive.generate("a", 2, 15, np.random.default_rng(0), FRAME, fresh=False, ends=0.1))
    one, many = np.random.default_rng(1), np.random.default_rng(1)
    options = {"stack": stack, "n_step": 2, "gamma": 0.5, "part": slice(2, 9)}
    expected = [pond.sample(12, one, **options) for _ in range(3)]
    for batch, alone in zip(pond.sample_many(3, 12, many, **options), expected, strict=True):
        for name, value in vars(alone).items():
            torch.testing.assert_close(vars(batch)[name], value, rtol=0, atol=0)
    assert one.random() == many.random()


@pytest.mark.parametrize("ring", [8, 4_096])
def test_view_has_no_copy_of_the_records(ring: int) -> None:
    pond, naive = Pond.init(FRAME, 2 * ring, lanes=2), NaiveLake()
    for _ in range(7):
        pond.add(naive.generate("a", 2, 2, np.random.default_rng(0), FRAME, fresh=False, ends=0.1))
    view = pond.view()
    assert np.shares_memory(view.flags, pond.flags)
    assert sum(array.size for array in (view.runs.begin, view.runs.rings, view.held)) == 3 + 4 + 2  # by lanes alone
    assert view.num_records == np.minimum(pond.heads, ring).sum()
    slots = view.records(np.arange(view.num_records))
    oldest_first = [range(max(0, int(head) - ring), int(head)) for head in pond.heads]
    assert slots.tolist() == [lane * ring + place % ring for lane in range(2) for place in oldest_first[lane]]


def test_size_is_announced_before_memory_is_allocated() -> None:
    announced: list[str] = []
    pond = Pond.init(FRAME, 100, lanes=4, announce=announced.append)
    assert announced == [f"pond: 100 records of {pond_record_bytes(FRAME):,} bytes on cpu: {pond.nbytes:,} bytes"]
    with pytest.raises(LakeError, match="records=10 is not a multiple of lanes=4; try 8"):
        Pond.init(FRAME, 10, lanes=4)


def test_state_survives_a_file_loaded_with_weights_only() -> None:
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

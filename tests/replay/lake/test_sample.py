"""Sampling against the naive lake: correct at episode starts, truncations, lanes and file edges, and exactly uniform."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.replay import Lake, LakeError
from tests.support.naive_lake import FRAME, SCHEMAS, VECTOR, NaiveLake, assert_transition
from tests.support.sampling import chi_square


@settings(max_examples=40)
@given(
    kind=st.sampled_from(sorted(SCHEMAS)),
    streams=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    appends=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.booleans()), min_size=1, max_size=8),
    ends=st.sampled_from([0.0, 0.1, 0.4, 0.9]),
    stack=st.sampled_from([None, 1, 2, 4]),
    n_step=st.integers(1, 4),
    repeat=st.booleans(),
    segment_bytes=st.sampled_from([1, 2_000, 1 << 20]),
    seed=st.integers(0, 2**32),
)
def test_samples_equal_those_of_the_naive_lake(
    kind: str,
    streams: list[int],
    appends: list[tuple[int, int, bool]],
    ends: float,
    stack: int | None,
    n_step: int,
    repeat: bool,
    segment_bytes: int,
    seed: int,
) -> None:
    rng, schema, naive = np.random.default_rng(seed), SCHEMAS[kind], NaiveLake()
    with TemporaryDirectory() as folder, Lake.create(folder, schema, segment_bytes=segment_bytes) as lake:
        writers = [lake.writer(f"agent{k}", lanes) for k, lanes in enumerate(streams)]
        for which, count, reopen in appends:
            k = which % len(streams)
            if reopen:
                writers[k].close()
                writers[k] = lake.writer(f"agent{k}", streams[k])
            steps = naive.generate(f"agent{k}", streams[k], count, rng, schema, fresh=reopen, ends=ends)
            writers[k].append(steps)
            if rng.random() < 0.5:
                lake.refresh()
        lake.refresh()
        for writer in writers:
            writer.close()
        options = {"stack": stack, "n_step": n_step, "gamma": 0.5, "padding": "repeat" if repeat else "zero"}
        valid = naive.transitions(stack=stack or 1, n_step=n_step, gamma=0.5, repeat=repeat)
        assert lake.transitions(stack, n_step) == len(valid)
        if not valid:
            with pytest.raises(LakeError, match="transitions"):
                lake.sample(1, rng, **options)
            return
        n = 25 * len(valid) + 50
        batch = lake.sample(n, rng, **options)
        ids = batch.record["id"].tolist()
        assert set(ids) == set(valid)
        for i in range(0, n, 1 + n // 120):
            assert_transition(batch, i, valid[ids[i]], schema, stacked=stack is not None)


@pytest.fixture
def uneven(tmp_path: Path) -> tuple[Lake, NaiveLake]:
    """Three streams of very different lengths, in many small files."""
    rng, naive = np.random.default_rng(3), NaiveLake()
    lake = Lake.create(tmp_path / "lake", VECTOR, segment_bytes=3_000)
    for name, lanes, appends, count in (("long", 3, 20, 9), ("short", 1, 2, 3), ("middle", 5, 3, 4)):
        with lake.writer(name, lanes) as writer:
            for _ in range(appends):
                writer.append(naive.generate(name, lanes, count, rng, VECTOR, fresh=False, ends=0.15))
    lake.refresh()
    return lake, naive


def test_samples_are_uniform_over_all_transitions(uneven: tuple[Lake, NaiveLake]) -> None:
    lake, naive = uneven
    valid = naive.transitions(stack=2, n_step=2, gamma=1.0, repeat=False)
    rng = np.random.default_rng(0)
    drawn = np.concatenate([lake.sample(4_000, rng, stack=2, n_step=2).record["id"] for _ in range(15)])
    counts = np.array([np.count_nonzero(drawn == number) for number in valid])
    assert counts.sum() == len(drawn)
    assert len(counts) > 400
    assert abs(chi_square(counts)) < 4
    assert lake.replayed["long"] > lake.replayed["middle"] > lake.replayed["short"] > 0
    assert sum(lake.replayed.values()) == len(drawn)


def test_weights_and_quotas_set_the_share_of_each_stream(uneven: tuple[Lake, NaiveLake]) -> None:
    lake, _ = uneven
    rng = np.random.default_rng(1)
    assert lake.streams == ["long", "middle", "short"]
    batch = lake.sample(60, rng, quotas={"short": 40, "long": 20})
    assert np.bincount(batch.stream, minlength=3).tolist() == [20, 0, 40]
    # A stream's part is not in one piece.
    assert np.count_nonzero(np.diff(batch.stream)) > 10
    weighted = lake.sample(9_000, rng, weights={"short": 2, "middle": 1})
    share = np.bincount(weighted.stream, minlength=3) / 9_000
    assert share[0] == 0
    assert abs(share[2] - 2 / 3) < 5 * np.sqrt(2 / 9 / 9_000)
    short = weighted.record["id"][weighted.stream == 2]
    assert abs(chi_square(np.unique(short, return_counts=True)[1])) < 4
    for wrong in ({"quotas": {"short": 1}}, {"weights": {"none": 1.0}}, {"weights": {"long": 0.0}}):
        with pytest.raises(LakeError):
            lake.sample(60, rng, **wrong)


def test_same_generator_state_gives_the_same_batch(uneven: tuple[Lake, NaiveLake]) -> None:
    lake, _ = uneven
    first = lake.sample(50, np.random.default_rng(7), stack=3)
    with Lake(lake.folder) as again:
        second = again.sample(50, np.random.default_rng(7), stack=3)
    np.testing.assert_array_equal(first.record, second.record)
    np.testing.assert_array_equal(first.observation, second.observation)


def test_sequences_are_consecutive_steps_with_masked_burn_in(tmp_path: Path) -> None:
    rng, naive = np.random.default_rng(5), NaiveLake()
    with Lake.create(tmp_path, FRAME, segment_bytes=20_000) as lake:
        with lake.writer("a", 2) as writer:
            for _ in range(12):
                writer.append(naive.generate("a", 2, 5, rng, FRAME, fresh=False, ends=0.1))
        lake.refresh()
        sequences = lake.sample_sequences(2_000, rng, length=4, burn_in=3)
        starts = sequences.record["id"][:, 3]
        possible = {}
        for steps in naive.lanes.values():
            for i in range(len(steps) - 3):
                run = steps[i : i + 4]
                ended = run[-1].terminated or run[-1].truncated
                known = ended or (i + 4 < len(steps) and not steps[i + 4].first)
                if not any(step.first for step in run[1:]) and known:
                    possible[run[0].number] = (steps, i)
        assert set(starts.tolist()) == set(possible)
        counts = np.array([np.count_nonzero(starts == number) for number in possible])
        assert abs(chi_square(counts)) < 4
        for i in range(50):
            steps, at = possible[int(starts[i])]
            assert sequences.record["id"][i, 3:].tolist() == [step.number for step in steps[at : at + 4]]
            before = []
            while len(before) < 3 and not steps[at - len(before)].first:
                before.insert(0, steps[at - len(before) - 1].number)
            assert sequences.mask[i].tolist() == [False] * (3 - len(before)) + [True] * (len(before) + 4)
            assert sequences.record["id"][i, 3 - len(before) : 3].tolist() == before
            assert not sequences.observation[i, : 3 - len(before)].any()
        with pytest.raises(LakeError, match="sequences of 500"):
            lake.sample_sequences(1, rng, length=500)


def test_sampled_episodes_are_complete(uneven: tuple[Lake, NaiveLake]) -> None:
    lake, naive = uneven
    expected: dict[int, list[int]] = {}
    finals = {}
    for steps in naive.lanes.values():
        run: list[int] = []
        for step in steps:
            run = [step.number] if step.first else [*run, step.number]
            if step.terminated or step.truncated:
                expected[run[0]], finals[run[0]] = run, step.final
    listed = {int(episode.record["id"][0]): episode for episode in lake.episodes()}
    assert {number: episode.record["id"].tolist() for number, episode in listed.items()} == expected
    for number, episode in listed.items():
        assert episode.has_final is (finals[number] is not None)
        assert not (episode.terminated | episode.truncated)[:-1].any()
        assert (episode.terminated | episode.truncated)[-1]
    drawn = lake.sample_episodes(60 * len(expected), np.random.default_rng(2))
    counts = np.unique([int(episode.record["id"][0]) for episode in drawn], return_counts=True)[1]
    assert len(counts) == len(expected)
    assert abs(chi_square(counts)) < 4

"""Replay as datasets of torch.utils.data: every transition by its index, and streams that differ between workers."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import millpond
from millpond.formatting import plural
from millpond.replay import Lake, LakeError, Pond, ReplayDataset, ReplayStream
from tests.support.naive_lake import FRAME, MIXED, VECTOR, NaiveLake, assert_transition

ENDS = 0.15
START_METHODS = ("fork", pytest.param("spawn", marks=pytest.mark.slow))  # spawn: seconds of imports per worker


def write(lake: Lake, naive: NaiveLake, schema: Any, appends: int = 8, seed: int = 0) -> None:
    """Append to two streams of different lengths."""
    rng = np.random.default_rng(seed)
    for name, lanes, count in (("a", 3, 7), ("b", 1, 4)):
        with lake.writer(name, lanes) as writer:
            for number in range(appends):
                writer.append(naive.generate(name, lanes, count, rng, schema, fresh=number == 0, ends=ENDS))


@pytest.fixture
def frames(tmp_path: Path) -> tuple[Path, NaiveLake]:
    naive = NaiveLake()
    with Lake.create(tmp_path / "lake", FRAME, segment_bytes=3_000) as lake:
        write(lake, naive, FRAME)
    return tmp_path / "lake", naive


def as_batch(item: dict[str, Any]) -> Any:
    """Return a dict of tensors with the attributes of a `LakeBatch`."""
    return SimpleNamespace(**item)


def ids(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["extra"]["id"].reshape(-1)]


# -- by index


@pytest.mark.parametrize("schema", [FRAME, VECTOR, MIXED], ids=["frame", "vector", "mixed"])
@pytest.mark.parametrize(("stack", "n_step", "padding"), [(None, 1, "zero"), (3, 2, "repeat")])
def test_every_valid_transition_has_one_index(
    tmp_path: Path, schema: Any, stack: int | None, n_step: int, padding: Any
) -> None:
    naive = NaiveLake()
    lake = Lake.create(tmp_path, schema, segment_bytes=3_000)
    write(lake, naive, schema)
    dataset = ReplayDataset(lake, stack=stack, n_step=n_step, gamma=0.5, padding=padding)
    valid = naive.transitions(stack=stack or 1, n_step=n_step, gamma=0.5, repeat=padding == "repeat")
    assert len(dataset) == len(valid)
    batch = dataset[np.arange(len(dataset))]
    assert sorted(ids([batch])) == sorted(valid)
    for place, number in enumerate(ids([batch])):
        assert_transition(as_batch(batch), place, valid[number], schema, stacked=stack is not None)
    one = dataset[-1]
    assert int(one["extra"]["id"]) == ids([batch])[-1]
    assert one["reward"].shape == ()


def test_indices_outside_are_refused(frames: tuple[Path, NaiveLake]) -> None:
    dataset = ReplayDataset(frames[0])
    with pytest.raises(IndexError, match=f"is not among {len(dataset)} transitions"):
        dataset[len(dataset)]


def test_sequences_by_index_are_those_that_sampling_draws(frames: tuple[Path, NaiveLake]) -> None:
    dataset = ReplayDataset(frames[0], length=4, burn_in=2)
    every = dataset[range(len(dataset))]
    assert every["observation"].shape == (len(dataset), 6, 16, 20)
    with Lake(frames[0]) as lake:
        drawn = lake.sample_sequences(1_500, np.random.default_rng(0), length=4, burn_in=2)
    by_start = {int(row[2]): k for k, row in enumerate(every["extra"]["id"])}
    assert set(drawn.record["id"][:, 2].tolist()) == set(by_start)
    for k in range(0, 1_500, 100):
        mine = by_start[int(drawn.record["id"][k, 2])]
        for key in ("observation", "next_observation", "reward", "mask", "truncated"):
            np.testing.assert_array_equal(every[key][mine].numpy(), getattr(drawn, key)[k])


@pytest.mark.parametrize("method", START_METHODS)
def test_workers_read_each_index_once(frames: tuple[Path, NaiveLake], method: str) -> None:
    dataset = ReplayDataset(frames[0], stack=2)
    dataset[0]  # the parent has files open when it forks
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2, multiprocessing_context=method)
    batches = list(loader)
    assert sorted(ids(batches)) == sorted(frames[1].transitions(stack=2, n_step=1, gamma=1.0, repeat=False))
    assert batches[0]["observation"].shape == (16, 2, 16, 20)


def test_a_batch_sampler_reads_whole_batches(frames: tuple[Path, NaiveLake]) -> None:
    dataset = ReplayDataset(frames[0])
    sampler = BatchSampler(RandomSampler(dataset), 32, drop_last=True)
    batches = list(DataLoader(dataset, sampler=sampler, batch_size=None))
    assert {len(batch["reward"]) for batch in batches} == {32}
    assert len(set(ids(batches))) == 32 * len(batches)


def test_a_dataset_stays_the_same_while_its_lake_is_written(frames: tuple[Path, NaiveLake]) -> None:
    folder, naive = frames
    dataset = ReplayDataset(folder)
    before = ids([dataset[range(len(dataset))]])
    with Lake(folder) as lake:
        write(lake, naive, FRAME, seed=1)
        with lake.writer("aa", 2) as writer:  # sorted between the two
            writer.append(naive.generate("aa", 2, 5, np.random.default_rng(2), FRAME, fresh=True, ends=ENDS))
    in_worker = list(DataLoader(dataset, batch_size=16, num_workers=1))  # opens the lake as it is now
    assert ids(in_worker) == before
    assert ids([dataset[range(len(dataset))]]) == before
    dataset.refresh()
    assert len(dataset) > len(before)
    assert set(before) < set(ids([dataset[range(len(dataset))]]))


def test_dropped_files_are_an_error_and_not_other_transitions(tmp_path: Path) -> None:
    naive, rng = NaiveLake(), np.random.default_rng(0)
    lake = Lake.create(tmp_path, VECTOR, segment_bytes=2_000, max_bytes=16_000)
    with lake.writer("a", 2) as writer:
        writer.append(naive.generate("a", 2, 8, rng, VECTOR, fresh=True, ends=ENDS))
        dataset = ReplayDataset(lake)
        dataset[0]
        for _ in range(40):
            writer.append(naive.generate("a", 2, 8, rng, VECTOR, fresh=False, ends=ENDS))
    with pytest.raises(LakeError, match=r"stream 'a' were dropped.*refresh\(\)"):
        list(DataLoader(dataset, num_workers=1))


# -- streams


def first_of_workers(folder: Path, seed: int | None, method: str = "fork") -> list[list[int]]:
    """Return six batches of two workers, which come in turn."""
    stream = ReplayStream(folder, batch_size=8, seed=seed, stack=2, n_step=2)
    loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context=method)
    return [ids([batch]) for batch in itertools.islice(loader, 6)]


def test_workers_draw_different_reproducible_streams(frames: tuple[Path, NaiveLake]) -> None:
    drawn = first_of_workers(frames[0], 7)
    assert drawn[::2] != drawn[1::2]
    assert drawn == first_of_workers(frames[0], 7)
    assert drawn != first_of_workers(frames[0], 8)
    torch.manual_seed(3)
    by_torch = first_of_workers(frames[0], None)
    assert by_torch != first_of_workers(frames[0], None)
    torch.manual_seed(3)
    assert by_torch == first_of_workers(frames[0], None)


@pytest.mark.slow
def test_spawned_workers_draw_as_forked_ones(frames: tuple[Path, NaiveLake]) -> None:
    assert first_of_workers(frames[0], 7, "spawn") == first_of_workers(frames[0], 7)


def test_a_stream_draws_as_the_lake_does(frames: tuple[Path, NaiveLake]) -> None:
    valid = frames[1].transitions(stack=2, n_step=2, gamma=0.9, repeat=False)
    stream = ReplayStream(frames[0], batch_size=4_096, limit=1, seed=1, stack=2, n_step=2, gamma=0.9)
    (batch,) = stream
    assert set(ids([batch])) == set(valid)
    for place, number in list(enumerate(ids([batch])))[::16]:
        assert_transition(as_batch(batch), place, valid[number], FRAME, stacked=True)


def test_limit_is_shared_by_the_workers(frames: tuple[Path, NaiveLake]) -> None:
    stream = ReplayStream(frames[0], batch_size=4, limit=5)
    assert len(stream) == 5
    assert len(list(stream)) == 5
    assert len(list(DataLoader(stream, batch_size=None, num_workers=2))) == 5
    with pytest.raises(TypeError, match="endless"):
        len(ReplayStream(frames[0]))


def test_single_items_are_batched_by_the_loader(frames: tuple[Path, NaiveLake]) -> None:
    batches = list(DataLoader(ReplayStream(frames[0], limit=10, length=3, seed=0), batch_size=5))
    assert [batch["observation"].shape for batch in batches] == [(5, 3, 16, 20)] * 2


def test_a_stream_finds_what_is_appended(tmp_path: Path) -> None:
    naive, rng = NaiveLake(), np.random.default_rng(0)
    lake = Lake.create(tmp_path, VECTOR)
    with lake.writer("a", 1) as writer:
        writer.append(naive.generate("a", 1, 6, rng, VECTOR, fresh=True, ends=0.0))
        draws = iter(ReplayStream(tmp_path, batch_size=64, refresh=2, seed=0))
        assert max(ids([next(draws)])) < 6
        writer.append(naive.generate("a", 1, 6, rng, VECTOR, fresh=False, ends=0.0))
        assert max(ids([next(draws)])) < 6
        assert max(ids([next(draws)])) >= 6


class OpenFiles(Dataset[list[str]]):
    """In a worker: which files of the lake its process has open after a stream was read."""

    def __init__(self, stream: ReplayStream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> list[str]:
        inherited = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)}
        mine = self.stream._source._opened
        assert mine is None or mine[0] != os.getpid()
        next(iter(self.stream))
        assert self.stream._source._opened[0] == os.getpid()
        return sorted(inherited)


def _is_link(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_forked_worker_opens_the_lake_itself(frames: tuple[Path, NaiveLake]) -> None:
    stream = ReplayStream(frames[0], batch_size=4)
    next(iter(stream))
    parent = stream._source.lake
    (inherited,) = DataLoader(OpenFiles(stream), batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert any(str(frames[0]) in file for file in inherited)  # the fork did inherit open files, and did not use them
    assert stream._source.lake is parent


# -- ponds


@pytest.fixture
def pond() -> tuple[Pond, NaiveLake]:
    naive, rng = NaiveLake(), np.random.default_rng(0)
    pond = Pond.init(FRAME, 300, lanes=3)
    for number in range(5):
        pond.add(naive.generate("a", 3, 7, rng, FRAME, fresh=number == 0, ends=ENDS))
    return pond, naive


@pytest.mark.parametrize("method", [None, *START_METHODS])
def test_a_pond_by_index_and_as_a_stream(pond: tuple[Pond, NaiveLake], method: str | None) -> None:
    valid = pond[1].transitions(stack=2, n_step=1, gamma=1.0, repeat=False)
    dataset, stream = ReplayDataset(pond[0], stack=2), ReplayStream(pond[0], batch_size=256, limit=2, stack=2)
    dataset[0], next(iter(stream))
    workers = {"num_workers": 2, "multiprocessing_context": method} if method else {}
    batches = list(DataLoader(dataset, batch_size=32, **workers))
    assert sorted(ids(batches)) == sorted(valid)
    assert set(ids(DataLoader(stream, batch_size=None, **workers))) <= set(valid)
    assert not any(tensor.is_shared() for tensor in pond[0].fields.values())  # the owner goes on writing


def test_a_dataset_of_a_pond_that_changed_is_refused(pond: tuple[Pond, NaiveLake]) -> None:
    dataset = ReplayDataset(pond[0])
    pond[0].add(pond[1].generate("a", 3, 1, np.random.default_rng(1), FRAME, fresh=False, ends=0.0))
    with pytest.raises(LakeError, match=r"call refresh\(\) first"):
        dataset[0]
    count = len(dataset)
    dataset.refresh()
    assert len(dataset) > count
    dataset[len(dataset) - 1]


def test_a_pond_on_another_device_is_refused_in_workers() -> None:
    stream = ReplayStream(Pond.init(VECTOR, 8, device="meta"))
    with pytest.raises(LakeError, match="num_workers=0"):
        list(DataLoader(stream, num_workers=1, multiprocessing_context="fork"))
    with pytest.raises(LakeError, match="num_workers=0"):
        list(DataLoader(stream, num_workers=1, multiprocessing_context="spawn"))


# -- errors


def test_bad_arguments_are_refused_at_once(frames: tuple[Path, NaiveLake], tmp_path: Path) -> None:
    for make, message in (
        (lambda: ReplayStream(tmp_path / "none"), "is not a lake"),
        (lambda: ReplayDataset(3), "replay=3 is of type int; pass a Lake, a Pond, or the path of a lake"),  # type: ignore[arg-type]
        (lambda: ReplayDataset(frames[0], stack=0), "stack=0 and n_step=1 must be at least 1"),
        (lambda: ReplayDataset(frames[0], length=0), "length=0 must be at least 1"),
        (lambda: ReplayDataset(frames[0], burn_in=2), "set length, too"),
        (lambda: ReplayStream(frames[0], length=4, stack=2), "leave out stack and n_step"),
        (lambda: ReplayStream(frames[0], batch_size=0), "batch_size=0 must be at least 1, or None"),
        (lambda: ReplayStream(frames[0], length=4, on_damage="skip"), "damaged sequences"),
        (lambda: ReplayDataset(Pond.init(VECTOR, 8)), "the pond has no transitions yet"),
        (lambda: ReplayDataset(Lake.create(tmp_path / "empty", VECTOR)), "empty has no transitions yet; append first"),
        (lambda: ReplayDataset(Pond.init(VECTOR, 8), length=3), "read sequences from a lake"),
        (lambda: ReplayStream(Pond.init(VECTOR, 8), weights={"a": 1}), "a pond has none"),
    ):
        with pytest.raises(LakeError, match=message):
            make()


def test_an_error_in_a_worker_keeps_its_message(frames: tuple[Path, NaiveLake]) -> None:
    stream = ReplayStream(frames[0], batch_size=4, weights={"c": 1.0})
    with pytest.raises(LakeError, match=r"streams \['c'\] are not in"):
        next(iter(DataLoader(stream, batch_size=None, num_workers=1)))


def test_damage_is_not_left_out_silently(frames: tuple[Path, NaiveLake]) -> None:
    (frames[0] / "streams" / "b" / "000000.steps").unlink()
    with pytest.raises(millpond.replay.LakeDamaged):
        ReplayDataset(frames[0])
    with pytest.raises(millpond.replay.LakeDamaged):
        next(iter(ReplayStream(frames[0], batch_size=4)))
    next(iter(ReplayStream(frames[0], batch_size=4, on_damage="skip")))


def test_datasets_are_exported() -> None:
    assert millpond.ReplayDataset is ReplayDataset
    assert millpond.ReplayStream is ReplayStream


def test_a_lake_shows_its_folder_and_streams(frames: tuple[Path, NaiveLake]) -> None:
    with Lake(frames[0]) as lake:
        assert repr(lake) == f"<Lake {frames[0]}: {plural(len(lake.streams), 'stream')}>"

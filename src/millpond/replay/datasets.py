"""Replay as datasets of `torch.utils.data`: by index (`ReplayDataset`), and as a stream of random draws (`ReplayStream`).

loader = DataLoader(ReplayStream("runs/x/lake", batch_size=256, stack=4), batch_size=None, num_workers=4)

Both can be sent to worker processes, forked or spawned. They hold the path of a lake, never an open file: every process
opens the lake itself, when it first reads. Every pass over a stream, in every worker, has a random generator of its own.

An item is a dict of tensors:

    transitions  observation, next_observation [(stack,) ...], action, reward, terminated, truncated, discount, steps
    sequences    observation [burn_in + length, ...], action, reward, terminated, truncated, mask; next_observation

and `extra`, a dict, if the schema has extra fields. With several observation fields observations are dicts, too.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from millpond.formatting import plural
from millpond.replay.draw import PlanRecords, sequence_plan, transition_plan, valid_blocks
from millpond.replay.lake.lake import Lake, OnDamage, Padding
from millpond.replay.lake.sample import LakeBatch, Sequences
from millpond.replay.pond import Pond, PondBatch
from millpond.replay.schema import LakeError, Schema
from millpond.replay.transitions import RecordView

Array = np.ndarray[Any, Any]
Item = dict[str, Any]
Batch = LakeBatch | PondBatch | Sequences
BLOCK = 512  # records whose valid ones are counted together
DRAWN_TOGETHER = 64  # transitions, if a stream yields them one by one


@dataclass(frozen=True)
class ItemForm:
    """What an item is: a transition, or with `length` a sequence. Arguments as for `Lake.sample` and `sample_sequences`."""

    stack: int | None
    n_step: int
    gamma: float
    padding: Padding
    length: int | None
    burn_in: int

    def __post_init__(self) -> None:
        if self.n_step < 1 or (self.stack is not None and self.stack < 1):
            raise LakeError(f"stack={self.stack} and n_step={self.n_step} must be at least 1")
        if self.burn_in < 0 or (self.length is not None and self.length < 1):
            raise LakeError(f"length={self.length} must be at least 1 and burn_in={self.burn_in} at least 0")
        if self.length is None and self.burn_in:
            raise LakeError(f"burn_in={self.burn_in} is for sequences; set length, too")
        if self.length is not None and (self.stack is not None or self.n_step > 1):
            raise LakeError(
                f"length={self.length} is for sequences of single frames and steps; leave out stack and n_step"
            )

    @property
    def name(self) -> str:
        return "transitions" if self.length is None else f"sequences of {plural(self.length, 'step')}"

    @property
    def plan(self) -> PlanRecords:
        if self.length is None:
            return transition_plan(self.stack or 1, self.n_step, self.padding == "repeat")
        return sequence_plan(self.length, self.burn_in)

    @property
    def of_transitions(self) -> dict[str, Any]:
        """The arguments of `sample` and `read`."""
        return {"stack": self.stack, "n_step": self.n_step, "gamma": self.gamma, "padding": self.padding}


class Source:
    """A lake that each process opens for itself, or a pond."""

    def __init__(self, replay: Lake | Pond | str | Path, form: ItemForm) -> None:
        self.pond = replay if isinstance(replay, Pond) else None
        self.folder = None if isinstance(replay, Pond) else _folder(replay)
        self._opened: tuple[int, Lake] | None = None  # process and lake
        if self.pond is not None and form.length is not None:
            raise LakeError(f"length={form.length}: a pond has transitions only; read sequences from a lake")

    @property
    def lake(self) -> Lake:
        """The lake, opened by this process: files and threads of a parent process are never used."""
        assert self.folder is not None
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), Lake(self.folder)
        return self._opened[1]

    @property
    def schema(self) -> Schema:
        return self.lake.schema if self.pond is None else self.pond.schema

    def require_readable(self) -> None:
        """Refuse a pond on another device in a worker process."""
        if self.pond is not None and self.pond.device.type != "cpu" and get_worker_info() is not None:
            raise LakeError(_far_pond(self.pond))

    def __getstate__(self) -> dict[str, Any]:
        """Return what a spawned worker gets: the path of the lake, or a copy of the pond."""
        pond = self.pond
        if pond is None:
            return {"folder": self.folder}
        if pond.device.type != "cpu":
            raise LakeError(_far_pond(pond))
        # As arrays: tensors would be sent as shared memory, in which the owner of the pond goes on writing.
        arrays = {
            kind: {name: tensor.numpy() for name, tensor in part.items()} for kind, part in pond.state_dict().items()
        }
        return {"pond": (pond.schema, pond.capacity, pond.lanes, pond.guarded), "arrays": arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._opened, self.folder, self.pond = None, state.get("folder"), None
        if "pond" in state:
            schema, capacity, lanes, guarded = state["pond"]
            self.pond = Pond(schema, capacity, lanes, torch.device("cpu"), guarded)
            self.pond.load_state_dict(_tensor(state["arrays"]))


def _folder(replay: Lake | str | Path) -> Path:
    if not isinstance(replay, Lake | str | Path):
        raise LakeError(
            f"replay={replay!r:.60} is of type {type(replay).__name__}; pass a Lake, a Pond, or the path of a lake"
        )
    return (replay.folder if isinstance(replay, Lake) else Path(replay)).absolute()


def _far_pond(pond: Pond) -> str:
    return f"the pond is on {pond.device}, which worker processes cannot read; use DataLoader(..., num_workers=0)"


class ValidRecords:
    """Numbers of the valid records of a view: one bit per record, and a count for each `BLOCK`."""

    def __init__(self, view: RecordView, plan: PlanRecords) -> None:
        blocks = [np.packbits(block) for block in valid_blocks(view, plan)]
        packed = np.concatenate(blocks) if blocks else np.empty(0, np.uint8)
        rows = -(-len(packed) * 8 // BLOCK)
        self._bits = np.zeros((rows, BLOCK // 8), np.uint8)
        self._bits.reshape(-1)[: len(packed)] = packed
        self._ends = np.cumsum(np.bitwise_count(self._bits).sum(axis=1, dtype=np.int64))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def at(self, places: Array) -> Array:
        """Return the record of each place [n] among the valid ones."""
        row = np.searchsorted(self._ends, places, side="right")
        before = np.append(0, self._ends)[row]
        counted = np.cumsum(np.unpackbits(self._bits[row], axis=1), axis=1, dtype=np.int16)
        records: Array = row * BLOCK + (counted > (places - before)[:, None]).argmax(axis=1)
        return records


class ReplayDataset(Dataset[Item]):
    """All valid transitions of a lake or pond by index, or with `length` all sequences of that many steps.

    `dataset[i]` is one item, `dataset[[i, j]]` a batch of them. It keeps one bit per record in memory, and reads the rest
    when it is asked for. It contains what the lake or pond had when it was made, or at the last `refresh`, so that an
    index always means the same item. Appends to a lake do not disturb it.
    """

    def __init__(
        self,
        replay: Lake | Pond | str | Path,
        *,
        stack: int | None = None,
        n_step: int = 1,
        gamma: float = 1.0,
        padding: Padding = "zero",
        length: int | None = None,
        burn_in: int = 0,
    ) -> None:
        self._form = ItemForm(stack, n_step, gamma, padding, length, burn_in)
        self._source = Source(replay, self._form)
        self.refresh()

    def refresh(self) -> None:
        """Include what was appended or added since; indices then mean other items."""
        pond, plan = self._source.pond, self._form.plan
        if pond is not None:
            self._pond_view, self._extent = pond.view(), {}
            self._valid = [ValidRecords(self._pond_view, plan)]
        else:
            lake = self._source.lake
            lake.refresh()
            lake.require_intact()
            self._extent = lake.extent()
            self._valid = [ValidRecords(lake.view(name), plan) for name in self._extent]
        self._ends = np.cumsum([len(valid) for valid in self._valid], dtype=np.int64)
        if not len(self):
            where = "the pond" if pond is not None else self._source.folder
            raise LakeError(f"{where} has no {self._form.name} yet; append first")

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int | Sequence[int] | Array) -> Item:
        single = isinstance(index, int | np.integer)
        batch = self._read(np.array([index] if single else index, np.int64))
        return _one(batch, 0) if single else batch

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Return the items of a batch; a `DataLoader` calls this, so that they are read together."""
        batch = self._read(np.array(indices, np.int64))
        return [_one(batch, k) for k in range(len(indices))]

    def _read(self, index: Array) -> Item:
        wrong = (index < -len(self)) | (index >= len(self))
        if wrong.any():
            raise IndexError(f"index {int(index[wrong][0]):,} is not among {len(self):,} {self._form.name}")
        index = np.where(index < 0, index + len(self), index)
        stream = np.searchsorted(self._ends, index, side="right")
        places = index - np.append(0, self._ends)[stream]
        records = np.empty_like(places)
        for number in np.unique(stream).tolist():
            mine = stream == number
            records[mine] = self._valid[number].at(places[mine])
        form, source = self._form, self._source
        source.require_readable()
        if source.pond is not None:
            if source.pond.view() is not self._pond_view:
                raise LakeError("the pond changed since this dataset was made; call refresh() first")
            return as_tensors(source.pond.read(records, **form.of_transitions), source.schema)
        lake = self._require_same_records()
        stream = np.searchsorted(lake.streams, list(self._extent))[stream]
        if form.length is None:
            return as_tensors(lake.read(stream, records, **form.of_transitions), lake.schema)
        sequences = lake.read_sequences(stream, records, length=form.length, burn_in=form.burn_in)
        return as_tensors(sequences, lake.schema)

    def _require_same_records(self) -> Lake:
        """Return the lake, if the records of this dataset still have their numbers."""
        lake = self._source.lake
        extent = lake.extent()
        for name, (first, count) in self._extent.items():
            if name not in extent or extent[name][0] != first or extent[name][1] < count:
                raise LakeError(
                    f"{lake.folder}: records of stream {name!r} were dropped or rolled back since this dataset was made; "
                    "call refresh() first, or use a ReplayStream"
                )
        return lake

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pond_view": None} if self._source.pond is not None else self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._source.pond is not None:
            self._pond_view = self._source.pond.view()


class ReplayStream(IterableDataset[Item]):
    """Transitions or sequences of a lake or pond, drawn uniformly with replacement.

    batch_size  items of one dict of tensors, for DataLoader(stream, batch_size=None); None: single items
    limit       dicts of one pass, over all workers together; None: endless
    seed        a number or several: every pass is the same. None: torch's seed, which torch.manual_seed sets and
                `DataLoader` changes with every pass. Workers draw different items either way
    refresh     draws after which appends to the lake are looked for; None: only at the start of a pass
    weights, on_damage  as for `Lake.sample`

    Other arguments as for `ReplayDataset`. A worker sees a pond as it was when the worker started.
    """

    def __init__(
        self,
        replay: Lake | Pond | str | Path,
        *,
        batch_size: int | None = None,
        limit: int | None = None,
        seed: int | Sequence[int] | None = None,
        refresh: int | None = 100,
        stack: int | None = None,
        n_step: int = 1,
        gamma: float = 1.0,
        padding: Padding = "zero",
        length: int | None = None,
        burn_in: int = 0,
        weights: Mapping[str, float] | None = None,
        on_damage: OnDamage = "raise",
    ) -> None:
        for name, number in (("batch_size", batch_size), ("refresh", refresh), ("limit", limit)):
            if number is not None and number < 1:
                raise LakeError(f"{name}={number} must be at least 1, or None")
        self._form = ItemForm(stack, n_step, gamma, padding, length, burn_in)
        self._source = Source(replay, self._form)
        if self._source.pond is not None and weights is not None:
            raise LakeError("weights are for the streams of a lake; a pond has none")
        if length is not None and on_damage == "skip":
            raise LakeError("on_damage='skip' is for transitions; damaged sequences always raise an error")
        self._batch_size, self._limit, self._seed, self._refresh = batch_size, limit, seed, refresh
        self._weights, self._on_damage = weights, on_damage
        self._source.schema  # noqa: B018 - a path that is not a lake is refused here, not in a worker

    def __len__(self) -> int:
        """Return `limit`; an endless stream has no length."""
        if self._limit is None:
            raise TypeError("this stream is endless; set limit to give it a length")
        return self._limit

    def __iter__(self) -> Iterator[Item]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._source.require_readable()
        rng = self._generator(worker)
        mine = itertools.count() if self._limit is None else range(worker, self._limit, workers)
        items = self._single_items(rng) if self._batch_size is None else self._batches(self._batch_size, rng)
        for _, item in zip(mine, items, strict=False):
            yield item

    def _generator(self, worker: int) -> np.random.Generator:
        if self._seed is not None:
            return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(worker,)))
        # In a worker torch's generator has a seed of the worker; in both cases the next pass draws another number.
        return np.random.default_rng(int(torch.empty((), dtype=torch.int64).random_().item()))

    def _single_items(self, rng: np.random.Generator) -> Iterator[Item]:
        for batch in self._batches(DRAWN_TOGETHER, rng):
            yield from (_one(batch, k) for k in range(DRAWN_TOGETHER))

    def _batches(self, size: int, rng: np.random.Generator) -> Iterator[Item]:
        for number in itertools.count():
            if self._source.pond is None and (number == 0 or (self._refresh and number % self._refresh == 0)):
                self._source.lake.refresh()
            yield as_tensors(self._draw(size, rng), self._source.schema)

    def _draw(self, size: int, rng: np.random.Generator) -> Batch:
        form, pond = self._form, self._source.pond
        if pond is not None:
            return pond.sample(size, rng, **form.of_transitions)
        lake = self._source.lake
        if form.length is not None:
            return lake.sample_sequences(size, rng, length=form.length, burn_in=form.burn_in, weights=self._weights)
        return lake.sample(size, rng, weights=self._weights, on_damage=self._on_damage, **form.of_transitions)


TRANSITION_KEYS = (
    "observation",
    "next_observation",
    "action",
    "reward",
    "terminated",
    "truncated",
    "discount",
    "steps",
)
SEQUENCE_KEYS = ("observation", "next_observation", "action", "reward", "terminated", "truncated", "mask")


def as_tensors(batch: Batch, schema: Schema) -> Item:
    """Return a batch of a lake or pond as a dict of tensors."""
    keys = SEQUENCE_KEYS if isinstance(batch, Sequences) else TRANSITION_KEYS
    item = {key: _tensor(getattr(batch, key)) for key in keys}
    if schema.extra:
        columns = batch.column if isinstance(batch, PondBatch) else batch.record
        item["extra"] = {field.name: _tensor(columns[field.name]) for field in schema.extra}
    return item


def _tensor(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _tensor(part) for name, part in value.items()}
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value, order="C"))


def _one(batch: Item, place: int) -> Item:
    return {key: _one(value, place) if isinstance(value, dict) else value[place] for key, value in batch.items()}

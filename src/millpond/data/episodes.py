"""Recorded episodes as a trainer samples from them, whatever file layout they come from.

# N episodes  B episodes per batch  K sampled steps per episode  T steps of an episode  D numbers of a vector
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from millpond.data.source import (
    Array,
    ArrayField,
    DataError,
    EndFlags,
    EpisodeSource,
    FieldSelection,
    open_sources,
    select_fields,
)

VECTOR = "vector"  # the name of all selected vectors, concatenated
MEMORY_BYTES = 1 << 30
MAX_ACTIONS = 1 << 16  # discrete ones; a network has an input for each
FrameReader = Callable[[int, int, int], Array]  # (episode, start, stop) -> frames


@dataclass(frozen=True)
class RecordedEpisode:
    """One whole episode in its stored dtypes: T steps. Rewards, flags, success and final frame where they are known."""

    name: str
    observation: dict[str, Array]  # [T, ...] of each selected field
    final_observation: dict[str, Array] | None  # [...]
    action: Array | None  # [T, ...]
    reward: Array | None  # [T]
    terminated: Array | None  # [T]
    truncated: Array | None  # [T]
    success: bool | None


class RecordedTransitions(NamedTuple):
    """Sampled steps. An observation is `vector` float32 [B, K, D], and each image uint8 [B, K, ...] by its name."""

    observation: dict[str, Array]
    action: Array  # float32 [B, K, A], with A = 0 if there are no actions; int64 [B, K] if they are discrete
    next_observation: dict[str, Array]


class Episodes:
    """All episodes of a file, a folder or a lake.

    Frames that fit into `memory_bytes` are read once, on the first `gather`; others are read whenever they are sampled.
    """

    def __init__(
        self,
        path: str,
        sources: Sequence[EpisodeSource],
        *,
        keys: Sequence[str] = (),
        images: bool = False,
        drop_columns: Sequence[str] = (),
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.path = path
        self.sources = tuple(sources)
        self.memory_bytes = memory_bytes
        self.selection: FieldSelection = select_fields(
            self.sources, keys=keys, images=images, drop_columns=drop_columns
        )
        self.fields: dict[str, ArrayField] = {field.name: field for field in self.selection.fields}
        self.columns: tuple[str, ...] = self.selection.columns
        self.task = np.repeat(np.arange(len(self.sources)), [len(source.names) for source in self.sources])
        self.task_names = tuple(source.task for source in self.sources)
        self.lengths: Array = np.concatenate([source.lengths for source in self.sources])
        self.final_known: Array = np.concatenate([s.final_known(list(self.fields)) for s in self.sources])
        self._local = np.concatenate([np.arange(len(source.names)) for source in self.sources])
        actions = [source.action for source in self.sources]
        self.action: ArrayField | None = None if None in actions else actions[0]
        self.discrete = self.action is not None and self.action.dtype.kind in "iu" and self.action.width == 1

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the episodes, prefixed with the file if there are several files."""
        if len(self.sources) == 1:
            return tuple(self.sources[0].names)
        return tuple(f"{source.path}:{name}" for source in self.sources for name in source.names)

    @property
    def missing_actions(self) -> str:
        """Place of the first missing actions, with the file if there are several files; "" if none are missing."""
        for source in self.sources:
            if source.missing_actions:
                return source.missing_actions + (f" of {source.path}" if len(self.sources) > 1 else "")
        return ""

    @property
    def total_steps(self) -> int:
        return int(self.lengths.sum())

    @property
    def images(self) -> dict[str, ArrayField]:
        """The selected images."""
        return {name: field for name, field in self.fields.items() if field.is_image}

    @property
    def has_rewards(self) -> bool:
        """True if every step of every episode has a reward."""
        return all(source.has_rewards for source in self.sources)

    @cached_property
    def returns(self) -> Array | None:
        """float64 [N]: the sum of each episode's rewards; None if any file has none."""
        if not self.has_rewards:
            return None
        return np.array([float(np.sum(self.rewards(e), dtype=np.float64)) for e in range(len(self))])

    @cached_property
    def success(self) -> Array | None:
        """bool [N]: True where an episode reached its goal; None if any file does not record it."""
        by_source = [source.success for source in self.sources]
        known = [success for success in by_source if success is not None]
        return np.concatenate(known) if len(known) == len(by_source) else None

    @cached_property
    def num_actions(self) -> int:
        """Number of discrete actions: one more than the highest that occurs."""
        if not self.discrete:
            raise DataError(f"{self.path}: actions are {self.action}, which is not discrete")
        lowest = min(int(self.actions(e).min()) for e in range(len(self)))
        if lowest < 0:
            raise DataError(f"{self.path}: the lowest action is {lowest:,}; discrete actions are numbered from 0")
        count = 1 + max(int(self.actions(e).max()) for e in range(len(self)))
        if count > MAX_ACTIONS:
            raise DataError(
                f"{self.path}: the highest action is {count - 1:,}; discrete actions are numbered from 0, and at most "
                f"{MAX_ACTIONS:,} are supported. Store continuous ones as floats"
            )
        return count

    # Whole episodes

    def actions(self, episode: int) -> Array:
        """All actions [T, ...] of one episode, in the stored dtype."""
        if self.action is None:
            raise DataError(f"{self.path}: {self.missing_actions} is missing; expected one action for each step")
        return self._source(episode).actions(int(self._local[episode]))

    def rewards(self, episode: int) -> Array:
        """All rewards [T] of one episode, in the stored dtype."""
        if not self._source(episode).has_rewards:
            raise DataError(f"{self._source(episode).path} has no rewards; expected one for each step")
        return self._source(episode).rewards(int(self._local[episode]))

    def ends(self, episode: int) -> EndFlags:
        """Stored flags [T] of one episode."""
        return self._source(episode).ends(int(self._local[episode]))

    def vectors(self, episode: int) -> Array:
        """The vector before each step of one episode, as `gather` returns it: float32 [T, D]. Read-only."""
        length, store = int(self.lengths[episode]), self._stores.get(VECTOR)
        if isinstance(store, MemoryStore) and store.filled:
            return store.episode(episode, length)
        return self._vector(episode, 0, length)

    def read(self, episode: int) -> RecordedEpisode:
        """One whole episode of the selected fields in their stored dtypes, dropped columns included."""
        source, local = self._source(episode), int(self._local[episode])
        length, final = int(self.lengths[episode]), bool(self.final_known[episode])
        frames = {name: source.frames(local, name, 0, length + final) for name in self.fields}
        ends = source.ends(local)
        return RecordedEpisode(
            name=self.names[episode],
            observation={name: array[:length] for name, array in frames.items()},
            final_observation={name: array[length] for name, array in frames.items()} if final else None,
            action=None if self.action is None else source.actions(local),
            reward=source.rewards(local) if source.has_rewards else None,
            terminated=ends.terminated,
            truncated=ends.truncated,
            success=None if source.success is None else bool(source.success[local]),
        )

    # Sampling

    def gather(self, episodes: Array, steps: Array) -> RecordedTransitions:
        """The transitions at steps [B, K] of episodes [B].

        If the final frame of an episode is not stored, the last frame takes its place.
        """
        if ((steps < 0) | (steps >= self.lengths[episodes][:, None])).any():
            raise IndexError("a step is outside its episode")
        stores = self._stores
        pairs = {name: store.pairs(episodes, steps) for name, store in stores.items() if name != "action"}
        return RecordedTransitions(
            {name: pair[0] for name, pair in pairs.items()},
            stores["action"].at(episodes, steps),
            {name: pair[1] for name, pair in pairs.items()},
        )

    def moments(self, episodes: Sequence[int] | Array | None = None) -> tuple[Array, Array]:
        """Exact mean and standard deviation (float64 [D]) of the vector over all T steps of some or all episodes."""
        selected = np.arange(len(self)) if episodes is None else np.asarray(episodes)
        count, mean, squares = 0, np.zeros(len(self.columns)), np.zeros(len(self.columns))
        for episode in selected.tolist():
            rows = self.vectors(episode).astype(np.float64)
            delta, total = rows.mean(0) - mean, count + len(rows)
            squares += rows.var(0) * len(rows) + delta**2 * count * len(rows) / total
            mean += delta * len(rows) / total
            count = total
        return mean, np.sqrt(squares / max(count, 1))

    def load_vectors(self) -> None:
        """Read all vectors now if they fit into memory, so that later accesses read no file."""
        store = self._stores.get(VECTOR)
        if isinstance(store, MemoryStore):
            store.episode(0, 0)

    @property
    def in_memory(self) -> tuple[str, ...]:
        """Tables that `gather` holds in memory: `action`, `vector`, images by name; others are read when sampled."""
        return tuple(name for name, (_, _, resident) in self._tables().items() if resident)

    @cached_property
    def _stores(self) -> dict[str, FrameStore]:
        return {
            name: MemoryStore(read, counts) if resident else FileStore(read)
            for name, (read, counts, resident) in self._tables().items()
        }

    def _tables(self) -> dict[str, tuple[FrameReader, Array, bool]]:
        """Reader, frames per episode, and True if it fits into memory; small tables take precedence."""
        left = self.memory_bytes
        tables = {}
        for name, read, counts, nbytes in self._table_sizes():
            resident = nbytes * int(counts.sum()) <= left
            left -= nbytes * int(counts.sum()) * resident
            tables[name] = (read, counts, resident)
        return tables

    def _table_sizes(self) -> Iterator[tuple[str, FrameReader, Array, int]]:
        frames = self.lengths + 1
        width = 0 if self.action is None else self.action.width
        yield "action", self._action, self.lengths, 8 if self.discrete else 4 * width
        if self.columns:
            yield VECTOR, self._vector, frames, 4 * len(self.columns)
        for name, field in sorted(self.images.items(), key=lambda item: (item[1].nbytes, item[0])):
            yield name, self._image_reader(name), frames, field.nbytes

    def _action(self, episode: int, start: int, stop: int) -> Array:
        if self.action is None:
            return np.empty((stop - start, 0), np.float32)
        actions = self.actions(episode)[start:stop]
        if self.discrete:
            return actions.reshape(len(actions)).astype(np.int64)
        return actions.reshape(len(actions), -1).astype(np.float32)

    def _vector(self, episode: int, start: int, stop: int) -> Array:
        pieces = [
            self._frames(episode, field.name, start, stop).reshape(stop - start, -1)[:, columns].astype(np.float32)
            for field, columns in self.selection.vectors
        ]
        if not pieces:
            return np.empty((stop - start, 0), np.float32)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)

    def _image_reader(self, name: str) -> FrameReader:
        return lambda episode, start, stop: self._frames(episode, name, start, stop)

    def _frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        """Frames of one field; the last one is repeated if the final frame is requested and not stored."""
        stored = int(self.lengths[episode]) + bool(self.final_known[episode])
        first = min(start, stored - 1)
        frames = self._source(episode).frames(int(self._local[episode]), name, first, min(stop, stored))
        return frames if stop <= stored else np.concatenate([frames[start - first :], frames[-1:]])

    def _source(self, episode: int) -> EpisodeSource:
        return self.sources[int(self.task[episode])]


def open_episodes(
    path: str | Path,
    keys: Sequence[str] = (),
    images: bool = False,
    *,
    drop_columns: Sequence[str] = (),
    memory_bytes: int = MEMORY_BYTES,
) -> Episodes:
    """Open recorded episodes. Only their sizes are read at first.

    path          a file (.hdf5, .h5, .npz), a folder of such files, a lake, or a name in IN_PACKAGE
    keys          fields of an observation to use, in this order; none: all vectors (and images, with `images`)
    drop_columns  columns to drop from the vectors, such as `states:0`
    memory_bytes  limit on frames held in memory; the rest is read when it is sampled
    """
    return Episodes(
        str(path), open_sources(path), keys=keys, images=images, drop_columns=drop_columns, memory_bytes=memory_bytes
    )


class FrameStore(Protocol):
    """All frames of one table, indexed by episode and step."""

    def at(self, episodes: Array, steps: Array) -> Array:
        """[B, K, ...]: the frame of each step."""

    def pairs(self, episodes: Array, steps: Array) -> tuple[Array, Array]:
        """[B, K, ...] twice: the frame of each step, and the frame after it."""


class MemoryStore:
    """All frames in one array, read on first use; sampling is one index into it."""

    def __init__(self, read: FrameReader, counts: Array) -> None:
        self._read, self._counts = read, counts
        self._first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self.filled = False

    @cached_property
    def _table(self) -> Array:
        table = np.empty(0)
        for episode, (first, count) in enumerate(zip(self._first.tolist(), self._counts.tolist(), strict=True)):
            frames = self._read(episode, 0, count)
            if not episode:
                table = np.empty((int(self._counts.sum()), *frames.shape[1:]), frames.dtype)
            table[first : first + count] = frames
        self.filled = True
        return table

    def episode(self, episode: int, steps: int) -> Array:
        """The first frames of one episode, as a read-only view."""
        first = int(self._first[episode])
        frames: Array = self._table[first : first + steps]
        return frames

    def at(self, episodes: Array, steps: Array) -> Array:
        return self._table.take(self._first[episodes][:, None] + steps, axis=0)

    def pairs(self, episodes: Array, steps: Array) -> tuple[Array, Array]:
        indices = self._first[episodes][:, None] + steps
        return self._table.take(indices, axis=0), self._table.take(indices + 1, axis=0)


class FileStore:
    """Frames that stay in their files. Neighbouring frames are read together, and each is read once per episode."""

    def __init__(self, read: FrameReader) -> None:
        self._read = read

    def at(self, episodes: Array, steps: Array) -> Array:
        return np.stack([self._read_steps(int(e), row) for e, row in zip(episodes, steps, strict=True)])

    def pairs(self, episodes: Array, steps: Array) -> tuple[Array, Array]:
        both = self.at(episodes, np.concatenate([steps, steps + 1], axis=1))
        return both[:, : steps.shape[1]], both[:, steps.shape[1] :]

    def _read_steps(self, episode: int, steps: Array) -> Array:
        unique, place = np.unique(steps, return_inverse=True)
        gaps = np.flatnonzero(np.diff(unique) > 1) + 1
        runs = [self._read(episode, int(run[0]), int(run[-1]) + 1) for run in np.split(unique, gaps)]
        return (runs[0] if len(runs) == 1 else np.concatenate(runs))[place.reshape(-1)]

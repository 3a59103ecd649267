"""HDF5 files that may be damaged or foreign, layouts with one group per episode, and Minari's layout.

Every failure becomes an error that names the file, the group and what was expected. Contiguous arrays are read from the
file directly, which is several times faster than through the library; chunked and compressed ones are read through it.
Neither way keeps anything in memory.

Minari's layout:

    episode_K/observations   [T + 1, ...], or a group of such arrays
    episode_K/actions        [T, ...]
    episode_K/rewards, terminations, truncations [T], each optional
    episode_K/infos/success  optional

An export of a lake has an attribute that marks episodes whose final observation is not a true one, because the lake had none.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from millpond.data.source import NUMERIC_KINDS, Array, ArrayField, DataError, EndFlags, require_numbers
from millpond.durable import open_file, read_at
from millpond.replay.export import FINAL_STORED

MAX_COMPRESSION = 2000  # bytes that one stored byte can expand to; gzip reaches 1,032
SUCCESS_INFOS = ("success", "is_success")


@dataclass(frozen=True)
class StoredArray:
    """Location of an array: its shape and dtype, and its offset in the file if it is contiguous."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None

    def field(self, name: str) -> ArrayField:
        return ArrayField(name, self.shape[1:], self.dtype)


class Hdf5File:
    """Groups and arrays by their paths."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.guarded("/", "a complete HDF5 file"):
            self._file = h5py.File(path, "r")
            self._direct = self._file.userblock_size == 0
        self._descriptor = open_file(path, os.O_RDONLY)
        self._bytes = os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    @contextmanager
    def guarded(self, place: str, expected: str) -> Iterator[None]:
        """Turn any error of the library into a DataError that names the place."""
        try:
            yield
        except DataError:
            raise
        except (OSError, KeyError, ValueError, RuntimeError, TypeError, AttributeError, MemoryError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(f"{self.path}: {place} cannot be read ({reason}); expected {expected}") from None

    def groups(self, place: str) -> list[str]:
        """Names of the groups in a group, demo_2 before demo_10."""
        with self.guarded(place, "a group"):
            group = self._file[place]
            names = [name for name in group if group.get(name, getclass=True) is h5py.Group]
        return sorted(names, key=_natural_order)

    def names(self, place: str) -> list[str]:
        """Names of everything in a group."""
        with self.guarded(place, "a group"):
            return list(self._file[place])

    def has(self, place: str) -> bool:
        with self.guarded(place, "a group or an array, or nothing"):
            return place in self._file

    def strings(self, place: str) -> list[str]:
        """An array of names."""
        with self.guarded(place, "an array of names"):
            return [str(name) for name in self._file[place].asstr()[()]]

    def attribute(self, place: str, name: str) -> Any:
        """One attribute, or None."""
        with self.guarded(place, f"the attribute {name}"):
            return self._file[place].attrs.get(name)

    def arrays(self, place: str) -> dict[str, StoredArray]:
        """All arrays of numbers in a group and its subgroups, by their paths inside it; "" for an array itself."""
        with self.guarded(place, "an array, or a group of arrays"):
            arrays = dict(self._walk(self._file[place], place))
        inside = {path.removeprefix(place).removeprefix("/"): array for path, array in arrays.items()}
        return {name: array for name, array in inside.items() if array.dtype.kind in NUMERIC_KINDS and array.shape}

    def stored(self, place: str) -> StoredArray:
        """Shape, dtype and location of an array; its numbers are not read."""
        with self.guarded(place, "an array"):
            array = self._file[place]
            if not isinstance(array, h5py.Dataset):
                raise DataError(f"{self.path}: {place} is a group; expected an array")
            return self._stored(array, place)

    def _walk(self, item: Any, place: str) -> Iterator[tuple[str, StoredArray]]:
        if isinstance(item, h5py.Dataset):
            yield place, self._stored(item, place)
        else:
            for name, inner in item.items():
                yield from self._walk(inner, f"{place}/{name}")

    def _stored(self, array: Any, place: str) -> StoredArray:
        shape, dtype, stored_bytes = tuple(array.shape), array.dtype, array.id.get_storage_size()
        offset = array.id.get_offset() if self._direct and not array.external else None  # None if it is chunked
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > stored_bytes * MAX_COMPRESSION:
            raise DataError(
                f"{self.path}: {place} claims shape {shape}, {nbytes:,} bytes, of which {stored_bytes:,} are stored; "
                f"expected an array that was written completely"
            )
        if offset is not None and offset + nbytes > self._bytes:
            raise DataError(f"{self.path}: {place} extends past the end of the file, which is truncated or damaged")
        return StoredArray(place, shape, dtype, offset)

    def read(self, stored: StoredArray, start: int = 0, stop: int | None = None) -> Array:
        """Entries start..stop of an array."""
        stop = stored.shape[0] if stop is None else stop
        shape = (stop - start, *stored.shape[1:])
        if stored.offset is None:
            with self.guarded(stored.path, f"{stored.dtype} of shape {stored.shape}"):
                entries: Array = self._file[stored.path][start:stop]
            return entries
        entry_bytes = math.prod(stored.shape[1:]) * stored.dtype.itemsize
        raw = np.empty(entry_bytes * shape[0], np.uint8)
        left, position = raw.data, stored.offset + start * entry_bytes
        while left:
            count = read_at(self._descriptor, left, position)
            if count == 0:
                raise DataError(f"{self.path}: {stored.path} ends early; the file was truncated while it was read")
            left, position = left[count:], position + count
        return raw.view(stored.dtype).reshape(shape)


def _natural_order(name: str) -> tuple[str, int, str]:
    """Sort key with demo_2 before demo_10."""
    stem = name.rstrip("0123456789")
    return (stem, int(name[len(stem) :] or -1), name)


class EpisodeGroups:
    """Shapes of every episode's arrays, checked against each other; numbers are read on request.

    groups        paths of the episodes' groups
    observations  returns the arrays of an observation in a group, by field
    final_frames  frames stored in addition to one per step: 1 if the final one is stored, else 0

    The actions give the number of steps. If any episode lacks actions, none are read, and the frames are counted.
    """

    def __init__(
        self,
        file: Hdf5File,
        groups: Sequence[str],
        observations: Callable[[str], dict[str, StoredArray]],
        final_frames: int,
    ) -> None:
        self._file, self._groups, self._final_frames = file, groups, final_frames
        missing = [group for group in groups if not file.has(f"{group}/actions")]
        self.missing_actions = f"{missing[0]}/actions" if missing else ""
        self._actions = [] if missing else [file.stored(f"{group}/actions") for group in groups]
        self._observed = [observations(group) for group in groups]
        counted = self._actions or [next(iter(fields.values())) for fields in self._observed]
        entries = np.array([array.shape[0] if array.shape else 0 for array in counted], np.int64)
        self.lengths: Array = entries - final_frames if missing else entries
        if (self.lengths < 1).any():
            place = counted[int(np.argmin(self.lengths))].path
            raise DataError(f"{file.path}: {place} has no steps; expected at least one entry per step")
        for array in (*self._actions, *(array for fields in self._observed for array in fields.values())):
            require_numbers(str(file.path), array.field(array.path))
        for episode in range(len(groups)):
            self._check(episode)
        self.action = self._actions[0].field("actions") if self._actions else None
        self.fields = {name: array.field(name) for name, array in self._observed[0].items()}

    def frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        return self._file.read(self._observed[episode][name], start, stop)

    def actions(self, episode: int) -> Array:
        return self._file.read(self._actions[episode])

    def per_step(self, episode: int, name: str) -> Array:
        """An array [T] next to the actions."""
        stored = self._file.stored(f"{self._groups[episode]}/{name}")
        length = int(self.lengths[episode])
        if stored.shape not in ((length,), (length, 1)):
            raise DataError(
                f"{self._file.path}: {stored.path} has shape {stored.shape}; expected ({length},), one number per step"
            )
        return self._file.read(stored).reshape(length)

    def _check(self, episode: int) -> None:
        """Require the fields of the first episode, and one frame per step."""
        group, first = self._groups[episode], self._groups[0]
        if self._actions and not _same_entries(self._actions[episode], self._actions[0]):
            self._refuse(f"{group}/actions", self._actions[episode], self._actions[0])
        fields, expected = self._observed[episode], self._observed[0]
        if set(fields) != set(expected):
            raise DataError(f"{self._file.path}: {group} observes {sorted(fields)}; {first} has {sorted(expected)}")
        frames = int(self.lengths[episode]) + self._final_frames
        for name, array in fields.items():
            if array.shape[:1] != (frames,):
                raise DataError(
                    f"{self._file.path}: {array.path} has shape {array.shape}; expected {frames:,} entries for "
                    f"{self.lengths[episode]:,} {'actions' if self._actions else 'steps'}"
                )
            if not _same_entries(array, expected[name]):
                self._refuse(array.path, array, expected[name])

    def _refuse(self, path: str, array: StoredArray, first: StoredArray) -> None:
        raise DataError(
            f"{self._file.path}: {path} is {array.field('')} per step; expected {first.field('')}, as in {first.path}"
        )


def _same_entries(array: StoredArray, other: StoredArray) -> bool:
    return array.shape[1:] == other.shape[1:] and array.dtype == other.dtype


class MinariSource:
    """Reads shapes when it is opened, and numbers on request."""

    layout = "Minari HDF5"

    def __init__(self, file: Hdf5File) -> None:
        self.path = str(file.path)
        self.task = file.path.parent.parent.name if file.path.stem == "main_data" else file.path.stem
        self.masks: Mapping[str, Sequence[str]] = {}
        self._file = file
        self.names: Sequence[str] = [name for name in file.groups("/") if name.startswith("episode_")]
        self._episodes = EpisodeGroups(file, self.names, self._observations, final_frames=1)
        self.lengths, self.action = self._episodes.lengths, self._episodes.action
        self.missing_actions = self._episodes.missing_actions
        self.fields: Mapping[str, ArrayField] = self._episodes.fields
        self.default_keys: Sequence[str] = list(self.fields)
        self.rewarded: Array = np.array([file.has(f"{name}/rewards") for name in self.names])
        self.has_rewards = bool(self.rewarded.all())

    @cached_property
    def success(self) -> Array | None:
        """True for an episode if the info of any step is true."""
        for info in SUCCESS_INFOS:
            places = [f"{name}/infos/{info}" for name in self.names]
            if all(self._file.has(place) for place in places):
                return np.array([bool(self._file.read(self._file.stored(place)).any()) for place in places])
        return None

    @cached_property
    def action_bounds(self) -> tuple[float, float] | None:
        """From the action space in metadata.json, which Minari writes next to the file."""
        try:
            metadata = json.loads((self._file.path.parent / "metadata.json").read_bytes())
            space = json.loads(metadata["action_space"])
            low, high = float(np.min(space["low"])), float(np.max(space["high"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # the audit then infers the range from the actions themselves
        return (low, high) if np.isfinite([low, high]).all() else None

    def final_known(self, names: Sequence[str]) -> Array:
        flags = [self._file.attribute(name, FINAL_STORED) for name in self.names]
        return np.array([flag is None or bool(flag) for flag in flags])

    def frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        return self._episodes.frames(episode, name, start, stop)

    def actions(self, episode: int) -> Array:
        return self._episodes.actions(episode)

    def rewards(self, episode: int) -> Array:
        return self._episodes.per_step(episode, "rewards")

    def ends(self, episode: int) -> EndFlags:
        return EndFlags(self._flags(episode, "terminations"), self._flags(episode, "truncations"))

    def _flags(self, episode: int, name: str) -> Array | None:
        stored = self._file.has(f"{self.names[episode]}/{name}")
        return self._episodes.per_step(episode, name).astype(bool) if stored else None

    def _observations(self, group: str) -> dict[str, StoredArray]:
        arrays = self._file.arrays(f"{group}/observations")
        if not arrays:
            raise DataError(
                f"{self.path}: {group}/observations has no arrays of numbers; expected one, or a group of them"
            )
        return {name or "observations": array for name, array in arrays.items()}

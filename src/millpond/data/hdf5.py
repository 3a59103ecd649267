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

from millpond.data.source import (
    NUMERIC_KINDS,
    Array,
    ArrayField,
    DataError,
    EndFlags,
    require_numbers,
    require_unpackable,
)
from millpond.durable import open_file, read_at
from millpond.errors import MillpondError
from millpond.replay.export import FINAL_STORED
from millpond.safe_read import JSON_BYTES, parse_json, read_regular

MAX_COMPRESSION = 2000  # bytes that one stored byte can expand to; gzip reaches 1,032
MAX_DEPTH, MAX_MEMBERS = 32, 10_000  # of an observation: groups within groups; groups and arrays
MAX_LINKS = 200  # names on the way to an array, those of soft links included
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
        except Exception as error:  # a file of a stranger: the library may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(f"{self.path}: {place} cannot be read ({reason}); expected {expected}") from None

    def groups(self, place: str) -> list[str]:
        """Names of the groups in a group, demo_2 before demo_10."""
        with self.guarded(place, "a group"):
            group = self._item(place)
            names = [
                name for name in _names(group) if isinstance(self._follow(group, name, f"{place}/{name}"), h5py.Group)
            ]
        return sorted(names, key=_natural_order)

    def names(self, place: str) -> list[str]:
        """Names of everything in a group."""
        with self.guarded(place, "a group"):
            return _names(self._item(place))

    def has(self, place: str) -> bool:
        """True if there is something at a path; a link to another file is an error, not followed."""
        with self.guarded(place, "a group or an array, or nothing"):
            item: Any = self._file
            for name in place.split("/"):
                if not isinstance(item, h5py.Group) or name not in item:
                    return False
                item = self._follow(item, name, place)
            return True

    def _item(self, place: str) -> Any:
        """Return the group or array at a path. No link out of the file is followed."""
        return self._resolve(self._file, place, place, [])

    def _follow(self, group: Any, name: str, place: str) -> Any:
        return self._resolve(group, name, place, [])

    def _resolve(self, group: Any, path: str, place: str, followed: list[str]) -> Any:
        """Follow a path name by name. The library would follow links to other files, to pipes and devices, too."""
        item = group
        for name in filter(lambda part: part not in ("", "."), path.split("/")):
            followed.append(name)
            if len(followed) > MAX_LINKS:
                raise DataError(f"{self.path}: {place} is a link in a loop; expected a group or an array")
            link = item.get(name, getlink=True)
            if isinstance(link, h5py.SoftLink):
                item = self._resolve(self._file if link.path.startswith("/") else item, link.path, place, followed)
            elif link is None or isinstance(link, h5py.HardLink):
                item = item[name]
            else:
                raise DataError(
                    f"{self.path}: {place} is in another file ({name} is an external link), which is not opened; copy the "
                    f"data into this file, for example with h5copy"
                )
        return item

    def strings(self, place: str) -> list[str]:
        """An array of names."""
        with self.guarded(place, "an array of names"):
            stored = self.stored(place)
            if len(stored.shape) != 1:
                raise ValueError(f"its shape is {stored.shape}")
            return [str(name) for name in self._item(place).asstr()[()]]

    def attribute(self, place: str, name: str) -> Any:
        """One attribute, or None."""
        with self.guarded(place, f"the attribute {name}"):
            return self._item(place).attrs.get(name)

    def flag(self, place: str, name: str) -> bool | None:
        """One attribute that is true or false, or None."""
        value = self.attribute(place, name)
        if value is None:
            return None
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in NUMERIC_KINDS:
            raise DataError(f"{self.path}: the attribute {name} of {place} is {value!r}; expected true or false")
        return bool(array.reshape(()))

    def arrays(self, place: str) -> dict[str, StoredArray]:
        """All arrays of numbers in a group and its subgroups, by their paths inside it; "" for an array itself."""
        with self.guarded(place, "an array, or a group of arrays"):
            arrays = dict(self._walk(self._item(place), place, (), []))
        inside = {path.removeprefix(place).removeprefix("/"): array for path, array in arrays.items()}
        return {name: array for name, array in inside.items() if array.dtype.kind in NUMERIC_KINDS and array.shape}

    def stored(self, place: str) -> StoredArray:
        """Shape, dtype and location of an array; its numbers are not read."""
        with self.guarded(place, "an array"):
            array = self._item(place)
            if not isinstance(array, h5py.Dataset):
                raise DataError(f"{self.path}: {place} is a group; expected an array")
            return self._stored(array, place)

    def _walk(
        self, item: Any, place: str, above: tuple[Any, ...], seen: list[str]
    ) -> Iterator[tuple[str, StoredArray]]:
        seen.append(place)
        if len(seen) > MAX_MEMBERS:
            raise DataError(f"{self.path}: {seen[0]} has more than {MAX_MEMBERS:,} groups and arrays; expected fewer")
        if isinstance(item, h5py.Dataset):
            yield place, self._stored(item, place)
        elif item in above:
            raise DataError(
                f"{self.path}: {place} is a link to a group that contains it; expected groups without loops"
            )
        elif len(above) > MAX_DEPTH:
            raise DataError(f"{self.path}: {place} is nested too deeply; expected at most {MAX_DEPTH} groups")
        elif isinstance(item, h5py.Group):
            for name in _names(item):
                inside = f"{place}/{name}"
                yield from self._walk(self._follow(item, name, inside), inside, (*above, item), seen)

    def _stored(self, array: Any, place: str) -> StoredArray:
        if array.shape is None:
            raise DataError(f"{self.path}: {place} is empty; expected an array")
        if array.is_virtual or array.external:
            raise DataError(
                f"{self.path}: {place} has its numbers in other files, which are not opened; copy them into this file, for "
                f"example with h5repack"
            )
        shape, dtype, stored_bytes = tuple(array.shape), array.dtype, array.id.get_storage_size()
        offset = array.id.get_offset() if self._direct else None  # None if it is chunked
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > stored_bytes * MAX_COMPRESSION:
            raise DataError(
                f"{self.path}: {place} claims shape {shape}, {nbytes:,} bytes, of which {stored_bytes:,} are stored; "
                f"expected an array that was written completely"
            )
        chunk_bytes = math.prod(array.chunks or ()) * dtype.itemsize if array.chunks else 0
        require_unpackable(str(self.path), place, max(nbytes, chunk_bytes), stored_bytes)
        if offset is not None and offset + nbytes > self._bytes:
            raise DataError(f"{self.path}: {place} extends past the end of the file, which is truncated or damaged")
        return StoredArray(place, shape, dtype, offset)

    def read(self, stored: StoredArray, start: int = 0, stop: int | None = None) -> Array:
        """Entries start..stop of an array."""
        stop = stored.shape[0] if stop is None else stop
        shape = (stop - start, *stored.shape[1:])
        if stored.offset is None:
            with self.guarded(stored.path, f"{stored.dtype} of shape {stored.shape}"):
                entries: Array = self._item(stored.path)[start:stop]
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


def _names(group: Any) -> list[str]:
    """Names in a group; the library returns those that are not UTF-8 as bytes."""
    names = list(group)
    foreign = [name for name in names if not isinstance(name, str)]
    if foreign:
        raise ValueError(f"the name {foreign[0]!r} is not UTF-8")
    return names


def _natural_order(name: str) -> tuple[str, int, str, str]:
    """Sort key with demo_2 before demo_10."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :].lstrip("0")
    return (stem, len(digits), digits, name)


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
        require_numbers(str(self._file.path), stored.field(stored.path))
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
                return np.array([self._any_step(place) for place in places])
        return None

    def _any_step(self, place: str) -> bool:
        stored = self._file.stored(place)
        require_numbers(self.path, stored.field(place))
        if not stored.shape:
            raise DataError(f"{self.path}: {place} is one value; expected one per step")
        return bool(self._file.read(stored).any())

    @cached_property
    def action_bounds(self) -> tuple[float, float] | None:
        """From the action space in metadata.json, which Minari writes next to the file."""
        try:
            path = self._file.path.parent / "metadata.json"
            metadata = parse_json(read_regular(path, JSON_BYTES, follow_links=True), path, finite=False)
            space = parse_json(metadata["action_space"], path, finite=False)
            low, high = float(np.min(space["low"])), float(np.max(space["high"]))
        except (MillpondError, ValueError, KeyError, TypeError, AttributeError):
            return None  # the audit then infers the range from the actions themselves
        return (low, high) if np.isfinite([low, high]).all() else None

    def final_known(self, names: Sequence[str]) -> Array:
        flags = [self._file.flag(name, FINAL_STORED) for name in self.names]
        return np.array([flag is None or flag for flag in flags])

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

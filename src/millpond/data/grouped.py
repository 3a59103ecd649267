"""The common part of HDF5 layouts with one group per episode: actions, fields of an observation, numbers per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from millpond.data.errors import DataError
from millpond.data.hdf5 import Hdf5File, Stored
from millpond.data.source import Array, require_numbers


class Grouped:
    """Shapes of every episode's arrays, checked against each other; numbers are read when they are asked for.

    groups        paths of the episodes' groups
    observations  the arrays of an observation in a group, by field
    behind        frames that are stored after those of the steps: 1 where the final one is, else 0

    Steps are counted by the actions. Where any episode has none, no actions are read, and the frames are counted.
    """

    def __init__(
        self, file: Hdf5File, groups: Sequence[str], observations: Callable[[str], dict[str, Stored]], behind: int
    ) -> None:
        self._file, self._groups, self._behind = file, groups, behind
        missing = [group for group in groups if not file.has(f"{group}/actions")]
        self.without_actions = f"{missing[0]}/actions" if missing else ""
        self._actions = [] if missing else [file.stored(f"{group}/actions") for group in groups]
        self._observed = [observations(group) for group in groups]
        counted = self._actions or [next(iter(fields.values())) for fields in self._observed]
        rows = np.array([array.shape[0] if array.shape else 0 for array in counted], np.int64)
        self.lengths: Array = rows - behind if missing else rows
        if (self.lengths < 1).any():
            where = counted[int(np.argmin(self.lengths))].path
            raise DataError(f"{file.path}: {where} has no steps; expected at least one row per step")
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

    def per_step(self, episode: int, what: str) -> Array:
        """An array [T] beside the actions."""
        stored = self._file.stored(f"{self._groups[episode]}/{what}")
        length = int(self.lengths[episode])
        if stored.shape not in ((length,), (length, 1)):
            raise DataError(
                f"{self._file.path}: {stored.path} has shape {stored.shape}; expected ({length},), one a step"
            )
        return self._file.read(stored).reshape(length)

    def _check(self, episode: int) -> None:
        """The same fields as in the first episode, and as many frames as there are steps."""
        group, first = self._groups[episode], self._groups[0]
        if self._actions and not _alike(self._actions[episode], self._actions[0]):
            self._differs(f"{group}/actions", self._actions[episode], self._actions[0])
        fields, expected = self._observed[episode], self._observed[0]
        if set(fields) != set(expected):
            raise DataError(f"{self._file.path}: {group} observes {sorted(fields)}; {first} has {sorted(expected)}")
        frames = int(self.lengths[episode]) + self._behind
        for name, array in fields.items():
            if array.shape[:1] != (frames,):
                raise DataError(
                    f"{self._file.path}: {array.path} has shape {array.shape}; expected {frames:,} rows for "
                    f"{self.lengths[episode]:,} {'actions' if self._actions else 'steps'}"
                )
            if not _alike(array, expected[name]):
                self._differs(array.path, array, expected[name])

    def _differs(self, path: str, array: Stored, first: Stored) -> None:
        raise DataError(
            f"{self._file.path}: {path} is {array.field('')} a step; expected {first.field('')}, as in {first.path}"
        )


def _alike(array: Stored, other: Stored) -> bool:
    return array.shape[1:] == other.shape[1:] and array.dtype == other.dtype

"""What can be wrong with recorded episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from millpond.errors import MillpondError


class DataError(MillpondError):
    """A file of episodes is damaged, foreign or not as asked for; the message names the file, the place and the fix."""


# -- What every kind of file is read through: which episodes it has, and stretches of their arrays.
#
# An episode of T steps has T actions and T + 1 frames: the observation before each step, and the one after the last.
# Where a file stores only T of them (LIBERO, robosuite), `final_known` says so and frame T cannot be asked for.

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ArrayField:
    """One array of an observation, or the action: its name, and shape and dtype of one frame."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_image(self) -> bool:
        """Bytes in two or three dimensions; all else is a vector."""
        return self.dtype == np.uint8 and len(self.shape) in (2, 3)

    @property
    def width(self) -> int:
        """Numbers in one frame."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one frame."""
        return self.width * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def require_numbers(path: str, field: ArrayField) -> None:
    """Strings, compounds and complex numbers cannot be learned from."""
    if field.dtype.kind not in "biuf":
        raise DataError(f"{path}: {field.name} is {field}; expected numbers")


@dataclass(frozen=True)
class EndFlags:
    """Flags as they are stored, one a step; None where the file has none."""

    terminated: Array | None
    truncated: Array | None


class EpisodeSource(Protocol):
    """The episodes of one file or lake. Opening it reads no frames."""

    path: str
    layout: str  # such as "LIBERO HDF5"
    task: str  # what was done in these episodes, as far as the file says
    names: Sequence[str]
    lengths: Array  # [episodes] steps
    fields: Mapping[str, ArrayField]  # all that an observation has
    default_keys: Sequence[str]  # those that are used unless others are asked for
    action: (
        ArrayField | None
    )  # None where any episode has no actions, as in old robosuite files; observations are read then
    without_actions: str  # the place in the file where the first actions are missing; "" where there are all
    rewarded: Array  # bool [episodes]: which have a reward for each step
    has_rewards: bool  # whether all have
    masks: Mapping[str, Sequence[str]]  # named subsets of the episodes

    @property
    def success(self) -> Array | None:
        """bool [episodes]: whether the task was done; None where the file does not say."""

    @property
    def action_bounds(self) -> tuple[float, float] | None:
        """The range that the file itself gives for every number of an action; None where it gives none."""

    def final_known(self, names: Sequence[str]) -> Array:
        """bool [episodes]: whether frame T of all these fields is stored."""

    def frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        """Frames start..stop of one field: [stop - start, ...] in the stored dtype."""

    def actions(self, episode: int) -> Array:
        """All actions [T, ...] in the stored dtype; only where `action` is not None."""

    def rewards(self, episode: int) -> Array:
        """All rewards [T]; only where `rewarded`."""

    def ends(self, episode: int) -> EndFlags:
        """Where the file says that the episode ended."""


# -- Which fields of the observations are used, and which columns of their vectors.

VECTOR_AT_MOST = 1 << 16  # numbers in a vector; beyond this something is an image that is not stored as bytes


@dataclass(frozen=True)
class FieldSelection:
    """The chosen fields in order; of each vector the columns that are kept; and the names of all those columns."""

    fields: tuple[ArrayField, ...]
    vectors: tuple[tuple[ArrayField, Array | slice], ...]
    columns: tuple[str, ...]


def select_fields(
    sources: Sequence[EpisodeSource], *, keys: Sequence[str], images: bool, drop_columns: Sequence[str]
) -> FieldSelection:
    """Choose, and check that every file has what is chosen in the same shape.

    Without keys: all vectors that a file uses by itself, and with `images` its images too, in the file's order.
    """
    first = sources[0]
    names = list(keys) or [name for name in first.default_keys if images or not first.fields[name].is_image]
    if len(set(names)) != len(names):
        raise DataError(f"data.observation_keys={names} names a field twice; name each once")
    for name in names:
        if name not in first.fields:
            there = ",".join(sorted(first.fields))
            raise DataError(
                f"{first.path}: no field {name!r} in its observations; there are {there}. Name some of them, such as "
                f"data.observation_keys=[{there}], or none for all vectors: data.observation_keys=[]"
            )
        if first.fields[name].is_image and not images:
            raise DataError(
                f"data.observation_keys has {name!r}, which is an image {first.fields[name]}; set data.images=true, or "
                f"leave it out"
            )
    if not names:
        there = ", ".join(f"{field.name} {field}" for field in first.fields.values())
        raise DataError(
            f"{first.path} has no vectors to use ({there}); set data.images=true (--images) or data.observation_keys"
        )
    fields = tuple(first.fields[name] for name in names)
    for source in sources[1:]:
        require_same_fields(first, source, fields)
    return _without(first.path, fields, drop_columns)


def require_same_fields(first: EpisodeSource, other: EpisodeSource, fields: Sequence[ArrayField]) -> None:
    """Refuse to join files whose actions or chosen fields differ in shape."""
    for field in fields:
        there = other.fields.get(field.name)
        if there is None or there.shape != field.shape or there.dtype != field.dtype:
            raise DataError(
                f"{other.path} has {field.name} {there if there else 'missing'} and {first.path} {field}; name fields "
                f"that all files share in data.observation_keys, or read them apart"
            )
    one, two = first.action, other.action
    if one is not None and two is not None and (two.shape != one.shape or two.dtype.kind != one.dtype.kind):
        raise DataError(f"{other.path} has actions {two} and {first.path} {one}; read them apart")


def _without(path: str, fields: Sequence[ArrayField], drop_columns: Sequence[str]) -> FieldSelection:
    """Take the dropped columns, named as FIELD:COLUMN, out of the vectors."""
    vectors = [field for field in fields if not field.is_image]
    width = {field.name: field.width for field in vectors}
    keep: dict[str, np.ndarray[Any, Any]] = {field.name: np.ones(field.width, bool) for field in vectors}
    for column in drop_columns:
        name, _, number = column.rpartition(":")
        if name not in width or not number.isdecimal() or int(number) >= width[name]:
            there = ", ".join(f"{known}:0 to {known}:{count - 1}" for known, count in width.items()) or "none"
            raise DataError(f"data.drop_columns has {column!r}, which is not a column of {path}; there are {there}")
        keep[name][int(number)] = False
    kept = [(field, np.flatnonzero(keep[field.name])) for field in vectors]
    columns = tuple(f"{field.name}:{number}" for field, numbers in kept for number in numbers.tolist())
    if len(columns) > VECTOR_AT_MOST:
        widest = max(vectors, key=lambda field: field.width)
        raise DataError(
            f"{path}: {len(columns):,} numbers in a vector, most of them in {widest.name} {widest}; name fewer fields "
            f"in data.observation_keys (images are stored as uint8)"
        )
    if not columns and len(vectors) == len(fields):
        raise DataError(f"data.drop_columns={list(drop_columns)} leaves nothing of {path}; drop fewer")
    return FieldSelection(
        tuple(fields),
        tuple(
            (field, slice(None) if len(numbers) == field.width else numbers) for field, numbers in kept if len(numbers)
        ),
        columns,
    )

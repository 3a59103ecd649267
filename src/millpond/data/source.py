"""What every kind of file is read through: which episodes it has, and stretches of their arrays.

An episode of T steps has T actions and T + 1 frames: the observation before each step, and the one after the last.
Where a file stores only T of them (LIBERO, robosuite), `final_known` says so and frame T cannot be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from millpond.data.errors import DataError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Field:
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


def require_numbers(path: str, field: Field) -> None:
    """Strings, compounds and complex numbers cannot be learned from."""
    if field.dtype.kind not in "biuf":
        raise DataError(f"{path}: {field.name} is {field}; expected numbers")


@dataclass(frozen=True)
class Ends:
    """Flags as they are stored, one a step; None where the file has none."""

    terminated: Array | None
    truncated: Array | None


class Source(Protocol):
    """The episodes of one file or lake. Opening it reads no frames."""

    path: str
    layout: str  # such as "LIBERO HDF5"
    task: str  # what was done in these episodes, as far as the file says
    names: Sequence[str]
    lengths: Array  # [episodes] steps
    fields: Mapping[str, Field]  # all that an observation has
    default_keys: Sequence[str]  # those that are used unless others are asked for
    action: Field | None  # None where any episode has no actions, as in old robosuite files; observations are read then
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

    def ends(self, episode: int) -> Ends:
        """Where the file says that the episode ended."""

"""Sources of episodes: the protocol that every reader implements, how files are opened, and the selection of fields.

A path is a file, a folder of files, a lake, or the name of a packaged dataset. An episode of T steps has T actions and
T + 1 frames: the observation before each step, and the one after the last. Where a file stores only T of them (LIBERO,
robosuite), `final_known` is false and frame T must not be requested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from millpond.errors import MillpondError
from millpond.safe_read import require_regular

Array = np.ndarray[Any, Any]
NUMERIC_KINDS = "biuf"  # kinds of dtype that can be learned from: bool, integer, float
IN_PACKAGE = {"pendulum": "pendulum.npz", "lift": "lift.hdf5", "handover": "handover.hdf5"}
HDF5_SUFFIXES = (".hdf5", ".h5")
MAX_VECTOR_WIDTH = 1 << 16  # a wider "vector" is most likely an image that is not stored as uint8
MAX_BOMB_BYTES, MAX_BOMB_RATIO = 1 << 28, 100  # more unpacked bytes, at a higher ratio, are not recorded episodes


class DataError(MillpondError):
    """A file of episodes is damaged, foreign or not as configured. The message names the file, the place and a fix."""

    one_line = True


@dataclass(frozen=True)
class ArrayField:
    """One array of an observation, or the action: its name, and the shape and dtype of one frame."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_image(self) -> bool:
        """True for uint8 in two or three dimensions; everything else is a vector."""
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
    """Refuse strings, compounds and complex numbers: they cannot be learned from."""
    if field.dtype.kind not in NUMERIC_KINDS:
        raise DataError(f"{path}: {field.name} is {field}; expected numbers")


def require_unpackable(path: str, name: str, unpacked: int, stored: int) -> None:
    """Refuse a compressed array that would fill the memory: a few kilobytes of zeros can unpack to gigabytes."""
    if unpacked > MAX_BOMB_BYTES and unpacked > stored * MAX_BOMB_RATIO:
        raise DataError(
            f"{path}: {name} unpacks to {unpacked:,} bytes, of which {stored:,} are stored; expected recorded numbers, not "
            f"that many equal ones. If they are real, write them without compression"
        )


@dataclass(frozen=True)
class EndFlags:
    """Stored flags, one per step; None where the file has none."""

    terminated: Array | None
    truncated: Array | None


class EpisodeSource(Protocol):
    """The episodes of one file or lake. Opening it reads no frames."""

    path: str
    layout: str  # such as "LIBERO HDF5"
    task: str  # the task of these episodes, as far as the file names it
    names: Sequence[str]
    lengths: Array  # [episodes] steps
    fields: Mapping[str, ArrayField]  # every field of an observation
    default_keys: Sequence[str]  # the fields that are used unless others are requested
    action: ArrayField | None  # None if any episode lacks actions, as in old robosuite files; only observations then
    missing_actions: str  # the place in the file where the first actions are missing; "" if none are
    rewarded: Array  # bool [episodes]: True where every step has a reward
    has_rewards: bool  # True if all episodes have rewards
    masks: Mapping[str, Sequence[str]]  # named subsets of the episodes

    @property
    def success(self) -> Array | None:
        """bool [episodes]: True where the task was solved; None if the file does not record it."""

    @property
    def action_bounds(self) -> tuple[float, float] | None:
        """Range of every number of an action, as stated by the file; None if it states none."""

    def final_known(self, names: Sequence[str]) -> Array:
        """bool [episodes]: True where frame T of all these fields is stored."""

    def frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        """Frames start..stop of one field: [stop - start, ...] in the stored dtype."""

    def actions(self, episode: int) -> Array:
        """All actions [T, ...] in the stored dtype; only if `action` is not None."""

    def rewards(self, episode: int) -> Array:
        """All rewards [T]; only if `rewarded`."""

    def ends(self, episode: int) -> EndFlags:
        """Stored flags of the end of the episode."""


@dataclass(frozen=True)
class FieldSelection:
    """The selected fields in order; the selected columns of each vector; and the names of all those columns."""

    fields: tuple[ArrayField, ...]
    vectors: tuple[tuple[ArrayField, Array | slice], ...]
    columns: tuple[str, ...]


def select_fields(
    sources: Sequence[EpisodeSource], *, keys: Sequence[str], images: bool, drop_columns: Sequence[str]
) -> FieldSelection:
    """Select observation fields, and check that every file has them in the same shape.

    Without keys: all vectors among the file's default fields, and with `images` its images too, in the file's order.
    """
    first = sources[0]
    names = list(keys) or [name for name in first.default_keys if images or not first.fields[name].is_image]
    if len(set(names)) != len(names):
        raise DataError(f"data.observation_keys={names} names a field twice; name each once")
    for name in names:
        if name not in first.fields:
            available = ",".join(sorted(first.fields))
            raise DataError(
                f"{first.path}: its observations have no field {name!r}; there are {available}. Name some of them, such "
                f"as data.observation_keys=[{available}], or none for all vectors: data.observation_keys=[]"
            )
        if first.fields[name].is_image and not images:
            raise DataError(
                f"data.observation_keys has {name!r}, which is an image {first.fields[name]}; set data.images=true, or "
                f"leave it out"
            )
    if not names:
        available = ", ".join(f"{field.name} {field}" for field in first.fields.values())
        raise DataError(
            f"{first.path} has no vectors ({available}); set data.images=true (--images) or data.observation_keys"
        )
    fields = tuple(first.fields[name] for name in names)
    for source in sources[1:]:
        require_same_fields(first, source, fields)
    return _select_columns(first.path, fields, drop_columns)


def require_same_fields(first: EpisodeSource, other: EpisodeSource, fields: Sequence[ArrayField]) -> None:
    """Refuse to join files whose actions or selected fields differ in shape."""
    for field in fields:
        counterpart = other.fields.get(field.name)
        if counterpart is None or counterpart.shape != field.shape or counterpart.dtype != field.dtype:
            raise DataError(
                f"{other.path} has {field.name} {counterpart or 'missing'} and {first.path} {field}; name fields "
                f"that all files share in data.observation_keys, or read the files separately"
            )
    one, two = first.action, other.action
    if one is not None and two is not None and (two.shape != one.shape or two.dtype.kind != one.dtype.kind):
        raise DataError(f"{other.path} has actions {two} and {first.path} {one}; read the files separately")


def _select_columns(path: str, fields: Sequence[ArrayField], drop_columns: Sequence[str]) -> FieldSelection:
    """Remove the dropped columns, named as FIELD:COLUMN, from the vectors."""
    vectors = [field for field in fields if not field.is_image]
    width = {field.name: field.width for field in vectors}
    mask: dict[str, Array] = {field.name: np.ones(field.width, bool) for field in vectors}
    for column in drop_columns:
        name, _, number = column.rpartition(":")
        if name not in width or not number.isdecimal() or int(number) >= width[name]:
            available = ", ".join(f"{known}:0 to {known}:{count - 1}" for known, count in width.items()) or "none"
            raise DataError(f"data.drop_columns has {column!r}, which is not a column of {path}; there are {available}")
        mask[name][int(number)] = False
    selected = [(field, np.flatnonzero(mask[field.name])) for field in vectors]
    columns = tuple(f"{field.name}:{number}" for field, numbers in selected for number in numbers.tolist())
    if len(columns) > MAX_VECTOR_WIDTH:
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
            (field, slice(None) if len(numbers) == field.width else numbers)
            for field, numbers in selected
            if len(numbers)
        ),
        columns,
    )


def open_sources(path: str | Path) -> list[EpisodeSource]:
    """Open all files of a path; at least one."""
    return [_open(file) for file in _files(path)]


def data_exists(path: str | Path) -> bool:
    """True if a path is a file, a folder, or the name of a packaged dataset."""
    try:
        return str(path) in IN_PACKAGE or Path(path).exists()
    except (OSError, ValueError):  # too long, has a NUL, or is in a folder without permission
        return False


def _files(path: str | Path) -> list[Path]:
    """The files of a path, in order of their names."""
    if str(path) in IN_PACKAGE:  # always; a user's file of that name is ./pendulum
        return [Path(str(files("millpond.data") / "files" / IN_PACKAGE[str(path)]))]
    location = Path(path)
    if not data_exists(path):
        raise DataError(
            f"{path}: no such file or folder; data.path is one, or the name of a packaged dataset: "
            f"{', '.join(IN_PACKAGE)}"
        )
    if not location.is_dir():
        require_regular(location, "data.path is a file, a folder or a lake", follow_links=True)
        return [location]
    if (location / "lake.json").exists():
        return [location]
    episode_files = sorted(
        file for file in location.rglob("*") if file.suffix in (*HDF5_SUFFIXES, ".npz") and file.is_file()
    )
    if not episode_files:
        raise DataError(f"{path}: no episodes in this folder; expected .hdf5, .h5 or .npz files, or a lake")
    return episode_files


def _open(path: Path) -> EpisodeSource:
    """The reader of a file or lake. Only the libraries of that layout are imported."""
    if path.is_dir():
        from millpond.data.lake import LakeSource

        return LakeSource(path)
    if path.suffix == ".npz":
        from millpond.data.npz import NpzSource

        return NpzSource(path)
    if path.suffix not in HDF5_SUFFIXES:
        raise DataError(f"{path}: expected a file that ends in .hdf5, .h5 or .npz, a folder of them, or a lake")
    return _open_hdf5(path)


def _open_hdf5(path: Path) -> EpisodeSource:
    """The reader of an HDF5 file, whose layout is recognised by the names of its groups."""
    from millpond.data.demonstrations import DemonstrationSource
    from millpond.data.hdf5 import Hdf5File, MinariSource

    file = Hdf5File(path)
    if file.has("data"):
        return DemonstrationSource(file)
    names = file.names("/")
    if any(name.startswith("episode_") for name in names):
        return MinariSource(file)
    raise DataError(
        f"{path}: / has {names[:8]}; expected the group data with demo_0, demo_1, ... (LIBERO, robomimic, robosuite), or "
        f"groups episode_0, episode_1, ... (Minari)"
    )

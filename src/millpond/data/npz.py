"""Episodes in one .npz file, as the `imitation` project writes them.

obs       [steps + episodes, ...]: T + 1 frames per episode, concatenated; or several fields as obs/NAME
acts      [steps, ...]: T actions per episode, concatenated; optional if only observations are learned from
rews      [steps], optional
indices   [episodes - 1]: the steps at which `acts` is split into episodes
terminal  [episodes]: true if the last step terminated the episode
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from millpond.data.source import Array, ArrayField, DataError, EndFlags, require_numbers, require_unpackable

REQUIRED = ("indices", "terminal")
OPTIONAL = ("acts", "rews", "final_stored")
MAX_UNPACKED_BYTES = 1 << 31  # of all compressed members; more belong in an uncompressed file
MAX_MEMBERS = 1000  # of an archive; the layout has a few
LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip member: signature, bytes of its name, bytes of its extra field


class NpzSource:
    """Memory-maps uncompressed arrays, so that only requested parts are read; unpacks compressed ones."""

    action_bounds: tuple[float, float] | None = None
    layout = "imitation npz"
    masks: Mapping[str, Sequence[str]] = {}

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.task = path.stem
        arrays = _arrays(path)
        acts, indices, terminal = arrays.get("acts"), arrays["indices"], arrays["terminal"]
        for name, array in arrays.items():
            require_numbers(str(path), ArrayField(name, array.shape[1:], array.dtype))
        if indices.ndim != 1:
            raise DataError(
                f"{path}: indices has shape {indices.shape}; expected [episodes - 1]: the steps at which acts is split"
            )
        if indices.dtype.kind not in "iu" and len(indices):
            raise DataError(
                f"{path}: indices is {indices.dtype}[]; expected integers: the steps at which acts is split"
            )
        self._frames = {name.removeprefix("obs/"): array for name, array in arrays.items() if _is_observation(name)}
        episodes = len(indices) + 1
        steps = len(acts) if acts is not None else len(next(iter(self._frames.values()))) - episodes
        counted = "acts" if acts is not None else "steps"
        inside = ((indices > 0) & (indices < steps)).all()  # before they are converted: large ones would wrap around
        boundaries = np.concatenate([[0], indices.astype(np.int64) if inside else [0], [steps]])
        self.lengths = np.diff(boundaries)
        if (self.lengths < 1).any():
            raise DataError(f"{path}: indices must increase from above 0 to below {steps}, the number of {counted}")
        for name, array in self._frames.items():
            if len(array) != steps + episodes:
                raise DataError(
                    f"{path}: {name} has {len(array):,} frames; {steps:,} {counted} in {episodes:,} episodes need "
                    f"{steps + episodes:,}, one more than {counted} for each episode"
                )
        if terminal.shape != (episodes,):
            raise DataError(f"{path}: terminal has shape {terminal.shape}, not ({episodes},): one flag per episode")
        self.has_rewards = "rews" in arrays
        self.rewarded = np.full(episodes, self.has_rewards)
        if self.has_rewards and arrays["rews"].shape != (steps,):
            raise DataError(f"{path}: rews has shape {arrays['rews'].shape}, not ({steps},): one per step")
        self._arrays, self._boundaries = arrays, boundaries
        self._terminal = terminal.astype(bool)
        stored = arrays.get("final_stored", np.ones(episodes, bool))  # an export of a lake marks those that are missing
        if stored.shape != (episodes,):
            raise DataError(f"{path}: final_stored has shape {stored.shape}, not ({episodes},): one flag per episode")
        self.names: Sequence[str] = [f"episode_{number}" for number in range(episodes)]
        self._final_stored = stored.astype(bool)
        self.fields: Mapping[str, ArrayField] = {
            name: ArrayField(name, array.shape[1:], array.dtype) for name, array in self._frames.items()
        }
        self.default_keys: Sequence[str] = list(self.fields)
        self.action = ArrayField("acts", acts.shape[1:], acts.dtype) if acts is not None else None
        self.missing_actions = "" if acts is not None else "the array acts"
        self.success: Array | None = None

    def final_known(self, names: Sequence[str]) -> Array:
        return self._final_stored

    def frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        first = int(self._boundaries[episode]) + episode  # each earlier episode has one frame more than actions
        return self._frames[name][first + start : first + stop]

    def actions(self, episode: int) -> Array:
        return self._arrays["acts"][self._boundaries[episode] : self._boundaries[episode + 1]]

    def rewards(self, episode: int) -> Array:
        return self._arrays["rews"][self._boundaries[episode] : self._boundaries[episode + 1]]

    def ends(self, episode: int) -> EndFlags:
        """Mark the last step; an episode that did not terminate was truncated there."""
        last = np.arange(self.lengths[episode]) == self.lengths[episode] - 1
        return EndFlags(last & self._terminal[episode], last & ~self._terminal[episode])


def _is_observation(name: str) -> bool:
    return name == "obs" or name.startswith("obs/")


def _arrays(path: Path) -> dict[str, Array]:
    """All arrays of the layout, memory-mapped unless they are compressed. Never unpickles."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(archive.infolist()) > MAX_MEMBERS:
                raise ValueError(f"it has {len(archive.infolist()):,} members; at most {MAX_MEMBERS:,} are read")
            observations = [name for name in members if _is_observation(name)]
            missing = [name for name in REQUIRED if name not in members] + ([] if observations else ["obs"])
            if missing:
                raise DataError(
                    f"{path} has the arrays {', '.join(sorted(members)) or 'none'}, and lacks {', '.join(missing)}; "
                    f"expected the imitation layout: obs [steps + episodes, ...], acts [steps, ...], rews [steps], "
                    f"indices [episodes - 1] and terminal [episodes]"
                )
            names = [*observations, *REQUIRED, *(name for name in OPTIONAL if name in members)]
            _require_unpackable(path, [members[name] for name in names])
            return {name: _array(path, archive, name, members[name]) for name in names}
    except (
        OSError,
        zipfile.BadZipFile,
        EOFError,
        NotImplementedError,
        struct.error,
        RuntimeError,
        ValueError,
    ) as error:
        raise DataError(f"{path} cannot be read as an .npz file: {error}") from None


def _require_unpackable(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse compressed members that do not fit into memory, by the sizes that the archive states."""
    packed = [member for member in members if member.compress_type != zipfile.ZIP_STORED]
    for member in packed:
        require_unpackable(str(path), member.filename, member.file_size, member.compress_size)
    unpacked = sum(member.file_size for member in packed)
    if unpacked > MAX_UNPACKED_BYTES:
        raise ValueError(f"{unpacked:,} bytes are compressed; write it with np.savez, which can be mapped")


def _array(path: Path, archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> Array:
    """One array. Shape and dtype of the header are checked against the bytes before anything is mapped."""
    try:
        with archive.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"version {version} of the npy format is not supported")
            read_header = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read_header(stream)
            header_bytes = stream.tell()
            if dtype.hasobject:
                raise ValueError("it has Python objects, which could run code when they are loaded")
            if not shape or fortran:
                raise ValueError(f"shape {shape} must have a first axis of steps, in C order")
            nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
            if member.file_size - header_bytes != nbytes:
                raise ValueError(f"it has {member.file_size - header_bytes:,} bytes; {dtype}{shape} needs {nbytes:,}")
            if member.compress_type == zipfile.ZIP_STORED and nbytes:
                return _mapped(path, member, header_bytes, shape, dtype)
            return np.frombuffer(stream.read(), dtype).reshape(shape)
    except (ValueError, EOFError, OverflowError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: array {name} cannot be read: {error}") from None


def _mapped(path: Path, member: zipfile.ZipInfo, header: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory-map an uncompressed member."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        signature, name_bytes, extra_bytes = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        offset = member.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes + header
        end = offset + int(np.prod(shape)) * dtype.itemsize
        if signature != b"PK\x03\x04" or end > os.fstat(file.fileno()).st_size:
            raise ValueError("the file ends before it")
        return np.memmap(file, dtype, "r", offset, shape)

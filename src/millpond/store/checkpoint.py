"""One checkpoint: a folder that exists completely or not at all.

    weights.safetensors   parameters and buffers, named PART/NAME
    state.pt              optimisers, generators, samplers: read with weights_only=True
    values.json           positions, counters: plain values
    manifest.json         sizes and sha256 of the others, written last, with a sha256 of itself

It is written under a temporary name, file by file with fsync, and renamed when all files are on disk. It is read into
memory once, so that the bytes that were checked are the bytes that are used.

State is a tree of plain values, arrays and tensors, stored by `torch.save` and read with `weights_only=True`, which runs no
code from the file. That reader does not support NumPy, so arrays are stored as byte tensors with their dtype and shape.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from millpond.durable import sync_folder, write_file
from millpond.errors import MillpondError

if TYPE_CHECKING:
    import torch

_ARRAY = "__numpy__"
WRITING, REPLACED, DELETING = ".writing-", ".replaced-", ".deleting-"
FORMAT = 1
WEIGHTS, STATE, VALUES, MANIFEST = "weights.safetensors", "state.pt", "values.json", "manifest.json"


class RunError(MillpondError):
    """A run folder is missing, exists already, or is in use."""


class NothingToPlayError(RunError):
    """A run trains no agent, so there is none to evaluate or render."""


class ResumeError(MillpondError):
    """A run cannot be resumed as requested."""


class CheckpointError(MillpondError):
    """A checkpoint cannot be written or used."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not as it was written: a file is missing, or its bytes differ."""


class UnsafeCheckpointError(CheckpointError):
    """A checkpoint holds a pickle that could run code when loaded."""


class DiskFullError(CheckpointError):
    """The disk has no space for a checkpoint."""

    exit_code = 1  # the input was valid: the machine failed


def tree_to_bytes(tree: Any) -> bytes:
    """Serialise a tree; objects that would need pickle are refused by name."""
    import torch

    buffer = io.BytesIO()
    torch.save(_encode(tree, "state"), buffer)
    return buffer.getvalue()


def tree_from_bytes(data: bytes, name: str) -> Any:
    """Deserialise a tree, with tensors on the CPU. `name` is the source of the bytes, for errors."""
    import torch

    try:
        return _decode(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        reason = str(error).strip().splitlines()[0]
        raise UnsafeCheckpointError(
            f"{name} is refused: it contains something other than plain values and tensors, and loading it could run "
            f"code. It was not written by Millpond ({reason})"
        ) from None
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        raise CheckpointError(f"{name} cannot be read: {error}") from error


def _encode(tree: Any, path: str) -> Any:
    import torch

    if tree is None or type(tree) in (bool, int, float, str, bytes):
        return tree
    if isinstance(tree, torch.Tensor):
        tensor = tree.detach().cpu()
        # torch.save would store the whole storage of a view.
        return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
    if isinstance(tree, np.ndarray | np.generic):
        array = np.asarray(tree)
        if array.dtype.hasobject or array.dtype.names:
            raise CheckpointError(
                f"{path} is an array of dtype {array.dtype}; a checkpoint can hold only arrays of numbers"
            )
        raw = torch.frombuffer(bytearray(array.tobytes()), dtype=torch.uint8) if array.nbytes else torch.empty(0)
        scalar = isinstance(tree, np.generic)
        return {_ARRAY: [array.dtype.str, list(array.shape), scalar], "bytes": raw}
    if isinstance(tree, dict):
        for key in tree:
            if type(key) not in (str, int):
                raise CheckpointError(f"{path} has the key {key!r}; keys in a checkpoint must be text or whole numbers")
        return {key: _encode(value, f"{path}[{key!r}]") for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_encode(value, f"{path}[{index}]") for index, value in enumerate(tree))
    raise CheckpointError(
        f"{path} is a {type(tree).__module__}.{type(tree).__qualname__}; a checkpoint can hold tensors, arrays, numbers, "
        f"text, and dicts, lists and tuples of them. Pass the state_dict() of the object instead"
    )


def _decode(tree: Any) -> Any:
    if isinstance(tree, dict):
        if _ARRAY in tree:
            dtype, shape, scalar = tree[_ARRAY]
            array = np.frombuffer(tree["bytes"].numpy().tobytes(), dtype=np.dtype(dtype)).reshape(shape).copy()
            return array[()] if scalar else array
        return {key: _decode(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_decode(value) for value in tree)
    return tree


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint. `score` is its own; `best` has the updates and score of the best so far."""

    updates: int
    weights: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    score: float | None = None
    best: tuple[int, float] | None = None


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to `folder`, and replace an existing one."""
    files = {
        WEIGHTS: _weights_to_bytes(checkpoint.weights),
        STATE: tree_to_bytes(dict(checkpoint.state)),
        VALUES: _values_to_bytes(checkpoint.values),
    }
    files[MANIFEST] = _seal(
        {
            "format": FORMAT,
            "updates": checkpoint.updates,
            "score": checkpoint.score,
            "best": list(checkpoint.best) if checkpoint.best else None,
            "files": {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in files.items()},
        }
    )
    temporary, replaced = folder.with_name(WRITING + folder.name), folder.with_name(REPLACED + folder.name)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name, data in files.items():
            write_file(temporary / name, data)
        sync_folder(temporary)
        if folder.exists():  # a folder cannot be renamed over another that is not empty
            os.rename(folder, replaced)
        os.rename(temporary, folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if replaced.exists() and not folder.exists():
            os.rename(replaced, folder)
        raise _not_written(folder, sum(map(len, files.values())), error) from error
    shutil.rmtree(replaced, ignore_errors=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint; raise `DamagedCheckpointError` with the reason if it is not as it was written."""
    manifest = read_manifest(folder)
    contents = {}
    for name, expected in manifest["files"].items():
        data = _read(folder / name)
        if len(data) != expected["bytes"]:
            raise DamagedCheckpointError(f"{folder / name} has {len(data):,} bytes, not {expected['bytes']:,}")
        if _sha256(data) != expected["sha256"]:
            raise DamagedCheckpointError(f"{folder / name} is not as it was written (sha256 differs)")
        contents[name] = data
    return Checkpoint(
        updates=manifest["updates"],
        weights=_weights_from_bytes(contents[WEIGHTS]),
        state=tree_from_bytes(contents[STATE], str(folder / STATE)),
        values=json.loads(contents[VALUES]),
        score=manifest["score"],
        best=tuple(manifest["best"]) if manifest["best"] else None,
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest, and verify its sha256."""
    path = folder / MANIFEST
    data = _read(path)
    try:
        manifest = json.loads(data)
        body = {key: value for key, value in manifest.items() if key != "sha256"}
        whole = _seal(body) == data
    except (ValueError, AttributeError):
        whole = False
    if not whole:
        raise DamagedCheckpointError(f"{path} is not as it was written")
    if manifest["format"] != FORMAT:
        raise CheckpointError(f"{folder} has format {manifest['format']}; this Millpond reads format {FORMAT}")
    return dict(manifest)


def recover(folder: Path) -> None:
    """Finish or undo the unfinished writes of a process that died, in a folder of checkpoints."""
    for path in sorted(folder.glob(REPLACED + "*")):
        original = folder / path.name.removeprefix(REPLACED)
        if original.exists():
            shutil.rmtree(path)
        else:
            os.rename(path, original)  # it died between the two renames: the old one is still valid
    for kind in (WRITING, DELETING):
        for path in folder.glob(kind + "*"):
            shutil.rmtree(path)


def delete_checkpoint(folder: Path) -> None:
    """Remove a checkpoint; at no time does an incomplete one exist under its name."""
    deleted = folder.with_name(DELETING + folder.name)
    os.rename(folder, deleted)
    shutil.rmtree(deleted)


def _not_written(folder: Path, needed: int, error: OSError) -> CheckpointError:
    what = f"checkpoint {folder.name} was not written to {folder.parent}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = shutil.disk_usage(folder.parent).free
        return DiskFullError(
            f"{what}: {error.strerror}. It needs {needed:,} bytes, {free:,} are free. Older checkpoints are intact; "
            f"free some space and resume the run"
        )
    return CheckpointError(f"{what}: {error.strerror}. Older checkpoints are intact")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedCheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _seal(body: dict[str, Any]) -> bytes:
    """Serialise a manifest with its sha256, always in the same way, so that any other bytes are invalid."""
    text = json.dumps(body, indent=1, sort_keys=True, allow_nan=False)
    return json.dumps({**body, "sha256": _sha256(text.encode())}, indent=1, sort_keys=True).encode() + b"\n"


def _values_to_bytes(values: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(values, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"values of a checkpoint must be finite numbers, text, lists and mappings: {error}"
        ) from error


def _weights_to_bytes(parts: Mapping[str, Mapping[str, torch.Tensor]]) -> bytes:
    import torch
    from safetensors.torch import save

    flat = {}
    for part, tensors in parts.items():
        if "/" in part:
            raise CheckpointError(f"weights of {part!r}: the name of a part must not contain '/'")
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise CheckpointError(f"weights of {part!r}: {name!r} is a {type(tensor).__name__}, not a tensor")
            # Each tensor is cloned: tied weights are stored under each of their names.
            flat[f"{part}/{name}"] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    data: bytes = save(flat)
    return data


def _weights_from_bytes(data: bytes) -> dict[str, dict[str, torch.Tensor]]:
    from safetensors.torch import load

    parts: dict[str, dict[str, torch.Tensor]] = {}
    for flat_name, tensor in load(data).items():
        part, name = flat_name.split("/", 1)
        parts.setdefault(part, {})[name] = tensor
    return parts


class Stateful(Protocol):
    """An object with state."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True)
class Parts:
    """The objects whose state a checkpoint holds, by the file that their state is stored in.

    weights  modules, and other objects whose state consists of tensors: safetensors
    state    optimisers, samplers, generators, envs: trees of plain values, arrays and tensors
    values   loop, counters, recorder: plain values, as readable JSON
    """

    weights: Mapping[str, Stateful] = field(default_factory=dict)
    state: Mapping[str, Stateful] = field(default_factory=dict)
    values: Mapping[str, Stateful] = field(default_factory=dict)

    def collect(self, updates: int, score: float | None = None, best: tuple[int, float] | None = None) -> Checkpoint:
        weights, state, values = (
            {name: part.state_dict() for name, part in group.items()}
            for group in (self.weights, self.state, self.values)
        )
        return Checkpoint(updates, weights, state, values, score, best)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of every part. A checkpoint with other parts is refused before anything is changed."""
        groups = (
            ("weights", self.weights, checkpoint.weights),
            ("state", self.state, checkpoint.state),
            ("values", self.values, checkpoint.values),
        )
        for kind, owners, stored in groups:
            # A part without tensors does not appear in the stored weights.
            missing = [
                name for name in owners if name not in stored and (kind != "weights" or owners[name].state_dict())
            ]
            surplus = [name for name in stored if name not in owners]
            if missing or surplus:
                raise CheckpointError(
                    f"the checkpoint's {kind} are {sorted(stored)}, this run's are {sorted(owners)}; "
                    f"resume with the settings that the run started with"
                )
        for kind, owners, stored in groups:
            _load_states(kind, owners, stored)


def load_weights(owners: Mapping[str, Stateful], weights: Mapping[str, Any], source: str) -> None:
    """Load the weights of another run. Every part must exist and fit. Errors name the `source` of the weights."""
    missing = [name for name in owners if name not in weights]
    if missing:
        raise CheckpointError(f"{source} has no weights of {missing}; it has {sorted(weights)}")
    _load_states(f"{source}: weights", owners, weights)


def _load_states(kind: str, owners: Mapping[str, Stateful], stored: Mapping[str, Any]) -> None:
    for name, owner in owners.items():
        try:
            owner.load_state_dict(stored.get(name, {}))
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{kind} of {name!r} do not fit: {error}") from error

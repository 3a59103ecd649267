"""One checkpoint: a folder that exists completely or not at all.

    weights.safetensors   parameters and buffers, named PART/NAME
    state.pt              optimisers, generators, samplers: read with weights_only=True
    values.json           positions, counters: plain values
    manifest.json         sizes and sha256 of the others, written last, with a sha256 of itself

It is written under a temporary name, file by file with fsync, and renamed when all files are on disk. It is read into
memory once, so that the bytes that were checked are the bytes that are used.

A checkpoint may come from a stranger, who can compute checksums, too. So a manifest names exactly these files, each must be
a regular file of the stated size, and whatever they contain is an error with one line, or fits the objects that load it.

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
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from millpond.cpu import memory_bytes
from millpond.durable import sync_folder, write_file
from millpond.errors import MillpondError
from millpond.safe_read import (
    JSON_BYTES,
    UnreadableFileError,
    is_count,
    is_finite_number,
    parse_json_object,
    read_regular,
)

if TYPE_CHECKING:
    import torch

_ARRAY = "__numpy__"
WRITING, REPLACED, DELETING = ".writing-", ".replaced-", ".deleting-"
FORMAT = 1
WEIGHTS, STATE, VALUES, MANIFEST = "weights.safetensors", "state.pt", "values.json", "manifest.json"
DIGITS = 12  # of a checkpoint's name
MAX_UPDATES = 10**DIGITS
MAX_REASON = 600  # characters of an error of another library
SKIP = "do not use this checkpoint: move its folder away, and the one before it is used, if there is one"


class RunError(MillpondError):
    """A run folder is missing, exists already, or is in use."""

    one_line = True


class NothingToPlayError(RunError):
    """A run trains no agent, so there is none to evaluate or render."""


class ResumeError(MillpondError):
    """A run cannot be resumed as requested."""


class CheckpointError(MillpondError):
    """A checkpoint cannot be written or used."""

    one_line = True


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not as it was written: a file is missing, or its bytes differ."""


class UnsafeCheckpointError(CheckpointError):
    """A checkpoint holds a pickle that could run code when loaded."""


class DiskFullError(CheckpointError):
    """The disk has no space for a checkpoint."""

    exit_code = 1  # the input was valid: the machine failed


def tree_to_bytes(tree: Any, name: str = "state") -> bytes:
    """Serialise a tree; objects that would need pickle are refused by their place in `name`."""
    import torch

    buffer = io.BytesIO()
    torch.save(_encode(tree, name), buffer)
    return buffer.getvalue()


def tree_from_bytes(data: bytes, name: str) -> Any:
    """Deserialise a tree, with tensors on the CPU. `name` is the source of the bytes, for errors."""
    import torch

    try:
        _require_stored(data)
        return _decode(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        reason = str(error).strip().splitlines()[0]
        raise UnsafeCheckpointError(
            f"{name} is refused: it contains something other than plain values and tensors, and loading it could run "
            f"code. It was not written by Millpond ({reason})"
        ) from None
    except Exception as error:  # bytes of a stranger: torch may raise anything
        raise CheckpointError(f"{name} cannot be read: {one_line(error)}; {SKIP}") from error


def _require_stored(data: bytes) -> None:
    """Refuse archives that `tree_to_bytes` does not write: with compressed members, which may expand to any size."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("it has compressed members")
    if sum(member.file_size for member in members) > len(data):
        raise ValueError("its members overlap")


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
    import torch

    if isinstance(tree, torch.Tensor):
        if tree.layout != torch.strided or tree.nbytes > tree.untyped_storage().nbytes():
            raise ValueError(f"a tensor claims the shape {tuple(tree.shape)}, of which a part is stored")
        return tree
    if isinstance(tree, dict):
        if _ARRAY in tree:
            dtype, shape, scalar = tree[_ARRAY]
            _decode(tree["bytes"])
            array = np.frombuffer(tree["bytes"].numpy().tobytes(), dtype=np.dtype(dtype)).reshape(shape).copy()
            return array[()] if scalar else array
        return {key: _decode(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_decode(value) for value in tree)
    return tree


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint. `score` is its own; `best` has the updates and score of the best so far.

    `path` is the folder that it was read from.
    """

    updates: int
    weights: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    score: float | None = None
    best: tuple[int, float] | None = None
    path: Path | None = None


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
            shutil.rmtree(replaced, ignore_errors=True)  # left by a save that failed
            os.rename(folder, replaced)
        os.rename(temporary, folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if replaced.exists() and not folder.exists():
            os.rename(replaced, folder)
        raise _not_written(folder, sum(map(len, files.values())), error) from error
    if replaced.exists():
        with suppress(OSError):  # the new one is complete; `recover` removes the old one later
            delete_checkpoint(replaced)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint; raise `DamagedCheckpointError` with the reason if it is not as it was written.

    Files that are as they were written, but not by Millpond, raise `CheckpointError`.
    """
    manifest = read_manifest(folder)
    contents = {}
    for name, expected in manifest["files"].items():
        data = _read(folder / name, JSON_BYTES if name == VALUES else memory_bytes() or None)
        if len(data) != expected["bytes"]:
            raise DamagedCheckpointError(f"{folder / name} has {len(data):,} bytes, not {expected['bytes']:,}")
        if _sha256(data) != expected["sha256"]:
            raise DamagedCheckpointError(f"{folder / name} is not as it was written (sha256 differs)")
        contents[name] = data
    return Checkpoint(
        updates=manifest["updates"],
        weights=_weights_from_bytes(contents[WEIGHTS], folder / WEIGHTS),
        state=_state_from_bytes(contents[STATE], folder / STATE),
        values=_values_from_bytes(contents[VALUES], folder / VALUES),
        score=manifest["score"],
        best=tuple(manifest["best"]) if manifest["best"] else None,
        path=folder,
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest; verify its sha256 and every field of it."""
    path = folder / MANIFEST
    data = _read(path, JSON_BYTES)
    try:
        manifest = parse_json_object(data, path)
        body = {key: value for key, value in manifest.items() if key != "sha256"}
        whole = _seal(body) == data
    except (UnreadableFileError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise DamagedCheckpointError(f"{path} is not as it was written")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{folder} has format {manifest.get('format')}; this Millpond reads format {FORMAT}")
    wrong = _wrong_field(manifest)
    if wrong:
        raise CheckpointError(f"{path} was not written by Millpond: {wrong}; {SKIP}")
    return manifest


def _wrong_field(manifest: Mapping[str, Any]) -> str:
    """Return what is wrong in a manifest, or nothing. Names of other files are refused: they could be anywhere."""
    if not is_count(manifest.get("updates"), MAX_UPDATES):
        return f"updates={manifest.get('updates')!r} is not a count"
    score, best, files = manifest.get("score"), manifest.get("best"), manifest.get("files")
    if score is not None and not is_finite_number(score):
        return f"score={score!r} is not a number"
    if best is not None and not (
        isinstance(best, list) and len(best) == 2 and is_count(best[0], MAX_UPDATES) and is_finite_number(best[1])
    ):
        return f"best={best!r} is not a pair of updates and score"
    if not isinstance(files, dict) or set(files) != {WEIGHTS, STATE, VALUES}:
        named = list(files) if isinstance(files, dict) else files
        return f"it names the files {named!r}; a checkpoint has {WEIGHTS}, {STATE} and {VALUES}"
    for name, facts in files.items():
        if not isinstance(facts, dict) or not is_count(facts.get("bytes")) or not isinstance(facts.get("sha256"), str):
            return f"files.{name}={facts!r} is not a size and a sha256"
    return ""


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
    shutil.rmtree(deleted, ignore_errors=True)  # left by an earlier attempt that failed
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


def _read(path: Path, limit: int | None) -> bytes:
    try:
        return read_regular(path, limit)
    except UnreadableFileError as error:
        raise DamagedCheckpointError(str(error)) from error


def one_line(error: BaseException) -> str:
    """Return the message of an error of another library on one line, shortened."""
    text = " ".join(str(error).split())
    shown = text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]} ..."
    return (
        shown if isinstance(error, RuntimeError | ValueError) and shown else f"{type(error).__name__} {shown}".strip()
    )


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


def _weights_from_bytes(data: bytes, path: Path) -> dict[str, dict[str, torch.Tensor]]:
    from safetensors.torch import load

    try:
        tensors = load(data)
    except Exception as error:  # bytes of a stranger: the header may claim anything
        raise CheckpointError(f"{path} cannot be read: {one_line(error)}; {SKIP}") from error
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for flat_name, tensor in tensors.items():
        part, slash, name = flat_name.partition("/")
        if not slash:
            raise CheckpointError(f"{path} has a tensor {flat_name!r}, which is not named PART/NAME; {SKIP}")
        parts.setdefault(part, {})[name] = tensor
    return parts


def _state_from_bytes(data: bytes, path: Path) -> dict[str, Any]:
    state = tree_from_bytes(data, str(path))
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, not the state of each part by name; {SKIP}")
    return state


def _values_from_bytes(data: bytes, path: Path) -> dict[str, Any]:
    try:
        return parse_json_object(data, path, SKIP)
    except UnreadableFileError as error:
        raise CheckpointError(str(error)) from error

"""Serialisation of trees of plain values, arrays and tensors: the state in a checkpoint besides weights.

They are stored by `torch.save` and read with `weights_only=True`, which runs no code from the file. That reader does not
support NumPy, so arrays are stored as byte tensors with their dtype and shape.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from millpond.store.errors import CheckpointError, UnsafeCheckpointError

_ARRAY = "__numpy__"


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

"""Values that were recorded and not yet read.

A value may be a tensor on a device whose kernel has not run. Reading it would make the host wait, so such values are
kept as they are and read together, one transfer for each device and dtype, at the end of the innermost level's parent.
Plain numbers and tensors in the host's own memory are read when they are recorded.
"""

from __future__ import annotations

import math
from typing import Any

from millpond.loop.errors import LoopError
from millpond.loop.moments import Moments

# One call of `record`: name, value, weight, and the innermost index it was made at. Both numbers may be tensors.
Entry = tuple[str, Any, Any, int]


class BadValue(Exception):
    """Carries the first value that is not finite up to the loop, which knows its address."""

    def __init__(self, name: str, value: float, step: int) -> None:
        self.name, self.value, self.step = name, value, step
        super().__init__(f"{name} = {value}")


class Window:
    """Entries since the last reading."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def drop(self, step: int) -> None:
        """Forget what was recorded at a step that was not finished."""
        while self.entries and self.entries[-1][3] == step:
            self.entries.pop()

    def at(self, step: int) -> list[Entry]:
        """What was recorded at one step."""
        return [entry for entry in self.entries if entry[3] == step]

    def take(self) -> dict[str, Moments]:
        """Read everything, then forget it. Raises `BadValue`, and forgets nothing, if one cannot be averaged."""
        moments = gather(self.entries)
        self.entries = []
        return moments


def gather(entries: list[Entry]) -> dict[str, Moments]:
    """The moments of entries, by name."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for name, value, weight, step in _read(entries):
        if not -math.inf < value < math.inf:
            raise BadValue(name, value, step)
        if not 0.0 <= weight < math.inf:
            raise BadValue(f"the weight of {name}", weight, step)
        found = pairs.get(name)
        if found is None:
            found = pairs[name] = []
        found.append((value, weight))
    return {name: Moments.of(found) for name, found in pairs.items()}


def merge_into(target: dict[str, Moments], source: dict[str, Moments]) -> None:
    for name, moments in source.items():
        target.setdefault(name, Moments()).merge(moments)


def admit(name: str, value: Any) -> Any:
    """A float; of a tensor on a device a copy that stays there, since its owner may write to it in place."""
    if not getattr(value, "is_cpu", True):
        return _scalar(name, value).detach().clone()
    try:
        # A tensor that requires gradients warns when it is given to float(), and not when asked for its item().
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        if hasattr(value, "shape"):
            _scalar(name, value)
        raise LoopError(f"record({name!r}): {value!r} of type {type(value).__name__} is not a number") from None


def _scalar(name: str, value: Any) -> Any:
    if math.prod(value.shape) != 1:
        raise LoopError(
            f"record({name!r}): {type(value).__name__} of shape {tuple(value.shape)} is not one number; "
            f"record its mean with its number of elements as the weight"
        )
    return value


def _read(entries: list[Entry]) -> list[Entry]:
    """Entries with floats only, in the order of recording; at most one transfer for each device and dtype."""
    lazy = [part for entry in entries for part in entry[1:3] if type(part) is not float]
    if not lazy:
        return entries
    import torch  # a tensor was recorded, so it is loaded already

    groups: dict[tuple[Any, Any], list[Any]] = {}
    for tensor in lazy:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    floats: dict[int, float] = {}
    for tensors in groups.values():
        read = torch.stack([tensor if tensor.ndim == 0 else tensor.reshape(()) for tensor in tensors])
        floats.update(zip(map(id, tensors), read.cpu().double().tolist(), strict=True))

    def as_float(part: Any) -> float:
        return part if type(part) is float else floats[id(part)]

    return [(name, as_float(value), as_float(weight), step) for name, value, weight, step in entries]

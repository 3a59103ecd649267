"""Values that were recorded and not yet read.

A value may be a tensor on a device whose kernel has not run. Reading it would make the host wait, so values are kept as
they are and read together, one transfer for each device and dtype, at the end of the innermost level's parent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsFloat

from millpond.loop.errors import LoopError
from millpond.loop.moments import Moments


class Entry(NamedTuple):
    """One call of `record`: `step` is the innermost index it was made at."""

    name: str
    value: Any
    weight: Any
    step: int


class Reading(NamedTuple):
    """An entry as floats."""

    name: str
    value: float
    weight: float
    step: int


class BadValue(Exception):
    """Carries the first reading that is not finite up to the loop, which knows its address."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        super().__init__(f"{reading.name} = {reading.value}")


class Window:
    """Entries since the last reading."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, name: str, value: SupportsFloat, weight: SupportsFloat, step: int) -> bool:
        """Keep a value; false when it is plainly not finite, so that reading is due at once."""
        kept = value if type(value) is float else _admit(name, value)
        kept_weight = weight if type(weight) is float else _admit(name, weight)
        self.entries.append(Entry(name, kept, kept_weight, step))
        return type(kept) is not float or math.isfinite(kept)

    def drop(self, step: int) -> None:
        """Forget what was recorded at a step that was not finished."""
        while self.entries and self.entries[-1].step == step:
            self.entries.pop()

    def older_than(self, steps: int, step: int) -> bool:
        """Whether something was recorded `steps` or more before `step`."""
        return bool(self.entries) and step - self.entries[0].step >= steps

    def at(self, step: int) -> list[Entry]:
        """What was recorded at the newest step."""
        return [entry for entry in self.entries if entry.step == step]

    def take(self) -> dict[str, Moments]:
        """Read everything, then forget it. Raises `BadValue`, and forgets nothing, if one cannot be averaged."""
        moments = gather(self.entries)
        self.entries = []
        return moments


def gather(entries: list[Entry]) -> dict[str, Moments]:
    """The moments of entries, by name."""
    moments: dict[str, Moments] = {}
    for reading in _read(entries):
        name, value, weight, _ = reading
        if not math.isfinite(value):
            raise BadValue(reading)
        if not (math.isfinite(weight) and weight >= 0.0):
            raise BadValue(Reading(f"the weight of {name}", weight, 1.0, reading.step))
        found = moments.get(name)
        if found is None:
            found = moments[name] = Moments()
        found.add(value, weight)
    return moments


def merge_into(target: dict[str, Moments], source: dict[str, Moments]) -> None:
    for name, moments in source.items():
        target.setdefault(name, Moments()).merge(moments)


def _admit(name: str, value: Any) -> Any:
    """A float of a plain number; of a tensor a copy, still on its device, since its owner may write to it in place."""
    if hasattr(value, "detach"):
        if value.numel() != 1:
            raise LoopError(
                f"record({name!r}): a tensor of shape {tuple(value.shape)} is not one number; "
                f"record its mean with its number of elements as the weight"
            )
        return value.detach().clone()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise LoopError(f"record({name!r}): {value!r} of type {type(value).__name__} is not a number") from None


def _read(entries: list[Entry]) -> Iterable[Reading]:
    """Entries as floats, in the order of recording; at most one transfer for each device and dtype."""
    lazy = [part for entry in entries for part in (entry.value, entry.weight) if type(part) is not float]
    if not lazy:
        return map(Reading._make, entries)
    import torch  # a tensor was recorded, so it is loaded already

    groups: dict[tuple[Any, Any], list[Any]] = {}
    for tensor in lazy:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    floats: dict[int, float] = {}
    for tensors in groups.values():
        read = torch.stack([tensor.reshape(()) for tensor in tensors]).cpu().double().tolist()
        floats.update(zip(map(id, tensors), read, strict=True))

    def as_float(part: Any) -> float:
        return part if type(part) is float else floats[id(part)]

    return [Reading(name, as_float(value), as_float(weight), step) for name, value, weight, step in entries]

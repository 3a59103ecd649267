"""Recorded values that have not been read yet.

A value may be a tensor on a device whose kernel has not run. Reading it would synchronise with the device, so such values
are kept and read together, one transfer per device and dtype, at the end of the innermost level's parent. Plain numbers
and CPU tensors are read when they are recorded.
"""

from __future__ import annotations

import math
from math import inf
from typing import Any, SupportsFloat

from millpond.loop.levels import LoopError
from millpond.loop.moments import Moments


class BadValue(Exception):
    """The first value that is not finite, for the loop, which knows its address."""

    def __init__(self, name: str, value: float, step: int) -> None:
        self.name, self.value, self.step = name, value, step
        super().__init__(f"{name} = {value}")


class Column:
    """Values recorded under one name, with their weights and innermost indices."""

    __slots__ = ("steps", "values", "weights")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.weights: list[Any] = []
        self.steps: list[int] = []

    def drop_last(self) -> None:
        for part in (self.values, self.weights, self.steps):
            part.pop()


class Window:
    """Values recorded since the last reading, by name."""

    def __init__(self) -> None:
        self._columns: dict[str, Column] = {}
        self._unread = False  # True if there are tensors, or a number that cannot be averaged

    def add(self, name: str, value: SupportsFloat, weight: SupportsFloat, step: int) -> bool:
        """Add a value; return False if it cannot be averaged, so that reading, which raises, is due at once."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = Column()
        number = value if type(value) is float else _to_float(name, value)
        kind = type(weight)
        share = weight if kind is float else float(weight) if kind is int else _to_float(name, weight)
        column.values.append(number)
        column.weights.append(share)
        column.steps.append(step)
        if type(number) is float and type(share) is float:
            if -inf < number < inf and 0.0 <= share < inf:
                return True
            self._unread = True
            return False
        self._unread = True
        return True

    def drop(self, step: int) -> None:
        """Drop the values of a step that was not finished."""
        for column in self._columns.values():
            while column.steps and column.steps[-1] == step:
                column.drop_last()

    def at(self, step: int) -> Window:
        """Return the values of the newest step as a separate window."""
        newest = Window()
        newest._unread = self._unread
        for name, column in self._columns.items():
            for index in range(len(column.steps) - 1, -1, -1):
                if column.steps[index] != step:
                    break
                part = newest._columns.setdefault(name, Column())
                part.values.append(column.values[index])
                part.weights.append(column.weights[index])
                part.steps.append(step)
        return newest

    def take(self) -> dict[str, Moments]:
        """Read and remove everything. Raises `BadValue`, and removes nothing, if a value cannot be averaged."""
        if self._unread:
            _read(self._columns)
            _check(self._columns)
        moments = {
            name: Moments.of(column.values, column.weights) for name, column in self._columns.items() if column.values
        }
        self._columns, self._unread = {}, False
        return moments


def merge_into(target: dict[str, Moments], source: dict[str, Moments]) -> None:
    for name, moments in source.items():
        target.setdefault(name, Moments()).merge(moments)


def _to_float(name: str, value: Any) -> Any:
    """Return a float, or for a tensor on a device a copy there, since its owner may write to it in place."""
    if not getattr(value, "is_cpu", True):
        return _scalar(name, value).detach().clone()
    try:
        # float() of a tensor that requires gradients warns, item() does not.
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


def _read(columns: dict[str, Column]) -> None:
    """Replace tensors by floats, with one transfer per device and dtype."""
    groups: dict[tuple[Any, Any], list[tuple[list[Any], int]]] = {}
    for column in columns.values():
        for numbers in (column.values, column.weights):
            for index, number in enumerate(numbers):
                if type(number) is not float:
                    groups.setdefault((number.device, number.dtype), []).append((numbers, index))
    if not groups:
        return
    import torch  # a tensor was recorded, so torch is loaded already

    for places in groups.values():
        tensors = [numbers[index].reshape(()) for numbers, index in places]
        for (numbers, index), number in zip(places, torch.stack(tensors).cpu().double().tolist(), strict=True):
            numbers[index] = number


def _check(columns: dict[str, Column]) -> None:
    """Raise `BadValue` for the first value or weight that cannot be averaged."""
    bad: list[tuple[int, str, float]] = []
    for name, column in columns.items():
        for value, weight, step in zip(column.values, column.weights, column.steps, strict=True):
            if not -inf < value < inf:
                bad.append((step, name, value))
            elif not 0.0 <= weight < inf:
                bad.append((step, f"the weight of {name}", weight))
    if bad:
        step, name, value = min(bad, key=lambda item: item[0])
        raise BadValue(name, value, step)

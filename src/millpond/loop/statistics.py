"""Exact averages: weighted moments that merge without rounding, and a window of recorded values that are not read yet.

A value may be a tensor on a device whose kernel has not run. Reading it would synchronise with the device, so such values
are kept and read together, one transfer per device and dtype, at the end of the innermost level's parent. Plain numbers
and CPU tensors are read when they are recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import mul
from typing import Any, SupportsFloat

from millpond.loop.levels import LoopError
from millpond.safe_read import is_count

MAX_SHIFT = 1 << 14  # of saved moments; floats need 1,074, and a larger one would ask for any amount of memory


@dataclass(slots=True)
class Moments:
    """Exact count, sum, mean, standard deviation, minimum and maximum of weighted values.

        mean = sum_i w_i x_i / sum_i w_i        std = sqrt(sum_i w_i (x_i - mean)^2 / sum_i w_i)

    A float is an integer over a power of two, and so are products and sums of floats. The three sums are therefore
    kept as integers of any length, without rounding:

        sum w = weight / 2^weight_shift    sum w x = first / 2^(weight_shift + value_shift)    sum w x^2 = second / ...

    Addition of integers is associative, so it does not matter how values are grouped: a level's mean is the mean of
    everything below it, and an interrupted run has the moments of an uninterrupted one, bit for bit. The only rounding is
    the last one, to the nearest float. A value with weight 0 is not counted.
    """

    count: int = 0
    weight: int = 0
    first: int = 0
    second: int = 0
    weight_shift: int = 0
    value_shift: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add one finite value with a finite weight that is not negative."""
        if weight == 0.0:
            return
        value_top, value_bottom = value.as_integer_ratio()
        weight_top, weight_bottom = weight.as_integer_ratio()
        value_shift, weight_shift = value_bottom.bit_length() - 1, weight_bottom.bit_length() - 1
        if value_shift > self.value_shift or weight_shift > self.weight_shift:
            self._refine(max(weight_shift, self.weight_shift), max(value_shift, self.value_shift))
        value_top <<= self.value_shift - value_shift
        weight_top <<= self.weight_shift - weight_shift
        self.count += 1
        self.weight += weight_top
        weight_top *= value_top
        self.first += weight_top
        self.second += weight_top * value_top
        if value < self.minimum:
            self.minimum = value
        if value > self.maximum:
            self.maximum = value

    @staticmethod
    def of(values: Sequence[float], weights: Sequence[float]) -> Moments:
        """Return the moments of many values; equal to repeated `add`, and faster."""
        if 0.0 in weights:
            values = [value for value, weight in zip(values, weights, strict=True) if weight]
            weights = [weight for weight in weights if weight]
        if not values:
            return Moments()
        tops, value_shift = _integers(values)
        weight_tops, weight_shift = _integers(weights)
        weighted = list(map(mul, weight_tops, tops))
        return Moments(
            count=len(values),
            weight=sum(weight_tops),
            first=sum(weighted),
            second=sum(map(mul, weighted, tops)),
            weight_shift=weight_shift,
            value_shift=value_shift,
            minimum=min(values),
            maximum=max(values),
        )

    def merge(self, other: Moments) -> None:
        """Add all values of the other."""
        weight_shift = max(self.weight_shift, other.weight_shift)
        value_shift = max(self.value_shift, other.value_shift)
        self._refine(weight_shift, value_shift)
        by_weight, by_value = weight_shift - other.weight_shift, value_shift - other.value_shift
        self.count += other.count
        self.weight += other.weight << by_weight
        self.first += other.first << (by_weight + by_value)
        self.second += other.second << (by_weight + 2 * by_value)
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    @property
    def total_weight(self) -> float:
        return self.weight / (1 << self.weight_shift)

    @property
    def mean(self) -> float:
        """Weighted mean, rounded once; nan without values."""
        return self.first / (self.weight << self.value_shift) if self.weight else math.nan

    @property
    def std(self) -> float:
        """Weighted population standard deviation; nan without values."""
        if not self.weight:
            return math.nan
        return _root_of_ratio(self.weight * self.second - self.first**2, (self.weight << self.value_shift) ** 2)

    def _refine(self, weight_shift: int, value_shift: int) -> None:
        by_weight, by_value = weight_shift - self.weight_shift, value_shift - self.value_shift
        self.weight <<= by_weight
        self.first <<= by_weight + by_value
        self.second <<= by_weight + 2 * by_value
        self.weight_shift, self.value_shift = weight_shift, value_shift

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; long integers as hexadecimal text, because other JSON readers would round them."""
        return {
            "count": self.count,
            "sums": [hex(self.weight), hex(self.first), hex(self.second)],
            "shifts": [self.weight_shift, self.value_shift],
            "range": [self.minimum, self.maximum] if self.count else None,
        }

    @staticmethod
    def from_state(state: dict[str, Any]) -> Moments:
        weight, first, second = (int(text, 16) for text in state["sums"])
        minimum, maximum = state["range"] or (math.inf, -math.inf)
        weight_shift, value_shift = state["shifts"]
        counts = (state["count"], weight_shift, value_shift)
        if not all(is_count(count) for count in counts) or max(counts[1:]) > MAX_SHIFT:
            raise ValueError(
                f"count and shifts of a mean are {counts}; expected counts, and shifts up to {MAX_SHIFT:,}"
            )
        return Moments(state["count"], weight, first, second, weight_shift, value_shift, minimum, maximum)


def _integers(numbers: Sequence[float]) -> tuple[list[int], int]:
    """Return integers and a shift: each number is its integer / 2^shift."""
    if numbers.count(numbers[0]) == len(numbers):  # all equal, as weights mostly are
        top, bottom = numbers[0].as_integer_ratio()
        return [top] * len(numbers), bottom.bit_length() - 1
    ratios = [number.as_integer_ratio() for number in numbers]
    finest = max([bottom for _, bottom in ratios])
    return [top * (finest // bottom) for top, bottom in ratios], finest.bit_length() - 1


def _root_of_ratio(numerator: int, denominator: int) -> float:
    """Return sqrt(numerator / denominator), correct to about the last bit, without overflow."""
    # Scaled by 4^shift so that the integer root has at least 64 bits, more than the mantissa of a float.
    shift = max(0, 64 - (numerator.bit_length() - denominator.bit_length()) // 2)
    return math.isqrt((numerator << 2 * shift) // denominator) / (1 << shift)


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

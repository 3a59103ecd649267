"""A lake of plain Python lists, slow and obvious, as the reference for the real one.

Every observation has a number; the stored arrays are made from it, so that each can be identified.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from millpond.replay import Field, Schema, Steps

FRAME = Schema(
    (Field("observation", (16, 20), "uint8", "lz4"),), Field("action", (), "int32"), (Field("id", (), "int64"),)
)
VECTOR = Schema((Field("observation", (3,), "float64"),), Field("action", (2,), "float32"), (Field("id", (), "int64"),))
MIXED = Schema(
    (Field("left", (8, 40), "uint8", "lz4"), Field("speed", (3,), "float32"), Field("right", (300,), "int8", "lz4")),
    Field("action", (), "int32"),
    (Field("id", (), "int64"),),
)
SCHEMAS = {"frame": FRAME, "vector": VECTOR, "mixed": MIXED}


def digits(number: int) -> tuple[int, int, int]:
    """Return a number in base 100, so that one byte per element holds it."""
    assert number < 1_000_000
    return number // 10_000, number // 100 % 100, number % 100


def numbers_of(frames: np.ndarray[Any, Any]) -> list[int]:
    """Return the numbers of frames `[n, ...]`."""
    flat = frames.reshape(len(frames), -1)[:, :3].astype(np.int64)
    return (flat @ np.array([10_000, 100, 1])).tolist()


@cache
def array_of(number: int, spec: Field) -> np.ndarray[Any, Any]:
    """Return the array of a number: its digits in the first elements, then values that compress partly."""
    rng = np.random.default_rng([number, len(spec.name)])
    array = np.zeros(spec.shape, spec.dtype).reshape(-1)
    array[:] = rng.integers(0, 100, array.size) if number % 3 == 0 else number % 100
    array[:3] = digits(number)
    return array.reshape(spec.shape)


def observation(numbers: Any, schema: Schema) -> Any:
    """Return arrays of observations with these numbers; None is zeros."""
    numbers = np.asarray(numbers, dtype=object)
    fields = {}
    for spec in schema.observation:
        flat = [np.zeros(spec.shape, spec.dtype) if n is None else array_of(n, spec) for n in numbers.reshape(-1)]
        fields[spec.name] = np.array(flat, spec.dtype).reshape(*numbers.shape, *spec.shape)
    return fields["observation"] if schema.single else fields


@dataclass
class Step:
    number: int
    action: int
    reward: float
    terminated: bool
    truncated: bool
    final: int | None
    first: bool


@dataclass
class Expected:
    """A transition as the lake must return it."""

    stack: list[int | None]
    next_stack: list[int | None]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    discount: float
    steps: int


@dataclass
class NaiveLake:
    lanes: dict[tuple[str, int], list[Step]] = field(default_factory=dict)
    numbers: int = 0

    def generate(
        self, stream: str, lanes: int, count: int, rng: np.random.Generator, schema: Schema, *, fresh: bool, ends: float
    ) -> Steps:
        """Return random steps for an append, after storing them in this lake."""
        shape = (count, lanes)
        ended = rng.random(shape) < ends
        kind = rng.integers(0, 3, shape)  # terminated, truncated, terminated with its final observation
        terminated, truncated = ended & (kind != 1), ended & (kind == 1)
        has_final = ended & (kind >= 1)
        ids = self.numbers + np.arange(count * lanes).reshape(shape)
        final_ids = self.numbers + count * lanes + np.arange(int(has_final.sum()))
        self.numbers += count * lanes + len(final_ids)
        reward = rng.integers(-5, 6, shape).astype(np.float32)
        action = rng.integers(0, 9, shape)
        finals = dict(zip(zip(*np.nonzero(has_final), strict=True), final_ids.tolist(), strict=True))
        for t in range(count):
            for lane in range(lanes):
                mine = self.lanes.setdefault((stream, lane), [])
                first = not mine or mine[-1].terminated or mine[-1].truncated or (fresh and t == 0)
                flags = bool(terminated[t, lane]), bool(truncated[t, lane])
                final = finals.get((t, lane))
                mine.append(Step(int(ids[t, lane]), int(action[t, lane]), float(reward[t, lane]), *flags, final, first))
        width = schema.action.shape
        return Steps(
            observation(ids, schema),
            action.reshape(*shape, *(1 for _ in width)) * np.ones(width),
            reward,
            terminated,
            truncated,
            final_observation=observation(final_ids, schema),
            has_final=has_final,
            extra={"id": ids},
        )

    def transitions(self, *, stack: int, n_step: int, gamma: float, repeat: bool) -> dict[int, Expected]:
        """Return all valid transitions by the number of their first observation."""
        transitions = {}
        for steps in self.lanes.values():
            for i in range(len(steps)):
                expected = self._transition(steps, i, stack, n_step, gamma, repeat)
                if expected is not None:
                    transitions[steps[i].number] = expected
        return transitions

    @staticmethod
    def _stack(steps: list[Step], i: int, width: int, repeat: bool) -> list[int | None]:
        stack: list[int | None] = []
        while len(stack) < width:
            stack.insert(0, steps[i].number)
            if steps[i].first:
                padding = steps[i].number if repeat else None
                return [padding] * (width - len(stack)) + stack
            i -= 1
        return stack

    def _transition(
        self, steps: list[Step], i: int, stack: int, n_step: int, gamma: float, repeat: bool
    ) -> Expected | None:
        total, taken = 0.0, 0
        for k in range(n_step):
            step = steps[i + k]
            total += gamma**k * step.reward
            taken += 1
            if step.terminated or step.truncated:
                break
            if i + k + 1 >= len(steps) or steps[i + k + 1].first:
                return None
        last = steps[i + taken - 1]
        next_number = last.final if last.terminated or last.truncated else steps[i + taken].number
        next_stack = [*self._stack(steps, i + taken - 1, stack, repeat)[1:], next_number]
        if repeat and stack > 1 and self._stack(steps, i + taken - 1, stack - 1, True) != next_stack[:-1]:
            raise AssertionError("two ways to the same stack differ")
        discount = 0.0 if last.terminated else gamma**taken
        return Expected(
            self._stack(steps, i, stack, repeat), next_stack, steps[i].action, total,
            last.terminated, last.truncated and not last.terminated, discount, taken,
        )  # fmt: skip


def assert_transition(batch: Any, i: int, expected: Expected, schema: Schema, *, stacked: bool) -> None:
    """Compare one transition of a batch with the expected one, byte for byte."""
    for name, numbers in (("observation", expected.stack), ("next_observation", expected.next_stack)):
        expected_fields = observation(numbers, schema)
        fields = getattr(batch, name)
        for spec in schema.observation:
            array = expected_fields if schema.single else expected_fields[spec.name]
            sampled = np.asarray(fields if schema.single else fields[spec.name])[i]
            np.testing.assert_array_equal(sampled, array if stacked else array[-1], err_msg=f"{name} {spec.name}")
    assert np.all(np.asarray(batch.action[i]) == expected.action)
    assert float(batch.reward[i]) == np.float32(expected.reward)
    assert bool(batch.terminated[i]) is expected.terminated
    assert bool(batch.truncated[i]) is expected.truncated
    assert float(batch.discount[i]) == np.float32(expected.discount)
    assert int(batch.steps[i]) == expected.steps

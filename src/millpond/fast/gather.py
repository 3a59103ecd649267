"""Gathering rows as sequences on the CPU, with time first in memory: one compiled pass from where they are stored.

The plain version is `millpond.rollout.micro_batch.gather`.

R rows   T horizon   a agents of a row   b rows gathered   B = b * a sequences   n words, or bytes, of a row's step
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.compiled import compiled, inlined
from millpond.rollout.micro_batch import Advantages, MicroBatch
from millpond.rollout.rows import Rows

Array = npt.NDArray[Any]
WORD = 4  # bytes that are copied together, if steps are a multiple of it
STORED = ("terminated", "truncated", "alive", "log_prob", "value")


@inlined
def check_row(row: int, count: int) -> None:
    if not 0 <= row < count:
        raise IndexError("a picked row does not exist")


@compiled
def gather_time_first(stored: Array, rows: npt.NDArray[np.int64], out: Array) -> None:
    """stored [R, T, n], rows [b] -> out [T, b, n]"""
    steps, width = stored.shape[1], stored.shape[2]
    if out.shape != (steps, len(rows), width):
        raise ValueError("the output array has another shape than the picked rows")
    for place in range(len(rows)):
        row = rows[place]
        check_row(row, len(stored))
        for t in range(steps):
            for k in range(width):
                out[t, place, k] = stored[row, t, k]


class Targets(NamedTuple):
    """Arrays of sequences besides observations and actions, each [T, B]; see `MicroBatch`."""

    reset: npt.NDArray[np.bool_]
    log_prob: npt.NDArray[np.float32]
    value: npt.NDArray[np.float32]
    advantage: npt.NDArray[np.float32]
    target: npt.NDArray[np.float32]
    weight: npt.NDArray[np.float32]


class Stored(NamedTuple):
    """Arrays of rows that targets are computed from, each [R, T, a]; `scaled` is the advantage as trained on."""

    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    alive: npt.NDArray[np.bool_]
    log_prob: npt.NDArray[np.float32]
    value: npt.NDArray[np.float32]
    advantage: npt.NDArray[np.float32]
    scaled: npt.NDArray[np.float32]


@compiled
def gather_targets(
    rows: npt.NDArray[np.int64], weight: npt.NDArray[np.float32], resets: bool, stored: Stored, out: Targets
) -> None:
    """Gather the rows [b], which have importance weights [b]. `resets`: of the state, where an episode begins."""
    known, steps, agents = stored.advantage.shape  # the buffer may have more rows than have advantages
    for place in range(len(rows)):
        row = rows[place]
        check_row(row, known)
        for t in range(steps):
            for agent in range(agents):
                s, at = place * agents + agent, (row, t, agent)
                before = (row, t - 1, agent)
                out.reset[t, s] = resets and t > 0 and (stored.terminated[before] or stored.truncated[before])
                out.log_prob[t, s] = stored.log_prob[at]
                out.value[t, s] = stored.value[at]
                out.advantage[t, s] = stored.scaled[at]
                out.target[t, s] = stored.advantage[at] + stored.value[at]
                out.weight[t, s] = weight[place] if stored.alive[at] else np.float32(0.0)


@compiled
def gather_states(rows: npt.NDArray[np.int64], stored: Array, out: Array) -> None:
    """stored [R, a, S, H] -> out [S, b * a, H]"""
    agents, states = stored.shape[1], stored.shape[2]
    for place in range(len(rows)):
        row = rows[place]
        check_row(row, len(stored))
        for agent in range(agents):
            for s in range(states):
                out[s, place * agents + agent] = stored[row, agent, s]


def gather_fast(rows: Rows, advantages: Advantages, picked: Tensor, weight: npt.NDArray[np.float32]) -> MicroBatch:
    """Gather the rows `picked` [b] with importance weights [b]."""

    def empty(array: Tensor) -> Tensor:
        return torch.empty(rows.horizon, len(picked), *array.shape[2:], dtype=array.dtype).flatten(1, 2).transpose(0, 1)

    shape = rows.horizon, len(picked) * rows.agents_per_row
    reset = torch.empty(shape, dtype=torch.bool).t()
    micro_batch = MicroBatch(
        observation=empty(rows["observation"]),
        action=empty(rows["action"]),
        action_mask=empty(rows["action_mask"]) if "action_mask" in rows.fields else None,
        state=rows["initial_state"].index_select(0, picked).flatten(0, 1),
        reset=reset,
        log_prob=torch.empty(shape).t(),
        value=torch.empty(shape).t(),
        advantage=torch.empty(shape).t(),
        target=torch.empty(shape).t(),
        weight=torch.empty(shape).t(),
    )
    refill(micro_batch, rows, advantages, picked, weight)
    return micro_batch


def refill(
    micro_batch: MicroBatch, rows: Rows, advantages: Advantages, picked: Tensor, weight: npt.NDArray[np.float32]
) -> None:
    """Gather other rows, as many, into the same memory: all fields but `state`."""
    chosen = picked.numpy()
    for name in ("observation", "action", "action_mask"):
        array = getattr(micro_batch, name)
        if array is not None:
            by_row = array.transpose(0, 1).numpy().reshape(rows.horizon, len(chosen), -1)
            gather_time_first(_words(rows[name].numpy()), chosen, _words(by_row))
    stored = *(rows[name] for name in STORED), advantages.raw, advantages.scaled
    targets = (
        micro_batch.reset,
        micro_batch.log_prob,
        micro_batch.value,
        micro_batch.advantage,
        micro_batch.target,
        micro_batch.weight,
    )
    out = Targets(*(array.t().numpy() for array in targets))
    gather_targets(chosen, weight, rows.resets_state, Stored(*(array.numpy() for array in stored)), out)


def _words(array: Array) -> Array:
    """[R, T, ...] -> [R, T, n], the same memory as words whatever its type."""
    flat = array.reshape(*array.shape[:2], -1)
    step_bytes = flat.shape[2] * flat.itemsize
    return flat.view(np.uint8 if step_bytes % WORD else np.uint32)

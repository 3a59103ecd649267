"""Rows picked as sequences, with time first in memory: one pass from where they are stored.

R rows   T horizon   a agents of a row   b rows that are picked   n numbers, or bytes, of a row's step
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.compiled import compiled, inlined

Array = npt.NDArray[Any]
WORD = 4  # bytes that are copied together, where steps are a multiple of it


@inlined
def check_row(row: int, count: int) -> None:
    if not 0 <= row < count:
        raise IndexError("a row was picked that there is not")


@compiled
def copy_time_first(stored: Array, rows: npt.NDArray[np.int64], out: Array) -> None:
    """stored [R, T, n], rows [b] -> out [T, b, n]"""
    steps, width = stored.shape[1], stored.shape[2]
    if out.shape != (steps, len(rows), width):
        raise ValueError("these rows do not fit there")
    for place in range(len(rows)):
        row = rows[place]
        check_row(row, len(stored))
        for t in range(steps):
            for k in range(width):
                out[t, place, k] = stored[row, t, k]


class Learned(NamedTuple):
    """What sequences learn from besides what was seen and done, each [T, b * a]; `weight` 0 where nobody was alive."""

    reset: npt.NDArray[np.bool_]
    log_prob: npt.NDArray[np.float32]
    value: npt.NDArray[np.float32]
    advantage: npt.NDArray[np.float32]
    target: npt.NDArray[np.float32]
    weight: npt.NDArray[np.float32]


class Stored(NamedTuple):
    """What rows hold of it, each [R, T, a]; `scaled` is the advantage as it is trained on."""

    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    alive: npt.NDArray[np.bool_]
    log_prob: npt.NDArray[np.float32]
    value: npt.NDArray[np.float32]
    advantage: npt.NDArray[np.float32]
    scaled: npt.NDArray[np.float32]


@compiled
def pick_learned(rows: npt.NDArray[np.int64], weight: npt.NDArray[np.float32], stored: Stored, out: Learned) -> None:
    """Of the rows [b], which have importance weights [b]."""
    known, steps, agents = stored.advantage.shape  # there may be more rows than have advantages
    for place in range(len(rows)):
        row = rows[place]
        check_row(row, known)
        for t in range(steps):
            for agent in range(agents):
                s, at = place * agents + agent, (row, t, agent)
                before = (row, t - 1, agent)
                out.reset[t, s] = t > 0 and (stored.terminated[before] or stored.truncated[before])
                out.log_prob[t, s] = stored.log_prob[at]
                out.value[t, s] = stored.value[at]
                out.advantage[t, s] = stored.scaled[at]
                out.target[t, s] = stored.advantage[at] + stored.value[at]
                out.weight[t, s] = weight[place] if stored.alive[at] else np.float32(0.0)


@compiled
def pick_states(rows: npt.NDArray[np.int64], stored: Array, hidden: Array, cell: Array) -> None:
    """stored [R, a, 2, H] -> hidden and cell, each [b * a, H]"""
    agents = stored.shape[1]
    for place in range(len(rows)):
        row = rows[place]
        check_row(row, len(stored))
        for agent in range(agents):
            hidden[place * agents + agent] = stored[row, agent, 0]
            cell[place * agents + agent] = stored[row, agent, 1]


def pick_sequences(array: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """[R, T, a, ...] and rows [b] -> [b * a, T, ...] on `device`, with time first in memory."""
    if array.device.type == device.type == "cpu":
        out = torch.empty(array.shape[1], len(rows), *array.shape[2:], dtype=array.dtype)
        copy_time_first(words(array.numpy()), rows.numpy(), words(out.numpy()))
    else:
        out = array.index_select(0, rows).to(device).transpose(0, 1).contiguous()
    return out.flatten(1, 2).transpose(0, 1)


def words(array: Array) -> Array:
    """[R, T, ...] -> [R, T, n], the same memory whatever its type."""
    flat = array.reshape(*array.shape[:2], -1)
    step_bytes = flat.shape[2] * flat.itemsize
    return flat.view(np.uint8 if step_bytes % WORD else np.uint32)

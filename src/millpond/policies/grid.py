"""Cells of a few kinds, read by table: what a linear layer would make of one-hot cells, without the one-hots.

    features = sum over cells c of table[c, kind of c]

Kind 0, the empty cell, adds nothing (its share is in the bias of the encoder), so that only what stands on the grid
costs anything. N observations  C cells  K kinds beside empty  H hidden
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.compiled import compiled_fast
from millpond.envs.spec import Part
from millpond.policies.errors import PolicyError
from millpond.policies.precision import is_fused_for, is_fused_now
from millpond.policies.threads import in_threads

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
ZERO = np.float32(0.0)
BLOCK = 128  # observations whose gradients stay in the second-level cache
LEAST = 512  # observations for which another thread is worth waking


@compiled_fast
def sum_rows(cells: Bytes, table: Floats, out: Floats, start: int, stop: int) -> int:
    """cells [N, C], table [C, K, H] -> out[start:stop] of [N, H]. Returns the largest kind that it saw."""
    kinds, size = table.shape[1], table.shape[2]
    rows = table.reshape(-1, size)
    found = np.empty(cells.shape[1] + 3, np.int64)  # rows of the table that an observation needs
    most = 0
    for n in range(start, stop):
        count = 0
        for cell in range(cells.shape[1]):
            kind = int(cells[n, cell])
            most = max(most, kind)
            found[count] = cell * kinds + min(kind, kinds) - 1
            count += kind != 0
        total = out[n]
        total[:] = ZERO
        whole = count - count % 4
        for k in range(0, whole, 4):  # four at a time, so that `total` is loaded and stored a quarter as often
            a, b, c, d = rows[found[k]], rows[found[k + 1]], rows[found[k + 2]], rows[found[k + 3]]
            for h in range(size):
                total[h] += (a[h] + b[h]) + (c[h] + d[h])
        for k in range(whole, count):
            a = rows[found[k]]
            for h in range(size):
                total[h] += a[h]
    return most


@compiled_fast
def spread_rows(cells: Bytes, d_out: Floats, d_table: Floats, start: int, stop: int) -> None:
    """The way back: d_table[start:stop] of [C, K, H] gets d_out [N, H] added wherever a row was read.

    Cell after cell over a block of observations, so that the few rows of a cell stay in the nearest cache.
    """
    kinds, size = d_table.shape[1], d_table.shape[2]
    who = np.empty((kinds + 1, BLOCK), np.int64)  # observations by the kind that a cell has in them
    count = np.zeros(kinds + 1, np.int64)
    for first in range(0, cells.shape[0], BLOCK):
        for cell in range(start, stop):
            count[:] = 0
            for n in range(first, min(first + BLOCK, cells.shape[0])):
                kind = int(cells[n, cell])
                who[kind, count[kind]] = n
                count[kind] += 1
            for kind in range(1, kinds + 1):
                row, which = d_table[cell, kind - 1], who[kind]
                whole = count[kind] - count[kind] % 4
                for k in range(0, whole, 4):
                    a, b, c, d = d_out[which[k]], d_out[which[k + 1]], d_out[which[k + 2]], d_out[which[k + 3]]
                    for h in range(size):
                        row[h] += (a[h] + b[h]) + (c[h] + d[h])
                for k in range(whole, count[kind]):
                    a = d_out[which[k]]
                    for h in range(size):
                        row[h] += a[h]


def check_kinds(most: int, kinds: int) -> None:
    if most > kinds:
        raise PolicyError(
            f"a grid cell has code {most}, but the policy was built for codes 0..{kinds}; "
            f"build it with cell_kinds={most + 1} or more, or let the environment give the largest code with the part"
        )


def grid_sum_plain(cells: Tensor, table: Tensor) -> Tensor:
    """cells [N, C], table [C, K, H] -> [N, H], on any device."""
    padded = F.pad(table, (0, 0, 1, 0))  # the row of the empty cell, which is zero
    first = torch.arange(0, padded.shape[0] * padded.shape[1], padded.shape[1], device=cells.device)
    return F.embedding_bag(cells.long() + first, padded.flatten(0, 1), mode="sum")


def _summed(cells: Tensor, table: Tensor) -> Tensor:
    out = table.new_empty(cells.shape[0], table.shape[2])
    arrays = cells.numpy(), table.detach().numpy(), out.numpy()
    most = in_threads(lambda start, stop: sum_rows(*arrays, start, stop), cells.shape[0], LEAST)
    check_kinds(max(most), table.shape[1])
    return out


@torch.library.custom_op("millpond::grid_sum", mutates_args=())
def grid_sum(cells: Tensor, table: Tensor) -> Tensor:
    """The same on the CPU in float32, in one pass."""
    return _summed(cells, table)


@grid_sum.register_fake
def _(cells: Tensor, table: Tensor) -> Tensor:
    return table.new_empty(cells.shape[0], table.shape[2])


@torch.library.custom_op("millpond::grid_sum_backward", mutates_args=())
def grid_sum_backward(d_out: Tensor, cells: Tensor, cell_count: int, kinds: int) -> Tensor:
    d_table = d_out.new_zeros(cell_count, kinds, d_out.shape[1])
    arrays = cells.numpy(), d_out.contiguous().numpy(), d_table.numpy()
    least = cell_count if cells.shape[0] < LEAST else 1
    in_threads(lambda start, stop: spread_rows(*arrays, start, stop), cell_count, least)
    return d_table


@grid_sum_backward.register_fake
def _(d_out: Tensor, cells: Tensor, cell_count: int, kinds: int) -> Tensor:
    return d_out.new_empty(cell_count, kinds, d_out.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    cells, table = inputs
    ctx.save_for_backward(cells)
    ctx.size = table.shape[:2]


def _backward(ctx: Any, d_out: Tensor) -> tuple[None, Tensor]:
    return None, grid_sum_backward(d_out, *ctx.saved_tensors, *ctx.size)


grid_sum.register_autograd(_backward, setup_context=_save)


class GridEncoder(nn.Module):
    """Codes of cells [N, height, width] -> [N, H]."""

    def __init__(self, part: Part, hidden_size: int, cell_kinds: int) -> None:
        super().__init__()
        if part.dtype != "uint8":
            raise PolicyError(f"observation part {part.name!r} is a grid of {part.dtype}; cells must be uint8 codes")
        high = part.high
        kinds = cell_kinds if high is None else int(high) + 1
        if not 2 <= kinds <= 256:
            raise PolicyError(f"observation part {part.name!r}: {kinds} kinds of cells; there must be 2 to 256")
        self.table = nn.Parameter(torch.empty(prod(part.shape), kinds - 1, hidden_size))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Orthogonal as a linear layer over one-hot cells would be, as wide as there are cells set at a time."""
        cells, kinds, hidden = self.table.shape
        flat = torch.empty(hidden, cells * kinds)
        nn.init.orthogonal_(flat, 2**0.5 * kinds**0.5, generator=generator)
        with torch.no_grad():
            self.table.copy_(flat.t().reshape(cells, kinds, hidden))

    def forward(self, cells: Tensor) -> Tensor:
        flat = cells.flatten(1)
        if is_fused_now(self.table):
            return _summed(flat.contiguous(), self.table)
        if is_fused_for(self.table):
            summed: Tensor = grid_sum(flat.contiguous(), self.table)
            return summed
        message = f"a grid cell's code is beyond {self.table.shape[1]}, the largest the policy was built for"
        torch._assert_async((flat <= self.table.shape[1]).all(), message)
        return grid_sum_plain(flat, self.table)

"""Table lookups of the grid and token encoders on the CPU in float32, forward and backward, each in one compiled pass.

The plain versions are `millpond.policies.encoders.grid.grid_sum` and `millpond.policies.encoders.tokens.token_sum`.

N observations  C cells  K kinds of cells except empty  M tokens  F features  H hidden
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast, inlined
from millpond.envs.spec import TOKEN_PADDING
from millpond.fast.limits import MIN_LOOKUPS_PER_THREAD
from millpond.fast.simd import WIDTH, add_eight, load_eight, multiply_add_eight, multiply_eight, store_eight
from millpond.policies.encoders.grid import GridEncoder, check_kinds
from millpond.policies.encoders.tokens import TokenEncoder, check_features
from millpond.threads import in_threads

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
ZERO = np.float32(0.0)
GRID_BLOCK = 128  # observations whose gradients stay in the second-level cache
PADDED = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # eight bytes of padding
MIN_COLUMNS_PER_THREAD = 32


@compiled_fast
def sum_cells(cells: Bytes, table: Floats, out: Floats, start: int, stop: int) -> int:
    """cells [N, C], table [C, K, H] -> out[start:stop] of [N, H]. Returns the largest kind."""
    kinds, size = table.shape[1], table.shape[2]
    rows = table.reshape(-1, size)
    read = np.empty(cells.shape[1] + 3, np.int64)  # rows of the table that an observation needs
    largest = 0
    for n in range(start, stop):
        count = 0
        for cell in range(cells.shape[1]):
            kind = int(cells[n, cell])
            largest = max(largest, kind)
            read[count] = cell * kinds + min(kind, kinds) - 1
            count += kind != 0
        total = out[n]
        total[:] = ZERO
        whole = count - count % 4
        for k in range(0, whole, 4):  # four at a time, so that `total` is loaded and stored a quarter as often
            a, b, c, d = rows[read[k]], rows[read[k + 1]], rows[read[k + 2]], rows[read[k + 3]]
            for h in range(size):
                total[h] += (a[h] + b[h]) + (c[h] + d[h])
        for k in range(whole, count):
            a = rows[read[k]]
            for h in range(size):
                total[h] += a[h]
    return largest


@compiled_fast
def sum_cells_backward(cells: Bytes, d_out: Floats, d_table: Floats, start: int, stop: int) -> None:
    """Backward pass: add d_out [N, H] to the rows of d_table[start:stop] of [C, K, H] that were read.

    One cell after the other over a block of observations, so that the few rows of a cell stay in the nearest cache.
    """
    kinds, size = d_table.shape[1], d_table.shape[2]
    readers = np.empty((kinds + 1, GRID_BLOCK), np.int64)  # observations by the kind that the cell has in them
    count = np.zeros(kinds + 1, np.int64)
    for first in range(0, cells.shape[0], GRID_BLOCK):
        for cell in range(start, stop):
            count[:] = 0
            for n in range(first, min(first + GRID_BLOCK, cells.shape[0])):
                kind = int(cells[n, cell])
                readers[kind, count[kind]] = n
                count[kind] += 1
            for kind in range(1, kinds + 1):
                row, which = d_table[cell, kind - 1], readers[kind]
                whole = count[kind] - count[kind] % 4
                for k in range(0, whole, 4):
                    a, b, c, d = d_out[which[k]], d_out[which[k + 1]], d_out[which[k + 2]], d_out[which[k + 3]]
                    for h in range(size):
                        row[h] += (a[h] + b[h]) + (c[h] + d[h])
                for k in range(whole, count[kind]):
                    a = d_out[which[k]]
                    for h in range(size):
                        row[h] += a[h]


@inlined
def in_words(tokens: Bytes) -> npt.NDArray[np.uint64]:
    """Return the bytes of tokens [N, M, 3] as words of eight; a remainder is left out."""
    return tokens.reshape(tokens.size)[: tokens.size // 8 * 8].view(np.uint64)


@inlined
def real_tokens(tokens: Bytes, words: npt.NDArray[np.uint64], n: int, real: npt.NDArray[np.int64]) -> int:
    """Write the indices of the real tokens of tokens[n] [M, 3] to `real` [M + 1], return their number; without branches.

    Observations mostly end in padding; it is skipped word by word.
    """
    last = tokens.shape[1]
    if last % 8 == 0:  # otherwise observations do not start at whole words
        first, word = n * last * 3 // 8, (n + 1) * last * 3 // 8
        while word > first and words[word - 1] == PADDED:
            word -= 1
        last = ((word - first) * 8 + 2) // 3
    count = 0
    for m in range(last):
        real[count] = m
        count += tokens[n, m, 0] != TOKEN_PADDING
    return count


@compiled_fast
def sum_tokens(tokens: Bytes, where: Floats, low: Floats, high: Floats, out: Floats, start: int, stop: int) -> int:
    """tokens [N, M, 3], where [256, H], low and high [F * 16, H] -> out[start:stop] of [N, H].

    Returns the largest feature; those beyond the tables are skipped.
    """
    size, features, largest = where.shape[1], low.shape[0] // 16, 0
    whole = size // WIDTH * WIDTH
    real, words = np.empty(tokens.shape[1] + 1, np.int64), in_words(tokens)
    for n in range(start, stop):
        total = out[n]
        total[:] = ZERO
        for k in range(real_tokens(tokens, words, n, real)):
            place, feature, value = tokens[n, real[k]]
            largest = max(largest, feature)
            if feature >= features:
                continue
            at_low, at_high = feature * 16 + (value & 15), feature * 16 + (value >> 4)
            p, a, b = place * size, at_low * size, at_high * size
            for h in range(0, whole, WIDTH):
                both = add_eight(load_eight(low, a + h), load_eight(high, b + h))
                store_eight(multiply_add_eight(load_eight(where, p + h), both, load_eight(total, h)), total, h)
            for h in range(whole, size):
                total[h] += where[place, h] * (low[at_low, h] + high[at_high, h])
    return largest


@compiled_fast
def sum_tokens_backward(
    tokens: Bytes,
    where: Floats,
    low: Floats,
    high: Floats,
    d_out: Floats,
    d_where: Floats,
    d_low: Floats,
    d_high: Floats,
    start: int,
    stop: int,
) -> None:
    """Backward pass, for columns start..stop-1 of the three tables."""
    size = where.shape[1]
    whole = start + (stop - start) // WIDTH * WIDTH
    real, words = np.empty(tokens.shape[1] + 1, np.int64), in_words(tokens)
    for n in range(tokens.shape[0]):
        for k in range(real_tokens(tokens, words, n, real)):
            place, feature, value = tokens[n, real[k]]
            at_low, at_high = feature * 16 + (value & 15), feature * 16 + (value >> 4)
            p, a, b = place * size, at_low * size, at_high * size
            for h in range(start, whole, WIDTH):
                above = load_eight(d_out, n * size + h)
                both = add_eight(load_eight(low, a + h), load_eight(high, b + h))
                share = multiply_eight(above, load_eight(where, p + h))
                store_eight(multiply_add_eight(above, both, load_eight(d_where, p + h)), d_where, p + h)
                store_eight(add_eight(load_eight(d_low, a + h), share), d_low, a + h)
                store_eight(add_eight(load_eight(d_high, b + h), share), d_high, b + h)
            for h in range(whole, stop):
                d_where[place, h] += d_out[n, h] * (low[at_low, h] + high[at_high, h])
                d_low[at_low, h] += d_out[n, h] * where[place, h]
                d_high[at_high, h] += d_out[n, h] * where[place, h]


class SumCells(torch.autograd.Function):
    """cells [N, C], table [C, K, H] -> [N, H]."""

    @staticmethod
    def forward(ctx: Any, cells: Tensor, table: Tensor) -> Tensor:
        out = table.new_empty(cells.shape[0], table.shape[2])
        arrays = cells.numpy(), table.detach().numpy(), out.numpy()
        largest = in_threads(
            lambda start, stop: sum_cells(*arrays, start, stop), cells.shape[0], MIN_LOOKUPS_PER_THREAD
        )
        check_kinds(max(largest), table.shape[1])
        ctx.cells, ctx.table_shape = cells, table.shape
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[None, Tensor]:
        d_table = d_out.new_zeros(ctx.table_shape)
        arrays = ctx.cells.numpy(), d_out.contiguous().numpy(), d_table.numpy()
        count = ctx.table_shape[0]
        min_cells = count if len(ctx.cells) < MIN_LOOKUPS_PER_THREAD else 1
        in_threads(lambda start, stop: sum_cells_backward(*arrays, start, stop), count, min_cells)
        return None, d_table


class SumTokens(torch.autograd.Function):
    """tokens [N, M, 3], where [256, H], low and high [F * 16, H] -> [N, H]."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, *tables: Tensor) -> Tensor:
        where, low, _ = tables
        out = where.new_empty(tokens.shape[0], where.shape[1])
        arrays: tuple[Any, ...] = (tokens.numpy(), *(table.detach().numpy() for table in tables), out.numpy())

        def share(start: int, stop: int) -> int:
            return sum_tokens(*arrays, start, stop)  # type: ignore[call-arg]

        largest = in_threads(share, tokens.shape[0], MIN_LOOKUPS_PER_THREAD)
        check_features(max(largest), low.shape[0] // 16 - 1)
        ctx.tokens = tokens
        ctx.save_for_backward(*tables)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        tables = ctx.saved_tensors
        gradients = [torch.zeros_like(table) for table in tables]
        tensors = ctx.tokens, *tables, d_out.contiguous(), *gradients
        arrays: Any = [tensor.detach().numpy() for tensor in tensors]
        columns = tables[0].shape[1]
        min_columns = columns if len(ctx.tokens) < MIN_LOOKUPS_PER_THREAD else MIN_COLUMNS_PER_THREAD

        def share(start: int, stop: int) -> None:
            sum_tokens_backward(*arrays, start, stop)  # type: ignore[call-arg]

        in_threads(share, columns, min_columns)
        return None, *gradients


class FastGrid(nn.Module):
    """A plain GridEncoder's table, looked up by the compiled code above."""

    def __init__(self, plain: GridEncoder) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, cells: Tensor) -> Tensor:
        return SumCells.apply(cells.flatten(1).contiguous(), self.plain.table)  # type: ignore[no-any-return, no-untyped-call]


class FastTokens(nn.Module):
    """A plain TokenEncoder's tables, looked up by the compiled code above."""

    def __init__(self, plain: TokenEncoder) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, tokens: Tensor) -> Tensor:
        plain = self.plain
        summed = SumTokens.apply(tokens.contiguous(), plain.where, plain.low, plain.high)  # type: ignore[no-untyped-call]
        features: Tensor = plain.linear(summed)
        return features

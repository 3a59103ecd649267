"""Sums of table rows; the definitions are in `millpond.policies.encoders.device_sums`.

A program reads the tokens or cells of one observation, some at a time, and adds a block of the H numbers of their rows.

N observations  M tokens  C cells  K kinds except empty  H hidden
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TOGETHER = 16  # tokens or cells
WIDTH = 128  # of H, per program
PADDING = 0xFF  # place of a token that is none


def _block(size: int) -> int:
    return min(WIDTH, int(triton.next_power_of_2(size)))


def _programs(observations: int, size: int) -> tuple[int, int]:
    return observations, triton.cdiv(size, _block(size))


@triton.jit
def _grid_forward(
    cells, table, fine, out, places, kinds, H: tl.constexpr, WIDTH: tl.constexpr, TOGETHER: tl.constexpr
):  # fmt: skip
    n, h = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), out.dtype.element_ty)
    for first in range(0, places, TOGETHER):
        c = first + tl.arange(0, TOGETHER)
        code = tl.load(cells + n * places + c, mask=c < places, other=0).to(tl.int32)
        tl.store(fine + 0 * c, 0 * c, mask=code > kinds)
        rows = (c * kinds + code - 1)[:, None] * H + h[None, :]
        total += tl.sum(
            tl.load(table + rows, mask=((code > 0) & (code <= kinds))[:, None] & (h < H)[None, :], other=0.0), 0
        )
    tl.store(out + n * H + h, total, mask=h < H)


def grid_forward(cells: Tensor, table: Tensor, fine: Tensor, out: Tensor) -> None:
    places, kinds, size = table.shape
    _grid_forward[_programs(len(cells), size)](
        cells, table, fine, out, places, kinds, H=size, WIDTH=_block(size), TOGETHER=TOGETHER
    )


@triton.jit
def _grid_backward(
    d_sum, cells, d_table, places, kinds, H: tl.constexpr, WIDTH: tl.constexpr, TOGETHER: tl.constexpr
):  # fmt: skip
    n, h = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    share = tl.load(d_sum + n * H + h, mask=h < H, other=0.0)
    for first in range(0, places, TOGETHER):
        c = first + tl.arange(0, TOGETHER)
        code = tl.load(cells + n * places + c, mask=c < places, other=0).to(tl.int32)
        rows = (c * kinds + code - 1)[:, None] * H + h[None, :]
        used = ((code > 0) & (code <= kinds))[:, None] & (h < H)[None, :]
        tl.atomic_add(d_table + rows, tl.broadcast_to(share[None, :], (TOGETHER, WIDTH)), mask=used)


def grid_backward(d_sum: Tensor, cells: Tensor, d_table: Tensor) -> None:
    places, kinds, size = d_table.shape
    _grid_backward[_programs(len(cells), size)](
        d_sum, cells, d_table, places, kinds, H=size, WIDTH=_block(size), TOGETHER=TOGETHER
    )


@triton.jit
def _token_forward(
    tokens, where, low, high, fine, out, count, rows, PADDING: tl.constexpr,
    H: tl.constexpr, WIDTH: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    n, h = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), out.dtype.element_ty)
    for first in range(0, count, TOGETHER):
        m = first + tl.arange(0, TOGETHER)
        token = tokens + (n * count + m) * 3
        place = tl.load(token, mask=m < count, other=PADDING).to(tl.int32)
        real = place != PADDING
        feature = tl.load(token + 1, mask=real, other=0).to(tl.int32) * 16
        value = tl.load(token + 2, mask=real, other=0).to(tl.int32)
        tl.store(fine + 0 * m, 0 * m, mask=feature >= rows)
        used = (real & (feature < rows))[:, None] & (h < H)[None, :]
        at = tl.load(where + place[:, None] * H + h[None, :], mask=used, other=0.0)
        of_low = tl.load(low + (feature + value % 16)[:, None] * H + h[None, :], mask=used, other=0.0)
        of_high = tl.load(high + (feature + value // 16)[:, None] * H + h[None, :], mask=used, other=0.0)
        total += tl.sum(at * (of_low + of_high), 0)
    tl.store(out + n * H + h, total, mask=h < H)


def token_forward(tokens: Tensor, where: Tensor, low: Tensor, high: Tensor, fine: Tensor, out: Tensor) -> None:
    size = where.shape[1]
    _token_forward[_programs(len(tokens), size)](
        tokens, where, low, high, fine, out, tokens.shape[1], len(low),
        PADDING=PADDING, H=size, WIDTH=_block(size), TOGETHER=TOGETHER,
    )  # fmt: skip


@triton.jit
def _token_backward(
    d_sum, tokens, where, low, high, d_where, d_low, d_high, count, rows, PADDING: tl.constexpr,
    H: tl.constexpr, WIDTH: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    n, h = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    share = tl.load(d_sum + n * H + h, mask=h < H, other=0.0)[None, :]
    for first in range(0, count, TOGETHER):
        m = first + tl.arange(0, TOGETHER)
        token = tokens + (n * count + m) * 3
        place = tl.load(token, mask=m < count, other=PADDING).to(tl.int32)
        real = place != PADDING
        feature = tl.load(token + 1, mask=real, other=0).to(tl.int32) * 16
        value = tl.load(token + 2, mask=real, other=0).to(tl.int32)
        used = (real & (feature < rows))[:, None] & (h < H)[None, :]
        row = place[:, None] * H + h[None, :]
        row_low = (feature + value % 16)[:, None] * H + h[None, :]
        row_high = (feature + value // 16)[:, None] * H + h[None, :]
        at = tl.load(where + row, mask=used, other=0.0)
        of_value = tl.load(low + row_low, mask=used, other=0.0) + tl.load(high + row_high, mask=used, other=0.0)
        tl.atomic_add(d_where + row, share * of_value, mask=used)
        tl.atomic_add(d_low + row_low, share * at, mask=used)
        tl.atomic_add(d_high + row_high, share * at, mask=used)


def token_backward(
    d_sum: Tensor,
    tokens: Tensor,
    where: Tensor,
    low: Tensor,
    high: Tensor,
    d_where: Tensor,
    d_low: Tensor,
    d_high: Tensor,
) -> None:
    size = where.shape[1]
    _token_backward[_programs(len(tokens), size)](
        d_sum, tokens, where, low, high, d_where, d_low, d_high, tokens.shape[1], len(low),
        PADDING=PADDING, H=size, WIDTH=_block(size), TOGETHER=TOGETHER,
    )  # fmt: skip

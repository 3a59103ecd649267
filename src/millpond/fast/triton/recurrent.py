"""Gates and scans of recurrent cores; the definitions are in `millpond.policies.device_cores`.

T steps  B sequences  H hidden  n = B * H
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256  # numbers per program


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def _positive(x):
    return tl.where(x >= 0, x + 0.5, _sigmoid(x))


def _grid(count: int) -> tuple[int]:
    return (triton.cdiv(count, BLOCK),)


def _flag(reset: Tensor | None, instead: Tensor) -> Tensor:
    """Return an argument for a reset that is not read if there is none."""
    return instead if reset is None else reset


@triton.jit
def _lstm_forward(
    sums, cell_before, reset, next_reset, cell, hidden, carried, count, before_row, cell_row, carried_row,
    H: tl.constexpr, RESET: tl.constexpr, NEXT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = at < count
    b, h = at // H, at % H
    first, stored, wide = sums + b * 4 * H + h, sums.dtype.element_ty, cell.dtype.element_ty
    i = _sigmoid(tl.load(first, mask=used, other=0.0).to(wide)).to(stored)
    f = _sigmoid(tl.load(first + H, mask=used, other=0.0).to(wide)).to(stored)
    g = _tanh(tl.load(first + 2 * H, mask=used, other=0.0).to(wide)).to(stored)
    o = _sigmoid(tl.load(first + 3 * H, mask=used, other=0.0).to(wide)).to(stored)
    before = tl.load(cell_before + b * before_row + h, mask=used, other=0.0)
    if RESET:
        before = tl.where(tl.load(reset + b, mask=used, other=0) != 0, 0.0, before)
    new_cell = f.to(wide) * before + i.to(wide) * g.to(wide)
    new_hidden = (o.to(wide) * _tanh(new_cell)).to(stored)
    tl.store(first, i, mask=used)
    tl.store(first + H, f, mask=used)
    tl.store(first + 2 * H, g, mask=used)
    tl.store(first + 3 * H, o, mask=used)
    tl.store(cell + b * cell_row + h, new_cell, mask=used)
    tl.store(hidden + at, new_hidden, mask=used)
    next_hidden = new_hidden.to(carried.dtype.element_ty)
    if NEXT:
        next_hidden = tl.where(tl.load(next_reset + b, mask=used, other=0) != 0, 0.0, next_hidden)
    tl.store(carried + b * carried_row + h, next_hidden, mask=used)


def lstm_forward(
    sums: Tensor,
    cell_before: Tensor,
    reset: Tensor | None,
    next_reset: Tensor | None,
    cell: Tensor,
    hidden: Tensor,
    carried: Tensor,
) -> None:
    count = hidden.numel()
    _lstm_forward[_grid(count)](
        sums, cell_before, _flag(reset, sums), _flag(next_reset, sums), cell, hidden, carried, count,
        cell_before.stride(0), cell.stride(0), carried.stride(0),
        H=hidden.shape[1], RESET=reset is not None, NEXT=next_reset is not None, BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def _lstm_backward(
    gates, cell_before, cell, reset, next_reset, d_output, d_carried, d_cell, d_gates, count,
    H: tl.constexpr, NEXT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = at < count
    b, h = at // H, at % H
    first, wide = b * 4 * H + h, cell.dtype.element_ty
    i = tl.load(gates + first, mask=used, other=0.0).to(wide)
    f = tl.load(gates + first + H, mask=used, other=0.0).to(wide)
    g = tl.load(gates + first + 2 * H, mask=used, other=0.0).to(wide)
    o = tl.load(gates + first + 3 * H, mask=used, other=0.0).to(wide)
    began = tl.load(reset + b, mask=used, other=0) != 0
    before = tl.where(began, 0.0, tl.load(cell_before + at, mask=used, other=0.0))
    d_after = tl.load(d_carried + at, mask=used, other=0.0).to(wide)
    if NEXT:
        d_after = tl.where(tl.load(next_reset + b, mask=used, other=0) != 0, 0.0, d_after)
    d_hidden = tl.load(d_output + at, mask=used, other=0.0).to(wide) + d_after
    tanh_cell = _tanh(tl.load(cell + at, mask=used, other=0.0))
    d_c = tl.load(d_cell + at, mask=used, other=0.0) + d_hidden * o * (1.0 - tanh_cell * tanh_cell)
    stored = d_gates.dtype.element_ty
    tl.store(d_gates + first, (d_c * g * i * (1.0 - i)).to(stored), mask=used)
    tl.store(d_gates + first + H, (d_c * before * f * (1.0 - f)).to(stored), mask=used)
    tl.store(d_gates + first + 2 * H, (d_c * i * (1.0 - g * g)).to(stored), mask=used)
    tl.store(d_gates + first + 3 * H, (d_hidden * tanh_cell * o * (1.0 - o)).to(stored), mask=used)
    tl.store(d_cell + at, tl.where(began, 0.0, d_c * f), mask=used)


def lstm_backward(
    gates: Tensor,
    cell_before: Tensor,
    cell: Tensor,
    reset: Tensor,
    next_reset: Tensor | None,
    d_output: Tensor,
    d_carried: Tensor,
    d_cell: Tensor,
    d_gates: Tensor,
) -> None:
    count = cell.numel()
    _lstm_backward[_grid(count)](
        gates, cell_before, cell, reset, _flag(next_reset, reset), d_output, d_carried, d_cell, d_gates, count,
        H=cell.shape[1], NEXT=next_reset is not None, BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def _gru_forward(
    from_inputs, from_hidden, bias_share, next_reset, before, gates, hidden, carried, count, before_row, carried_row,
    H: tl.constexpr, NEXT: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = at < count
    b, h = at // H, at % H
    x, y, stored = from_inputs + b * 3 * H + h, from_hidden + b * 3 * H + h, gates.dtype.element_ty
    in_n, hid_r = tl.load(x, mask=used, other=0.0).to(WIDE), tl.load(y, mask=used, other=0.0).to(WIDE)
    in_r, hid_z = tl.load(x + H, mask=used, other=0.0).to(WIDE), tl.load(y + H, mask=used, other=0.0).to(WIDE)
    in_z, hid_n = tl.load(x + 2 * H, mask=used, other=0.0).to(WIDE), tl.load(y + 2 * H, mask=used, other=0.0).to(WIDE)
    r, z = _sigmoid(in_r + hid_r), _sigmoid(in_z + hid_z)
    share = hid_n + tl.load(bias_share + h, mask=used, other=0.0).to(WIDE)
    n = _tanh(in_n + r * share)
    state = tl.load(before + b * before_row + h, mask=used, other=0.0).to(WIDE)
    new_hidden = (n + z * (state - n)).to(hidden.dtype.element_ty)
    first = gates + b * 4 * H + h
    tl.store(first, n.to(stored), mask=used)
    tl.store(first + H, r.to(stored), mask=used)
    tl.store(first + 2 * H, z.to(stored), mask=used)
    tl.store(first + 3 * H, share.to(stored), mask=used)
    tl.store(hidden + at, new_hidden, mask=used)
    next_hidden = new_hidden.to(carried.dtype.element_ty)
    if NEXT:
        next_hidden = tl.where(tl.load(next_reset + b, mask=used, other=0) != 0, 0.0, next_hidden)
    tl.store(carried + b * carried_row + h, next_hidden, mask=used)


def gru_forward(
    from_inputs: Tensor,
    from_hidden: Tensor,
    bias_share: Tensor,
    next_reset: Tensor | None,
    before: Tensor,
    gates: Tensor,
    hidden: Tensor,
    carried: Tensor,
) -> None:
    count = hidden.numel()
    _gru_forward[_grid(count)](
        from_inputs, from_hidden, bias_share, _flag(next_reset, gates), before, gates, hidden, carried, count,
        before.stride(0), carried.stride(0),
        H=hidden.shape[1], NEXT=next_reset is not None, WIDE=_wide(gates), BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def _gru_backward(
    gates, hidden_before, reset, next_reset, d_output, d_carried, d_gates, count,
    H: tl.constexpr, NEXT: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = at < count
    b, h = at // H, at % H
    first, stored = b * 4 * H + h, d_gates.dtype.element_ty
    n = tl.load(gates + first, mask=used, other=0.0).to(WIDE)
    r = tl.load(gates + first + H, mask=used, other=0.0).to(WIDE)
    z = tl.load(gates + first + 2 * H, mask=used, other=0.0).to(WIDE)
    share = tl.load(gates + first + 3 * H, mask=used, other=0.0).to(WIDE)
    before = tl.load(hidden_before + at, mask=used, other=0.0).to(WIDE)
    before = tl.where(tl.load(reset + b, mask=used, other=0) != 0, 0.0, before)
    d_after = tl.load(d_carried + at, mask=used, other=0.0).to(WIDE)
    if NEXT:
        d_after = tl.where(tl.load(next_reset + b, mask=used, other=0) != 0, 0.0, d_after)
    d_hidden = tl.load(d_output + at, mask=used, other=0.0).to(WIDE) + d_after
    dn = d_hidden * (1.0 - z) * (1.0 - n * n)
    tl.store(d_gates + first, dn.to(stored), mask=used)
    tl.store(d_gates + first + H, (dn * share * r * (1.0 - r)).to(stored), mask=used)
    tl.store(d_gates + first + 2 * H, (d_hidden * (before - n) * z * (1.0 - z)).to(stored), mask=used)
    tl.store(d_gates + first + 3 * H, (dn * r).to(stored), mask=used)
    tl.store(d_carried + at, (d_hidden * z).to(d_carried.dtype.element_ty), mask=used)


def gru_backward(
    gates: Tensor,
    hidden_before: Tensor,
    reset: Tensor,
    next_reset: Tensor | None,
    d_output: Tensor,
    d_carried: Tensor,
    d_gates: Tensor,
) -> None:
    count = hidden_before.numel()
    _gru_backward[_grid(count)](
        gates, hidden_before, reset, _flag(next_reset, reset), d_output, d_carried, d_gates, count,
        H=hidden_before.shape[1], NEXT=next_reset is not None, WIDE=_wide(gates), BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def _mingru_forward(
    sums, inputs, hidden0, reset, hidden, output, steps, sequences, before_row, hidden_row,
    H: tl.constexpr, RESET: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = at < sequences * H
    b, h = at // H, at % H
    state = tl.load(hidden0 + b * before_row + h, mask=used, other=0.0).to(WIDE)
    for t in range(steps):
        row = (t * sequences + b).to(tl.int64)
        first = sums + row * 3 * H + h
        candidate = tl.load(first, mask=used, other=0.0).to(WIDE)
        z = _sigmoid(tl.load(first + H, mask=used, other=0.0).to(WIDE))
        s = _sigmoid(tl.load(first + 2 * H, mask=used, other=0.0).to(WIDE))
        if RESET:
            state = tl.where(tl.load(reset + row, mask=used, other=0) != 0, 0.0, state)
        state = tl.where(z == 1.0, 0.0, (1.0 - z) * state) + z * _positive(candidate)
        seen = tl.load(inputs + row * H + h, mask=used, other=0.0).to(WIDE)
        tl.store(hidden + row * hidden_row + h, state.to(hidden.dtype.element_ty), mask=used)
        tl.store(output + row * H + h, (s * state + (1.0 - s) * seen).to(output.dtype.element_ty), mask=used)


def mingru_forward(
    sums: Tensor, inputs: Tensor, hidden0: Tensor, reset: Tensor | None, hidden: Tensor, output: Tensor
) -> None:
    steps, sequences, size = inputs.shape
    _mingru_forward[_grid(sequences * size)](
        sums, inputs, hidden0, _flag(reset, sums), hidden, output, steps, sequences, hidden0.stride(0), hidden.stride(1),
        H=size, RESET=reset is not None, WIDE=_wide(sums), BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def _mingru_backward(
    sums, hidden, inputs, hidden0, reset, d_output, d_sums, d_direct, d_hidden0, steps, sequences,
    H: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = at < sequences * H
    b, h = at // H, at % H
    stored = d_sums.dtype.element_ty
    carried = tl.zeros((BLOCK,), WIDE)
    for k in range(steps):
        t = steps - 1 - k
        row = (t * sequences + b).to(tl.int64)
        first = row * 3 * H + h
        candidate = tl.load(sums + first, mask=used, other=0.0).to(WIDE)
        z = _sigmoid(tl.load(sums + first + H, mask=used, other=0.0).to(WIDE))
        s = _sigmoid(tl.load(sums + first + 2 * H, mask=used, other=0.0).to(WIDE))
        n = _positive(candidate)
        slope = tl.where(candidate >= 0, 1.0, n * (1.0 - n))
        dy = tl.load(d_output + row * H + h, mask=used, other=0.0).to(WIDE)
        seen = tl.load(inputs + row * H + h, mask=used, other=0.0).to(WIDE)
        now = tl.load(hidden + row * H + h, mask=used, other=0.0).to(WIDE)
        # the first step has none before it in `hidden`; that address is not read
        before = tl.load(hidden + (row - sequences) * H + h, mask=used & (row >= sequences), other=0.0).to(WIDE)
        before += tl.load(hidden0 + at, mask=used & (row < sequences), other=0.0).to(WIDE)
        began = tl.load(reset + row, mask=used, other=0) != 0
        before = tl.where(began, 0.0, before)
        d_hidden = s * dy + carried
        tl.store(d_sums + first, (d_hidden * z * slope).to(stored), mask=used)
        tl.store(d_sums + first + H, (d_hidden * (n - before) * z * (1.0 - z)).to(stored), mask=used)
        tl.store(d_sums + first + 2 * H, (dy * (now - seen) * s * (1.0 - s)).to(stored), mask=used)
        tl.store(d_direct + row * H + h, (dy * (1.0 - s)).to(d_direct.dtype.element_ty), mask=used)
        carried = tl.where(began, 0.0, (1.0 - z) * d_hidden)
    tl.store(d_hidden0 + at, carried.to(d_hidden0.dtype.element_ty), mask=used)


def mingru_backward(
    sums: Tensor,
    hidden: Tensor,
    inputs: Tensor,
    hidden0: Tensor,
    reset: Tensor,
    d_output: Tensor,
    d_sums: Tensor,
    d_direct: Tensor,
    d_hidden0: Tensor,
) -> None:
    steps, sequences, size = inputs.shape
    _mingru_backward[_grid(sequences * size)](
        sums, hidden, inputs, hidden0, reset, d_output, d_sums, d_direct, d_hidden0, steps, sequences,
        H=size, WIDE=_wide(sums), BLOCK=BLOCK,
    )  # fmt: skip


def _wide(tensor: Tensor) -> Any:
    """Return the type in which numbers are computed."""
    return tl.float64 if tensor.element_size() == 8 else tl.float32

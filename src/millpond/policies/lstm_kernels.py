"""The element-wise part of an LSTM, one step of a batch in one pass. B sequences, H hidden; float32, contiguous.

Gates lie side by side in the last axis: input, forget, candidate, output. The plain version is in `lstm.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.policies.activations import fast_sigmoid, fast_tanh

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
ONE = np.float32(1.0)
ZERO = np.float32(0.0)


@compiled_fast
def gates_forward(
    gates: Floats, before: Floats, reset: Flags, reset_after: Flags, cell: Floats, hidden: Floats, carried: Floats
) -> None:
    """gates [B, 4H]: in, sums; out, activated. `before` is the cell of the step before, void where `reset`.

    Writes `cell` and `hidden` [B, H], and `carried`: the hidden state as the next step takes it, void where
    `reset_after`.
    """
    size = cell.shape[1]
    for row in range(cell.shape[0]):
        i = gates[row, :size]
        f = gates[row, size : 2 * size]
        g = gates[row, 2 * size : 3 * size]
        o = gates[row, 3 * size :]
        c, h, old, kept = cell[row], hidden[row], before[row], carried[row]
        for k in range(size):
            i[k] = fast_sigmoid(i[k])
        for k in range(size):
            f[k] = fast_sigmoid(f[k])
        for k in range(size):
            g[k] = fast_tanh(g[k])
        for k in range(size):
            o[k] = fast_sigmoid(o[k])
        if reset[row]:
            for k in range(size):
                c[k] = i[k] * g[k]
        else:
            for k in range(size):
                c[k] = f[k] * old[k] + i[k] * g[k]
        for k in range(size):
            h[k] = o[k] * fast_tanh(c[k])
        if reset_after[row]:
            kept[:] = ZERO
        else:
            for k in range(size):
                kept[k] = h[k]


@compiled_fast
def gates_backward(
    gates: Floats,
    before: Floats,
    cell: Floats,
    reset: Flags,
    reset_after: Flags,
    d_output: Floats,
    d_carried: Floats,
    d_cell: Floats,
    d_gates: Floats,
) -> None:
    """The way back of one step.

    `d_output` is the gradient of this step's hidden state from above, `d_carried` from the next step (void where
    `reset_after`), `d_cell` that of its cell, replaced by the gradient of the cell before. Writes `d_gates`: the
    gradient of the sums.
    """
    size = cell.shape[1]
    squashed, dh = np.empty(size, np.float32), np.empty(size, np.float32)
    # One result a loop: with more, the compiler cannot tell that the arrays are apart, and vectorises nothing.
    for row in range(cell.shape[0]):
        i, f = gates[row, :size], gates[row, size : 2 * size]
        g, o = gates[row, 2 * size : 3 * size], gates[row, 3 * size :]
        di, df = d_gates[row, :size], d_gates[row, size : 2 * size]
        dg, do = d_gates[row, 2 * size : 3 * size], d_gates[row, 3 * size :]
        c, old, above, later, dc = cell[row], before[row], d_output[row], d_carried[row], d_cell[row]
        for k in range(size):
            squashed[k] = fast_tanh(c[k])
        if reset_after[row]:
            for k in range(size):
                dh[k] = above[k]
        else:
            for k in range(size):
                dh[k] = above[k] + later[k]
        for k in range(size):
            do[k] = dh[k] * squashed[k] * o[k] * (ONE - o[k])
        for k in range(size):
            dc[k] += dh[k] * o[k] * (ONE - squashed[k] * squashed[k])
        for k in range(size):
            di[k] = dc[k] * g[k] * i[k] * (ONE - i[k])
        for k in range(size):
            dg[k] = dc[k] * i[k] * (ONE - g[k] * g[k])
        if reset[row]:
            df[:] = ZERO
            dc[:] = ZERO
        else:
            for k in range(size):
                df[k] = dc[k] * old[k] * f[k] * (ONE - f[k])
            for k in range(size):
                dc[k] *= f[k]


@compiled_fast
def step_forward(gates: Floats, state: Floats, after: Floats) -> None:
    """One step of acting: `state` and `after` are [B, 2, H], hidden and cell; gates [B, 4H] are overwritten."""
    size = state.shape[2]
    for row in range(state.shape[0]):
        i = gates[row, :size]
        f = gates[row, size : 2 * size]
        g = gates[row, 2 * size : 3 * size]
        o = gates[row, 3 * size :]
        old, h, c = state[row, 1], after[row, 0], after[row, 1]
        for k in range(size):
            i[k] = fast_sigmoid(i[k])
        for k in range(size):
            f[k] = fast_sigmoid(f[k])
        for k in range(size):
            g[k] = fast_tanh(g[k])
        for k in range(size):
            o[k] = fast_sigmoid(o[k])
        for k in range(size):
            c[k] = f[k] * old[k] + i[k] * g[k]
        for k in range(size):
            h[k] = o[k] * fast_tanh(c[k])

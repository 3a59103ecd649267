"""LSTM on the CPU in float32: whole rows forward and backward, and one step of acting, each in one compiled call.

Gates are side by side in the last axis: input, forget, candidate, output. Products are BLAS's or packed. The plain version is
`millpond.policies.cores.LSTM`.

T steps  B sequences, b of a thread's share  I inputs  H hidden; float32, contiguous
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.fast.activations import fast_sigmoid, fast_tanh
from millpond.fast.gemm import SGEMM
from millpond.fast.limits import LSTM_BLOCK, MIN_SEQUENCES_PER_THREAD
from millpond.fast.products import (
    add_transposed,
    is_packed,
    multiply,
    panels_of,
    panels_of_transposed,
    transposed_product,
)
from millpond.policies.cores import LSTM
from millpond.threads import in_threads, one_each

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
ONE = np.float32(1.0)
ZERO = np.float32(0.0)
NO_PANELS = np.empty(0, np.float32)


@compiled_fast
def gates_forward(
    gates: Floats, before: Floats, reset: Flags, reset_after: Flags, cell: Floats, hidden: Floats, carried: Floats
) -> None:
    """gates [B, 4H]: sums on entry, activated on return. `before` is the cell of the previous step, unused where `reset`.

    Writes `cell` and `hidden` [B, H], and `carried`: the hidden state that enters the next step, zero where
    `reset_after`.
    """
    size = cell.shape[1]
    for row in range(cell.shape[0]):
        i = gates[row, :size]
        f = gates[row, size : 2 * size]
        g = gates[row, 2 * size : 3 * size]
        o = gates[row, 3 * size :]
        c, h, old, next_h = cell[row], hidden[row], before[row], carried[row]
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
            next_h[:] = ZERO
        else:
            for k in range(size):
                next_h[k] = h[k]


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
    """Backward pass of one step.

    `d_output` is the gradient of this step's hidden state from the layer above, `d_carried` from the next step (unused
    where `reset_after`), `d_cell` that of its cell, replaced by the gradient of the cell before. Writes `d_gates`: the
    gradient of the sums.
    """
    size = cell.shape[1]
    squashed, dh = np.empty(size, np.float32), np.empty(size, np.float32)
    # One output array per loop: with more, the compiler cannot prove that they do not overlap, and vectorises nothing.
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


@compiled_fast
def copy_unless(reset: Flags, state: Floats, out: Floats) -> None:
    """Set out [B, H] to state, or to zero where `reset` [B]."""
    for row in range(len(reset)):
        if reset[row]:
            out[row] = ZERO
        else:
            for k in range(state.shape[1]):
                out[row, k] = state[row, k]


@compiled_fast
def rows_forward(
    sgemm: int,
    inputs: Floats,
    hidden0: Floats,
    cell0: Floats,
    reset: Flags,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    hidden: Floats,
    gates: Floats,
    cell: Floats,
) -> None:
    """inputs [T, B, I], reset [T, B], weights [4H, I] and [4H, H] -> hidden and cell [T, B, H], gates [T, B, 4H]."""
    steps, batch = reset.shape
    carried = np.empty_like(hidden0)  # the hidden state that enters the next step
    copy_unless(reset[0], hidden0, carried)
    packed = is_packed(inputs.shape[2], hidden0.shape[1])
    input_panels, hidden_panels = panels_of_transposed(w_input, packed), panels_of_transposed(w_hidden, packed)
    block = max(1, LSTM_BLOCK // batch)
    for start in range(0, steps, block):
        stop = min(steps, start + block)
        length = (stop - start) * batch
        sums = gates[start:stop].reshape(length, gates.shape[2])
        for row in range(length):
            sums[row] = bias
        add_transposed(sgemm, inputs[start:stop].reshape(length, inputs.shape[2]), w_input, input_panels, sums)
        for t in range(start, stop):
            add_transposed(sgemm, carried, w_hidden, hidden_panels, gates[t])
            before = cell[t - 1] if t else cell0
            gates_forward(gates[t], before, reset[t], reset[min(t + 1, steps - 1)], cell[t], hidden[t], carried)


@compiled_fast
def rows_backward(
    sgemm: int,
    d_output: Floats,
    hidden: Floats,
    gates: Floats,
    cell: Floats,
    inputs: Floats,
    hidden0: Floats,
    cell0: Floats,
    reset: Flags,
    w_input: Floats,
    w_hidden: Floats,
    d_inputs: Floats,
    d_hidden0: Floats,
    d_cell: Floats,
    d_w_input: Floats,
    d_w_hidden: Floats,
    d_bias: Floats,
    d_gates: Floats,
    began: Floats,
) -> None:
    """Backward pass from d_output [T, B, H]. `d_cell` and the gradients of weights are zeros on entry; all are written.

    `d_inputs` may share the memory of `inputs`. `d_gates` [K, B, 4H] and `began` [K, B, H] are workspace for blocks of K
    steps.
    """
    steps, batch = reset.shape
    size, block = hidden0.shape[1], len(d_gates)
    never = np.zeros(batch, np.bool_)
    packed = is_packed(inputs.shape[2], size)
    input_panels, hidden_panels = panels_of(w_input, packed), panels_of(w_hidden, packed)
    d_hidden0[:] = ZERO  # gradient of the hidden state that enters the next step; in the end, of the first
    for stop in range(steps, 0, -block):
        start = max(0, stop - block)
        length = (stop - start) * batch
        for t in range(stop - 1, start - 1, -1):
            reset_after = reset[t + 1] if t + 1 < steps else never
            before, d_sums = cell[t - 1] if t else cell0, d_gates[t - start]
            gates_backward(gates[t], before, cell[t], reset[t], reset_after, d_output[t], d_hidden0, d_cell, d_sums)
            multiply(sgemm, d_sums, w_hidden, hidden_panels, d_hidden0)
            copy_unless(reset[t], hidden[t - 1] if t else hidden0, began[t - start])
        sums = d_gates[: stop - start].reshape(length, 4 * size)
        block_inputs = inputs[start:stop].reshape(length, inputs.shape[2])
        transposed_product(sgemm, sums, block_inputs, True, d_w_input)
        multiply(sgemm, sums, w_input, input_panels, d_inputs[start:stop].reshape(length, inputs.shape[2]))
        transposed_product(sgemm, sums, began[: stop - start].reshape(length, size), True, d_w_hidden)
        for row in range(length):
            for k in range(4 * size):
                d_bias[k] += sums[row, k]
    copy_unless(reset[0], d_hidden0, d_hidden0)


@compiled_fast
def share_forward(
    sgemm: int,
    first: int,
    last: int,
    inputs: Floats,
    hidden0: Floats,
    cell0: Floats,
    reset: Flags,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    hidden: Floats,
    saved_inputs: Floats,
    saved_reset: Flags,
    saved_hidden: Floats,
    gates: Floats,
    cell: Floats,
) -> None:
    """`rows_forward` of the sequences first..last-1: into `hidden`, and into arrays saved for the backward pass.

    Saved arrays hold these sequences only, [T, b, ...], so that a block of steps is contiguous.
    """
    alone = last - first == reset.shape[1]  # the saved arrays are then the inputs themselves
    if not alone:
        saved_inputs[:] = inputs[:, first:last]
        saved_reset[:] = reset[:, first:last]
    begin = hidden0[first:last], cell0[first:last]
    rows_forward(sgemm, saved_inputs, *begin, saved_reset, w_input, w_hidden, bias, saved_hidden, gates, cell)
    if not alone:
        hidden[:, first:last] = saved_hidden


@compiled_fast
def share_backward(
    sgemm: int,
    first: int,
    last: int,
    d_output: Floats,
    hidden0: Floats,
    cell0: Floats,
    w_input: Floats,
    w_hidden: Floats,
    inputs: Floats,
    reset: Flags,
    hidden: Floats,
    gates: Floats,
    cell: Floats,
    d_inputs: Floats,
    d_hidden0: Floats,
    d_cell: Floats,
    d_w_input: Floats,
    d_w_hidden: Floats,
    d_bias: Floats,
) -> None:
    """`rows_backward` of the same sequences, from the saved arrays; gradients of weights are of these sequences only."""
    steps, batch = reset.shape
    block = min(steps, max(1, LSTM_BLOCK // batch))
    d_gates = np.empty((block, batch, gates.shape[2]), np.float32)
    began = np.empty((block, batch, hidden.shape[2]), np.float32)
    alone = batch == d_output.shape[1]
    d_hidden = d_output if alone else np.ascontiguousarray(d_output[:, first:last])
    d_features = d_inputs if alone else np.empty_like(inputs)
    saved = hidden, gates, cell, inputs, hidden0[first:last], cell0[first:last], reset
    gradients = d_features, d_hidden0[first:last], d_cell[first:last], d_w_input, d_w_hidden, d_bias
    rows_backward(sgemm, d_hidden, *saved, w_input, w_hidden, *gradients, d_gates, began)
    if not alone:
        d_inputs[:, first:last] = d_features


@compiled_fast
def act_step(
    sgemm: int,
    inputs: Floats,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    input_panels: Floats,
    hidden_panels: Floats,
    state: Floats,
    after: Floats,
) -> None:
    """One step of acting: inputs [B, I]; `state` and `after` are [B, 2, H], hidden and cell; they may be the same array.

    Panels are the transposed weights, packed, or empty.
    """
    batch, size = inputs.shape[0], state.shape[2]
    block = min(batch, LSTM_BLOCK)
    gates, carried = np.empty((block, 4 * size), np.float32), np.empty((block, size), np.float32)
    for start in range(0, batch, block):
        stop = min(batch, start + block)
        sums, hidden = gates[: stop - start], carried[: stop - start]
        for row in range(stop - start):
            sums[row] = bias
            hidden[row] = state[start + row, 0]
        add_transposed(sgemm, inputs[start:stop], w_input, input_panels, sums)
        add_transposed(sgemm, hidden, w_hidden, hidden_panels, sums)
        step_forward(sums, state[start:stop], after[start:stop])


class UnrollLSTM(torch.autograd.Function):
    """A row of the LSTM as one node of torch's graph; each thread computes some of the sequences through all steps."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        inputs, hidden0, cell0, reset, w_input, w_hidden, bias = (tensor.detach().numpy() for tensor in tensors)
        steps, batch = reset.shape
        size = hidden0.shape[1]
        hidden = np.empty((steps, batch, size), np.float32)

        def share(first: int, last: int) -> Any:
            shape, alone = (steps, last - first), last - first == batch
            saved = (
                inputs if alone else np.empty((*shape, inputs.shape[2]), np.float32),
                reset if alone else np.empty(shape, np.bool_),
                hidden if alone else np.empty((*shape, size), np.float32),
                np.empty((*shape, 4 * size), np.float32),
                np.empty((*shape, size), np.float32),
            )
            arrays = inputs, hidden0, cell0, reset, w_input, w_hidden, bias, hidden
            share_forward(SGEMM, first, last, *arrays, *saved)
            return first, last, saved

        ctx.shares = in_threads(share, batch, MIN_SEQUENCES_PER_THREAD)
        ctx.weights = hidden0, cell0, w_input, w_hidden
        return torch.from_numpy(hidden)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        hidden0, cell0, w_input, w_hidden = ctx.weights
        d_hidden = d_output.contiguous().numpy()
        d_inputs = np.empty((*d_hidden.shape[:2], w_input.shape[1]), np.float32)
        d_hidden0, d_cell0 = np.empty_like(hidden0), np.zeros_like(cell0)

        def share(first: int, last: int, saved: Any) -> Any:
            d_weights = np.zeros_like(w_input), np.zeros_like(w_hidden), np.zeros_like(w_hidden[:, 0])
            gradients = d_inputs, d_hidden0, d_cell0, *d_weights
            share_backward(SGEMM, first, last, d_hidden, *ctx.weights, *saved, *gradients)  # type: ignore[call-arg]
            return d_weights

        # Gradients of weights are added in the order of the sequences, so that a run is reproducible.
        d_weights, *others = one_each((partial(share, *saved) for saved in ctx.shares), len(ctx.shares))
        for other in others:
            for total, more in zip(d_weights, other, strict=True):
                total += more
        d_state, d_all_weights = map(torch.from_numpy, (d_hidden0, d_cell0)), map(torch.from_numpy, d_weights)
        return torch.from_numpy(d_inputs), *d_state, None, *d_all_weights


class FastLSTM(nn.Module):
    """A plain LSTM's weights, computed with by the compiled code above."""

    states = LSTM.states

    def __init__(self, plain: LSTM) -> None:
        super().__init__()
        self.plain = plain

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, H], state [B, 2, H] -> hidden [B, H], state [B, 2, H]; without gradients."""
        core, state = self.plain, state.contiguous()
        after = torch.empty_like(state)
        arrays = (tensor.detach().numpy() for tensor in (features.contiguous(), core.w_input, core.w_hidden, core.bias))
        act_step(SGEMM, *arrays, NO_PANELS, NO_PANELS, state.numpy(), after.numpy())  # type: ignore[call-arg]
        return after[:, 0], after

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """features [T, B, H], state [B, 2, H], reset [T, B] -> hidden [T, B, H]."""
        core = self.plain
        hidden0, cell0 = state[:, 0].contiguous(), state[:, 1].contiguous()
        weights = core.w_input, core.w_hidden, core.bias
        return UnrollLSTM.apply(features.contiguous(), hidden0, cell0, reset.contiguous(), *weights)  # type: ignore[no-any-return, no-untyped-call]

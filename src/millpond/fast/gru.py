"""GRU on the CPU in float32: whole rows forward and backward, and one step of acting, each in one compiled call.

Saved gates [B, 4H], and the order of the sums: see `millpond.policies.cores.GRU`, which is the plain version. Products are
BLAS's or packed. `FastGRU` is the same as a module of torch's graph, in which products are torch's.

T steps  B sequences  I inputs  H hidden; float32, contiguous
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.fast.activations import fast_sigmoid, fast_tanh
from millpond.fast.limits import GRU_BLOCK, LSTM_BLOCK
from millpond.fast.lstm import copy_unless
from millpond.fast.products import (
    add_transposed,
    is_packed,
    multiply,
    panels_of,
    panels_of_transposed,
    transposed_product,
)
from millpond.policies.cores import GRU, blocks_backward, states_before

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
ONE = np.float32(1.0)
ZERO = np.float32(0.0)


@compiled_fast
def gates_forward(
    from_inputs: Floats,
    from_hidden: Floats,
    bias: Floats,
    carried: Floats,
    reset_after: Flags,
    gates: Floats,
    hidden: Floats,
) -> None:
    """Write `gates` and `hidden` [B, H]; `carried` is the hidden state before, and becomes the one that enters the next
    step, zero where `reset_after`.
    """
    size = carried.shape[1]
    for row in range(carried.shape[0]):
        n, r = gates[row, :size], gates[row, size : 2 * size]
        z, share = gates[row, 2 * size : 3 * size], gates[row, 3 * size :]
        in_n, in_r, in_z = from_inputs[row, :size], from_inputs[row, size : 2 * size], from_inputs[row, 2 * size :]
        hid_r, hid_z, hid_n = from_hidden[row, :size], from_hidden[row, size : 2 * size], from_hidden[row, 2 * size :]
        old, h = carried[row], hidden[row]
        for k in range(size):
            r[k] = fast_sigmoid(in_r[k] + hid_r[k])
        for k in range(size):
            z[k] = fast_sigmoid(in_z[k] + hid_z[k])
        for k in range(size):
            share[k] = hid_n[k] + bias[k]
        for k in range(size):
            n[k] = fast_tanh(in_n[k] + r[k] * share[k])
        for k in range(size):
            h[k] = n[k] + z[k] * (old[k] - n[k])
        if reset_after[row]:
            old[:] = ZERO
        else:
            for k in range(size):
                old[k] = h[k]


@compiled_fast
def gates_backward(
    gates: Floats, before: Floats, reset: Flags, d_hidden: Floats, d_before: Floats, d_gates: Floats
) -> None:
    """Backward pass of one step.

    `d_hidden` is the gradient of this step's hidden state, `before` the hidden state before it (unused where `reset`).
    Writes `d_gates` [B, 4H]: gradients of the sums of candidate, reset, update, and of the share of the hidden state in the
    candidate; and `d_before`: the gradient of the hidden state before, past the gates.
    """
    size = d_hidden.shape[1]
    zeros = np.zeros(size, np.float32)
    for row in range(d_hidden.shape[0]):
        n, r = gates[row, :size], gates[row, size : 2 * size]
        z, share = gates[row, 2 * size : 3 * size], gates[row, 3 * size :]
        dn, dr = d_gates[row, :size], d_gates[row, size : 2 * size]
        dz, d_share = d_gates[row, 2 * size : 3 * size], d_gates[row, 3 * size :]
        dh, direct = d_hidden[row], d_before[row]
        old = zeros if reset[row] else before[row]
        for k in range(size):
            dn[k] = dh[k] * (ONE - z[k]) * (ONE - n[k] * n[k])
        for k in range(size):
            dz[k] = dh[k] * (old[k] - n[k]) * z[k] * (ONE - z[k])
        for k in range(size):
            dr[k] = dn[k] * share[k] * r[k] * (ONE - r[k])
        for k in range(size):
            d_share[k] = dn[k] * r[k]
        for k in range(size):
            direct[k] = dh[k] * z[k]


@compiled_fast
def step_backward(
    gates: Floats,
    before: Floats,
    reset: Flags,
    reset_after: Flags,
    d_output: Floats,
    d_carried: Floats,
    direct: Floats,
    d_inputs: Floats,
    d_hidden: Floats,
) -> None:
    """Backward pass of one step of a row.

    `d_output` is the gradient of this step's hidden state from the layer above, `d_carried` from the next step (unused where
    `reset_after`), `before` the hidden state before it (unused where `reset`). Writes the gradients of the sums from the
    inputs [B, 3H] (n, r, z) and from the hidden state [B, 3H] (r, z, n), and `direct`: the gradient of the hidden state
    before, past the gates.
    """
    size = d_output.shape[1]
    dh, zeros = np.empty(size, np.float32), np.zeros(size, np.float32)
    for row in range(d_output.shape[0]):
        n, r = gates[row, :size], gates[row, size : 2 * size]
        z, share = gates[row, 2 * size : 3 * size], gates[row, 3 * size :]
        dn, dr, dz = d_inputs[row, :size], d_inputs[row, size : 2 * size], d_inputs[row, 2 * size :]
        dr_too, dz_too, d_share = d_hidden[row, :size], d_hidden[row, size : 2 * size], d_hidden[row, 2 * size :]
        above, later, past = d_output[row], d_carried[row], direct[row]
        old = zeros if reset[row] else before[row]
        if reset_after[row]:
            for k in range(size):
                dh[k] = above[k]
        else:
            for k in range(size):
                dh[k] = above[k] + later[k]
        for k in range(size):
            dn[k] = dh[k] * (ONE - z[k]) * (ONE - n[k] * n[k])
        for k in range(size):
            dz[k] = dh[k] * (old[k] - n[k]) * z[k] * (ONE - z[k])
        for k in range(size):
            dr[k] = dn[k] * share[k] * r[k] * (ONE - r[k])
        for k in range(size):
            d_share[k] = dn[k] * r[k]
        for k in range(size):
            past[k] = dh[k] * z[k]
        for k in range(size):
            dr_too[k] = dr[k]
        for k in range(size):
            dz_too[k] = dz[k]


@compiled_fast
def rows_forward(
    sgemm: int,
    inputs: Floats,
    hidden0: Floats,
    reset: Flags,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    bias_share: Floats,
    hidden: Floats,
    gates: Floats,
    sums: Floats,
) -> None:
    """inputs [T, B, I], reset [T, B], weights [3H, I] and [3H, H] -> hidden [T, B, H], gates [T, B, 4H].

    `sums` [K, B, 3H] is workspace for blocks of K steps.
    """
    steps, batch = reset.shape
    size, block = hidden0.shape[1], len(sums)
    carried = np.empty_like(hidden0)  # the hidden state that enters the next step
    copy_unless(reset[0], hidden0, carried)
    from_hidden = np.empty((batch, 3 * size), np.float32)
    packed = is_packed(inputs.shape[2], size)
    input_panels, hidden_panels = panels_of_transposed(w_input, packed), panels_of_transposed(w_hidden, packed)
    for start in range(0, steps, block):
        stop = min(steps, start + block)
        length = (stop - start) * batch
        from_inputs = sums[: stop - start].reshape(length, 3 * size)
        for row in range(length):
            from_inputs[row] = bias
        add_transposed(sgemm, inputs[start:stop].reshape(length, inputs.shape[2]), w_input, input_panels, from_inputs)
        for t in range(start, stop):
            from_hidden[:] = ZERO
            add_transposed(sgemm, carried, w_hidden, hidden_panels, from_hidden)
            reset_after = reset[min(t + 1, steps - 1)]
            gates_forward(sums[t - start], from_hidden, bias_share, carried, reset_after, gates[t], hidden[t])


@compiled_fast
def rows_backward(
    sgemm: int,
    d_output: Floats,
    hidden: Floats,
    gates: Floats,
    inputs: Floats,
    hidden0: Floats,
    reset: Flags,
    w_input: Floats,
    w_hidden: Floats,
    d_inputs: Floats,
    d_w_input: Floats,
    d_w_hidden: Floats,
    d_bias: Floats,
    d_bias_share: Floats,
    d_from_inputs: Floats,
    d_from_hidden: Floats,
    began: Floats,
) -> None:
    """Backward pass from d_output [T, B, H]. The gradients of weights are zeros on entry; all are written.

    `d_inputs` may share the memory of `inputs`. The last three, [K, B, 3H], [K, B, 3H] and [K, B, H], are workspace for
    blocks of K steps.
    """
    steps, batch = reset.shape
    size, block = hidden0.shape[1], len(began)
    never = np.zeros(batch, np.bool_)
    packed = is_packed(inputs.shape[2], size)
    input_panels, hidden_panels = panels_of(w_input, packed), panels_of(w_hidden, packed)
    d_carried = np.zeros((batch, size), np.float32)  # gradient of the hidden state that enters the next step
    direct = np.empty((batch, size), np.float32)
    for stop in range(steps, 0, -block):
        start = max(0, stop - block)
        length = (stop - start) * batch
        for t in range(stop - 1, start - 1, -1):
            reset_after = reset[t + 1] if t + 1 < steps else never
            before, at = hidden[t - 1] if t else hidden0, t - start
            gradients = d_output[t], d_carried, direct, d_from_inputs[at], d_from_hidden[at]
            step_backward(gates[t], before, reset[t], reset_after, *gradients)
            multiply(sgemm, d_from_hidden[at], w_hidden, hidden_panels, d_carried)
            for row in range(batch):
                for k in range(size):
                    d_carried[row, k] += direct[row, k]
            copy_unless(reset[t], before, began[at])
        d_sums = d_from_inputs[: stop - start].reshape(length, 3 * size)
        d_hidden_sums = d_from_hidden[: stop - start].reshape(length, 3 * size)
        block_inputs = inputs[start:stop].reshape(length, inputs.shape[2])
        transposed_product(sgemm, d_sums, block_inputs, True, d_w_input)
        multiply(sgemm, d_sums, w_input, input_panels, d_inputs[start:stop].reshape(length, inputs.shape[2]))
        began_rows = began[: stop - start].reshape(length, size)
        transposed_product(sgemm, d_hidden_sums, began_rows, True, d_w_hidden)
        for row in range(length):
            for k in range(3 * size):
                d_bias[k] += d_sums[row, k]
        for row in range(length):
            for k in range(size):
                d_bias_share[k] += d_hidden_sums[row, 2 * size + k]


@compiled_fast
def act_step(
    sgemm: int,
    inputs: Floats,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    bias_share: Floats,
    input_panels: Floats,
    hidden_panels: Floats,
    state: Floats,
) -> None:
    """One step of acting: inputs [B, I]; `state` [B, 1, H] is updated in place. Panels as for the LSTM."""
    batch, size = inputs.shape[0], state.shape[2]
    block = min(batch, LSTM_BLOCK)
    from_inputs, from_hidden = np.empty((block, 3 * size), np.float32), np.empty((block, 3 * size), np.float32)
    gates, unused = np.empty((block, 4 * size), np.float32), np.empty((block, size), np.float32)
    carried, never = np.empty((block, size), np.float32), np.zeros(block, np.bool_)
    for start in range(0, batch, block):
        count = min(batch, start + block) - start
        for row in range(count):
            from_inputs[row] = bias
            from_hidden[row] = ZERO
            carried[row] = state[start + row, 0]
        add_transposed(sgemm, inputs[start : start + count], w_input, input_panels, from_inputs[:count])
        add_transposed(sgemm, carried[:count], w_hidden, hidden_panels, from_hidden[:count])
        sums = from_inputs[:count], from_hidden[:count], bias_share
        gates_forward(*sums, carried[:count], never[:count], gates[:count], unused[:count])
        for row in range(count):
            state[start + row, 0] = carried[row]


class UnrollGRU(torch.autograd.Function):
    """A row of the GRU as one node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        inputs, hidden0, reset, w_input, w_hidden, bias, bias_share = (tensor.detach() for tensor in tensors)
        steps, batch = reset.shape
        size = hidden0.shape[1]
        hidden = inputs.new_empty(steps, batch, size)
        gates = inputs.new_empty(steps, batch, 4 * size)
        from_inputs, from_hidden = inputs.new_empty(batch, 3 * size), inputs.new_empty(batch, 3 * size)
        carried = hidden0.masked_fill(reset[0, :, None], 0)  # the hidden state that enters the next step
        for t in range(steps):
            torch.addmm(bias, inputs[t], w_input.t(), out=from_inputs)
            torch.mm(carried, w_hidden.t(), out=from_hidden)
            gates_forward(
                from_inputs.numpy(),
                from_hidden.numpy(),
                bias_share.numpy(),
                carried.numpy(),
                reset[min(t + 1, steps - 1)].numpy(),
                gates[t].numpy(),
                hidden[t].numpy(),
            )
        ctx.save_for_backward(hidden, gates, inputs, hidden0, reset, w_input, w_hidden)
        return hidden

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        hidden, gates, inputs, hidden0, reset, w_input, w_hidden = ctx.saved_tensors
        d_output, size = d_output.contiguous(), hidden0.shape[1]
        d_inputs = torch.empty_like(inputs)
        d_w_input, d_w_hidden = torch.zeros_like(w_input), torch.zeros_like(w_hidden)
        d_bias = hidden0.new_zeros(4 * size)
        d_before, direct = torch.zeros_like(hidden0), torch.empty_like(hidden0)
        for start, stop in blocks_backward(len(reset), reset.shape[1], GRU_BLOCK):
            d_gates = gates.new_empty(stop - start, *gates.shape[1:])
            for t in reversed(range(start, stop)):
                gates_backward(
                    gates[t].numpy(),
                    (hidden[t - 1] if t else hidden0).numpy(),
                    reset[t].numpy(),
                    (d_output[t] + d_before).numpy(),
                    direct.numpy(),
                    d_gates[t - start].numpy(),
                )
                torch.addmm(direct, d_gates[t - start, :, size:], w_hidden, out=d_before)
                d_before.masked_fill_(reset[t, :, None], 0)
            flat = d_gates.flatten(0, 1)
            torch.mm(flat[:, : 3 * size], w_input, out=d_inputs[start:stop].flatten(0, 1))
            d_w_input.addmm_(flat[:, : 3 * size].t(), inputs[start:stop].flatten(0, 1))
            d_w_hidden.addmm_(flat[:, size:].t(), states_before(hidden, hidden0, reset, start, stop).flatten(0, 1))
            d_bias += flat.sum(0)
        return d_inputs, d_before, None, d_w_input, d_w_hidden, d_bias[: 3 * size].clone(), d_bias[3 * size :].clone()


class FastGRU(nn.Module):
    """A plain GRU's weights, computed with by the compiled code above."""

    states = GRU.states

    def __init__(self, plain: GRU) -> None:
        super().__init__()
        self.plain = plain

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, H], state [B, 1, H] -> hidden [B, H], state [B, 1, H]; without gradients."""
        core, (batch, size) = self.plain, features.shape
        after = state.clone(memory_format=torch.contiguous_format)
        hidden = after.view(batch, size)
        block = min(batch, GRU_BLOCK)
        from_inputs, from_hidden = features.new_empty(block, 3 * size), features.new_empty(block, 3 * size)
        gates, unused = features.new_empty(block, 4 * size).numpy(), features.new_empty(block, size).numpy()
        never = torch.zeros(block, dtype=torch.bool).numpy()
        w_input_t, w_hidden_t, bias_share = core.w_input.t(), core.w_hidden.t(), core.bias_share.detach().numpy()
        for start in range(0, batch, GRU_BLOCK):  # so that the gates stay in the cache
            some = slice(start, min(start + GRU_BLOCK, batch))
            count = some.stop - start
            torch.addmm(core.bias, features[some], w_input_t, out=from_inputs[:count])
            torch.mm(hidden[some], w_hidden_t, out=from_hidden[:count])
            sums = from_inputs[:count].numpy(), from_hidden[:count].numpy(), bias_share
            gates_forward(*sums, hidden[some].numpy(), never[:count], gates[:count], unused[:count])
        return hidden, after

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """features [T, B, H], state [B, 1, H], reset [T, B] -> hidden [T, B, H]."""
        core, hidden0 = self.plain, state[:, 0].contiguous()
        weights = core.w_input, core.w_hidden, core.bias, core.bias_share
        return UnrollGRU.apply(features.contiguous(), hidden0, reset.contiguous(), *weights)  # type: ignore[no-any-return, no-untyped-call]

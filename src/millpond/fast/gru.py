"""GRU on the CPU in float32: the element-wise part of a step is one compiled pass, products are torch's.

Saved gates [B, 4H], and the order of the sums: see `millpond.policies.cores.GRU`, which is the plain version.

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
from millpond.fast.limits import GRU_BLOCK
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

"""MinGRU on the CPU in float32: products by torch, and one compiled pass over the steps of each sequence.

A scan in log2(T) passes pays on a device with thousands of threads; a core goes through the steps in turn, and has every
number in a register once. The plain version is `millpond.policies.mingru.MinGRU`.

T steps  B sequences  H hidden  L layers; float32, contiguous
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.fast.activations import HALF, fast_sigmoid
from millpond.policies.mingru import MinGRU

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
ONE = np.float32(1.0)
ZERO = np.float32(0.0)


@compiled_fast
def layer_forward(inputs: Floats, before: Floats, reset: Flags, sums: Floats, hidden: Floats, output: Floats) -> None:
    """inputs [T, B, H], before [B, H], reset [T, B], sums [T, B, 3H] -> hidden and output [T, B, H].

    On return `sums` has the activated candidate, update gate and highway gate.
    """
    steps, batch, size = inputs.shape
    zeros = np.zeros(size, np.float32)
    for t in range(steps):
        for row in range(batch):
            n, z, s = sums[t, row, :size], sums[t, row, size : 2 * size], sums[t, row, 2 * size :]
            old = zeros if reset[t, row] else (hidden[t - 1, row] if t else before[row])
            x, h, y = inputs[t, row], hidden[t, row], output[t, row]
            for k in range(size):
                n[k] = n[k] + HALF if n[k] >= ZERO else fast_sigmoid(n[k])
            for k in range(size):
                z[k] = fast_sigmoid(z[k])
            for k in range(size):
                s[k] = fast_sigmoid(s[k])
            for k in range(size):
                h[k] = old[k] + z[k] * (n[k] - old[k])
            for k in range(size):
                y[k] = x[k] + s[k] * (h[k] - x[k])


@compiled_fast
def layer_backward(
    d_output: Floats,
    gates: Floats,
    hidden: Floats,
    inputs: Floats,
    before: Floats,
    reset: Flags,
    d_sums: Floats,
    d_inputs: Floats,
    d_before: Floats,
) -> None:
    """d_output [T, B, H], gates [T, B, 3H] as `layer_forward` left them -> d_sums [T, B, 3H], d_before [B, H], and
    d_inputs [T, B, H]: the share of the highway only.
    """
    steps, batch, size = inputs.shape
    dh, zeros = np.empty(size, np.float32), np.zeros(size, np.float32)
    d_before[:] = ZERO  # until the loop ends, the gradient of the state that enters the next step
    for t in range(steps - 1, -1, -1):
        for row in range(batch):
            n, z, s = gates[t, row, :size], gates[t, row, size : 2 * size], gates[t, row, 2 * size :]
            dn, dz, ds = d_sums[t, row, :size], d_sums[t, row, size : 2 * size], d_sums[t, row, 2 * size :]
            old = zeros if reset[t, row] else (hidden[t - 1, row] if t else before[row])
            x, h, dy, dx, carried = inputs[t, row], hidden[t, row], d_output[t, row], d_inputs[t, row], d_before[row]
            for k in range(size):
                dh[k] = carried[k] + s[k] * dy[k]
            for k in range(size):  # the candidate is below 0.5 where its sum was negative
                dn[k] = dh[k] * z[k] * (ONE if n[k] >= HALF else n[k] * (ONE - n[k]))
            for k in range(size):
                dz[k] = dh[k] * (n[k] - old[k]) * z[k] * (ONE - z[k])
            for k in range(size):
                ds[k] = dy[k] * (h[k] - x[k]) * s[k] * (ONE - s[k])
            for k in range(size):
                dx[k] = dy[k] * (ONE - s[k])
            if reset[t, row]:
                carried[:] = ZERO
            else:
                for k in range(size):
                    carried[k] = dh[k] * (ONE - z[k])


class UnrollMinGRU(torch.autograd.Function):
    """One layer over whole rows, as one node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        inputs, before, reset, weight, bias = (tensor.detach() for tensor in tensors)
        steps, batch, size = inputs.shape
        gates = torch.addmm(bias, inputs.view(-1, size), weight.t()).view(steps, batch, 3 * size)
        hidden, output = torch.empty_like(inputs), torch.empty_like(inputs)
        layer_forward(*(array.numpy() for array in (inputs, before, reset, gates, hidden, output)))
        ctx.save_for_backward(gates, hidden, inputs, before, reset, weight)
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        gates, hidden, inputs, before, reset, weight = ctx.saved_tensors
        d_sums, d_inputs, d_before = torch.empty_like(gates), torch.empty_like(inputs), torch.empty_like(before)
        arrays = d_output.contiguous(), gates, hidden, inputs, before, reset, d_sums, d_inputs, d_before
        layer_backward(*(array.numpy() for array in arrays))
        flat = d_sums.view(-1, d_sums.shape[2])
        d_inputs.view(-1, inputs.shape[2]).addmm_(flat, weight)
        return d_inputs, d_before, None, flat.t() @ inputs.view(-1, inputs.shape[2]), flat.sum(0)


class FastMinGRU(nn.Module):
    """A plain MinGRU's weights, computed with by the compiled code above."""

    def __init__(self, plain: MinGRU) -> None:
        super().__init__()
        self.plain, self.states = plain, plain.states

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, H], state [B, L, H] -> output [B, H], state [B, L, H]; without gradients."""
        after, output = torch.empty_like(state), features.detach().contiguous()[None]
        never = torch.zeros(1, len(features), dtype=torch.bool).numpy()
        for layer, (weight, bias) in enumerate(zip(self.plain.weights, self.plain.biases, strict=True)):
            inputs, hidden, output = output, torch.empty_like(output), torch.empty_like(output)
            sums = torch.addmm(bias.detach(), inputs[0], weight.detach().t())[None]
            arrays = (array.numpy() for array in (sums, hidden, output))
            layer_forward(inputs.numpy(), state[:, layer].contiguous().numpy(), never, *arrays)
            after[:, layer] = hidden[0]
        return output[0], after

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """features [T, B, H], state [B, L, H], reset [T, B] -> output [T, B, H]."""
        output, reset = features.contiguous(), reset.contiguous()
        for layer, weights in enumerate(zip(self.plain.weights, self.plain.biases, strict=True)):
            output = UnrollMinGRU.apply(output, state[:, layer].contiguous(), reset, *weights)  # type: ignore[no-untyped-call]
        return output

"""Recurrent cores off the CPU: few launches. The definition is in `millpond.policies.cores` and `millpond.policies.mingru`.

The inputs of all steps are one product. A step of an LSTM or a GRU is one product and one kernel, which computes the gates and
zeroes the hidden state for the next product where an episode begins; backward likewise. A MinGRU is one scan each way. The
gradients of the weights are one product each, over all steps.

T steps  B sequences  I inputs  H hidden
"""

from __future__ import annotations

import torch
from torch import Tensor

from millpond.devices.kernels import device_kernel
from millpond.policies.gates import (
    gru_gates,
    gru_gates_backward,
    lstm_gates,
    lstm_gates_backward,
    mingru_gates,
    positive,
)

TRITON = "millpond.fast.triton.recurrent"


def zeroed(tensor: Tensor, reset: Tensor | None) -> Tensor:
    """Return [B, H] with zeros where `reset` [B]; None: nowhere."""
    return tensor if reset is None else tensor.masked_fill(reset[:, None], 0)


def states_before(hidden: Tensor, hidden0: Tensor, reset: Tensor) -> Tensor:
    """Return the hidden states [T, B, H] before all steps: those of the preceding step, or zero where reset."""
    return torch.cat((hidden0[None], hidden[:-1])).masked_fill_(reset[..., None], 0)


def accumulating(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


# ---- kernels


@device_kernel(f"{TRITON}:lstm_forward")
def lstm_forward(
    sums: Tensor,
    cell_before: Tensor,
    reset: Tensor | None,
    next_reset: Tensor | None,
    cell: Tensor,
    hidden: Tensor,
    carried: Tensor,
) -> None:
    """Sums [B, 4H] become gates; cell and hidden [B, H] are written, and `carried`, the hidden state for the next step."""
    before = zeroed(cell_before, reset)
    never = torch.zeros(len(sums), dtype=torch.bool, device=sums.device)
    gates, new_cell, new_hidden = lstm_gates(sums, before, never)
    sums.copy_(gates)
    cell.copy_(new_cell)
    hidden.copy_(new_hidden)
    carried.copy_(zeroed(new_hidden, next_reset))


@device_kernel(f"{TRITON}:lstm_backward")
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
    """Write the gradients of the sums [B, 4H]; `d_cell` [B, H] becomes that of the cell before."""
    d_hidden = d_output + zeroed(d_carried, next_reset)
    d_sums, d_before = lstm_gates_backward(gates, cell_before, cell, reset, d_hidden, d_cell)
    d_gates.copy_(d_sums)
    d_cell.copy_(d_before)


@device_kernel(f"{TRITON}:gru_forward")
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
    """Write gates [B, 4H], hidden [B, H] and `carried`, the hidden state for the next step, which may be `before`."""
    new_gates, new_hidden = gru_gates(from_inputs, from_hidden, bias_share, before)
    gates.copy_(new_gates)
    hidden.copy_(new_hidden)
    carried.copy_(zeroed(new_hidden.to(hidden.dtype), next_reset))


@device_kernel(f"{TRITON}:gru_backward")
def gru_backward(
    gates: Tensor,
    hidden_before: Tensor,
    reset: Tensor,
    next_reset: Tensor | None,
    d_output: Tensor,
    d_carried: Tensor,
    d_gates: Tensor,
) -> None:
    """Write the gradients of the sums [B, 4H]; `d_carried` [B, H] becomes that of the hidden state before, past the gates."""
    d_hidden = d_output + zeroed(d_carried, next_reset)
    d_sums, direct = gru_gates_backward(gates, zeroed(hidden_before, reset), d_hidden)
    d_gates.copy_(d_sums)
    d_carried.copy_(direct)


@device_kernel(f"{TRITON}:mingru_forward")
def mingru_forward(
    sums: Tensor, inputs: Tensor, hidden0: Tensor, reset: Tensor | None, hidden: Tensor, output: Tensor
) -> None:
    """Sums [T, B, 3H], inputs [T, B, H], hidden0 [B, H], reset [T, B]: write hidden and output [T, B, H]."""
    wide = accumulating(sums.dtype)
    keep, add, highway = mingru_gates(sums.to(wide))
    state = hidden0.to(wide)
    for t in range(len(sums)):
        state = zeroed(state, None if reset is None else reset[t])
        state = torch.where(keep[t] == 0, 0, keep[t] * state) + add[t]
        hidden[t] = state
        output[t] = highway[t] * state + (1 - highway[t]) * inputs[t]


@device_kernel(f"{TRITON}:mingru_backward")
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
    """Write the gradients of the sums, of the inputs past the gates, and of hidden0."""
    wide = accumulating(sums.dtype)
    candidate, update, highway = sums.to(wide).chunk(3, -1)
    z, s, n = update.sigmoid(), highway.sigmoid(), positive(candidate)
    slope = torch.where(candidate >= 0, torch.ones_like(n), n * (1 - n))
    carried = torch.zeros_like(hidden0, dtype=wide)
    for t in reversed(range(len(sums))):
        d_hidden = s[t] * d_output[t] + carried
        before = zeroed(hidden[t - 1] if t else hidden0, reset[t])
        d_highway = d_output[t] * (hidden[t] - inputs[t].to(wide)) * s[t] * (1 - s[t])
        d_update = d_hidden * (n[t] - before) * z[t] * (1 - z[t])
        d_sums[t] = torch.cat((d_hidden * z[t] * slope[t], d_update, d_highway), -1)
        d_direct[t] = d_output[t] * (1 - s[t])
        carried = zeroed((1 - z[t]) * d_hidden, reset[t])
    d_hidden0.copy_(carried)


# ---- steps, without gradients


def lstm_step(
    features: Tensor, state: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """features [B, I], state [B, 2, H], weights in the dtype of the features -> hidden [B, H], state [B, 2, H]."""
    sums = torch.addmm(bias, features, w_input.t()).addmm_(state[:, 0].to(features.dtype), w_hidden.t())
    hidden, after = sums.new_empty(len(sums), state.shape[-1]), torch.empty_like(state)
    lstm_forward(sums, state[:, 1], None, None, after[:, 1], hidden, after[:, 0])
    return hidden, after


def gru_step(
    features: Tensor, state: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, bias_share: Tensor
) -> tuple[Tensor, Tensor]:
    """features [B, I], state [B, 1, H] -> hidden [B, H], state [B, 1, H]."""
    from_inputs = torch.addmm(bias, features, w_input.t())
    from_hidden = torch.mm(state[:, 0].to(features.dtype), w_hidden.t())
    hidden, after = from_inputs.new_empty(len(state), state.shape[-1]), torch.empty_like(state)
    gates = from_inputs.new_empty(len(state), 4 * state.shape[-1])
    gru_forward(from_inputs, from_hidden, bias_share, None, state[:, 0], gates, hidden, after[:, 0])
    return hidden, after


def mingru_step(features: Tensor, state: Tensor, after: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """features [B, H], state [B, H] of a layer -> output [B, H]; the layer's state after the step is written to `after`."""
    output = torch.empty_like(features)
    sums = torch.addmm(bias, features, weight.t())
    mingru_forward(sums[None], features[None], state, None, after[None], output[None])
    return output


# ---- rows


def lstm_rows(
    inputs: Tensor, hidden0: Tensor, cell0: Tensor, reset: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `cores.lstm_unroll`."""
    (steps, batch), size = reset.shape, hidden0.shape[1]
    gates = torch.addmm(bias, inputs.flatten(0, 1), w_input.t()).view(steps, batch, 4 * size)
    hidden, cell = inputs.new_empty(steps, batch, size), cell0.new_empty(steps, batch, size)
    carried = zeroed(hidden0, reset[0])
    for t in range(steps):
        gates[t].addmm_(carried, w_hidden.t())
        following = reset[t + 1] if t + 1 < steps else None
        lstm_forward(gates[t], cell[t - 1] if t else cell0, reset[t], following, cell[t], hidden[t], carried)
    return hidden, gates, cell


def lstm_rows_backward(
    d_output: Tensor,
    hidden: Tensor,
    gates: Tensor,
    cell: Tensor,
    inputs: Tensor,
    hidden0: Tensor,
    cell0: Tensor,
    reset: Tensor,
    w_input: Tensor,
    w_hidden: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute `cores.lstm_backward`."""
    steps, d_output = len(reset), d_output.contiguous()
    d_gates = torch.empty_like(gates)
    d_cell, d_carried = torch.zeros_like(cell0), torch.zeros_like(hidden0)
    for t in reversed(range(steps)):
        before, following = cell[t - 1] if t else cell0, reset[t + 1] if t + 1 < steps else None
        lstm_backward(gates[t], before, cell[t], reset[t], following, d_output[t], d_carried, d_cell, d_gates[t])
        torch.mm(d_gates[t], w_hidden, out=d_carried)
    flat = d_gates.flatten(0, 1)
    d_inputs = torch.mm(flat, w_input).view_as(inputs)
    d_w_input = torch.mm(flat.t(), inputs.flatten(0, 1))
    d_w_hidden = torch.mm(flat.t(), states_before(hidden, hidden0, reset).flatten(0, 1))
    return d_inputs, zeroed(d_carried, reset[0]), d_cell, d_w_input, d_w_hidden, flat.sum(0)


def gru_rows(
    inputs: Tensor, hidden0: Tensor, reset: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, bias_share: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute `cores.gru_unroll`."""
    (steps, batch), size = reset.shape, hidden0.shape[1]
    from_inputs = torch.addmm(bias, inputs.flatten(0, 1), w_input.t()).view(steps, batch, 3 * size)
    hidden, gates = inputs.new_empty(steps, batch, size), inputs.new_empty(steps, batch, 4 * size)
    from_hidden, carried = inputs.new_empty(batch, 3 * size), zeroed(hidden0, reset[0])
    for t in range(steps):
        torch.mm(carried, w_hidden.t(), out=from_hidden)
        following = reset[t + 1] if t + 1 < steps else None
        gru_forward(from_inputs[t], from_hidden, bias_share, following, carried, gates[t], hidden[t], carried)
    return hidden, gates


def gru_rows_backward(
    d_output: Tensor,
    hidden: Tensor,
    gates: Tensor,
    inputs: Tensor,
    hidden0: Tensor,
    reset: Tensor,
    w_input: Tensor,
    w_hidden: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute `cores.gru_backward`."""
    steps, size, d_output = len(reset), hidden0.shape[1], d_output.contiguous()
    d_gates, d_carried = torch.empty_like(gates), torch.zeros_like(hidden0)
    for t in reversed(range(steps)):
        before, following = hidden[t - 1] if t else hidden0, reset[t + 1] if t + 1 < steps else None
        gru_backward(gates[t], before, reset[t], following, d_output[t], d_carried, d_gates[t])
        d_carried.addmm_(d_gates[t, :, size:], w_hidden)
    flat = d_gates.flatten(0, 1)
    of_inputs, of_hidden, d_bias = flat[:, : 3 * size], flat[:, size:], flat.sum(0)
    d_inputs = torch.mm(of_inputs, w_input).view_as(inputs)
    d_w_input = torch.mm(of_inputs.t(), inputs.flatten(0, 1))
    d_w_hidden = torch.mm(of_hidden.t(), states_before(hidden, hidden0, reset).flatten(0, 1))
    d_hidden0 = zeroed(d_carried, reset[0])
    return d_inputs, d_hidden0, d_w_input, d_w_hidden, d_bias[: 3 * size].clone(), d_bias[3 * size :].clone()


def mingru_rows(
    inputs: Tensor, hidden0: Tensor, reset: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `mingru.mingru_unroll`."""
    sums = torch.addmm(bias, inputs.flatten(0, 1), weight.t()).view(*inputs.shape[:2], -1)
    hidden, output = torch.empty_like(inputs), torch.empty_like(inputs)
    mingru_forward(sums, inputs, hidden0, reset, hidden, output)
    return output, sums, hidden


def mingru_rows_backward(
    d_output: Tensor, sums: Tensor, hidden: Tensor, inputs: Tensor, hidden0: Tensor, reset: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute `mingru.mingru_backward`."""
    d_sums, d_inputs, d_hidden0 = torch.empty_like(sums), torch.empty_like(inputs), torch.empty_like(hidden0)
    mingru_backward(sums, hidden, inputs, hidden0, reset, d_output.contiguous(), d_sums, d_inputs, d_hidden0)
    flat = d_sums.flatten(0, 1)
    d_inputs.flatten(0, 1).addmm_(flat, weight)
    return d_inputs, d_hidden0, torch.mm(flat.t(), inputs.flatten(0, 1)), flat.sum(0)

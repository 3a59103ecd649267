"""Cores: the memory between encoder and heads. LSTM and GRU whose state can be reset anywhere inside a row, and none.

LSTM:   i, f, o = sigmoid(W x_t + U h + b)      g = tanh(W x_t + U h + b)       (h, c) zeroed first where reset_t
        c_t = f * c + i * g                     h_t = o * tanh(c_t)

GRU:    r, z = sigmoid(W x_t + U h + b)         n = tanh(W x_t + b + r * (U h + b'))        h zeroed first where reset_t
        h_t  = (1 - z) * n + z * h

nn.LSTM and nn.GRU cannot reset inside a row, and a loop over their cells builds a graph of some twenty nodes per step. Here
an unrolled row is one operation with its own backward pass (backpropagation through time): a step is two matrix products and
one pass over the gates, and the gradients of the weights are one product per block of steps. torch.compile sees one node.

T steps  B sequences  I inputs  H hidden  S state vectors (lstm 2, gru 1, none 0)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.policies import device_cores
from millpond.policies.gates import gru_gates, gru_gates_backward, lstm_gates, lstm_gates_backward

BLOCK = 1_024  # sequence steps per product of the backward pass: 2 MB of gates at H = 128


class Core(Protocol):
    """`step` acts, without gradients; `unroll` learns from rows of T steps."""

    states: int

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw initial weights from `generator`."""

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, H], state [B, S, H] -> hidden [B, H], state [B, S, H]."""

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """features [T, B, H], state [B, S, H], reset [T, B] -> hidden [T, B, H].

        Where `reset`, the state is zeroed before the step.
        """


class LSTM(nn.Module):
    """One layer. The state [B, 2, H] is the hidden state and the cell, in float32. Gates: i, f, g, o."""

    states = 2

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.w_input = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.w_hidden = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(4 * hidden_size))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw orthogonal weights; the forget gate starts open (bias 1), so that early gradients reach far back."""
        nn.init.orthogonal_(self.w_input, generator=generator)
        nn.init.orthogonal_(self.w_hidden, generator=generator)
        nn.init.zeros_(self.bias)
        size = self.bias.shape[0] // 4
        with torch.no_grad():
            self.bias[size : 2 * size] = 1.0

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, H], state [B, 2, H] -> hidden [B, H], state [B, 2, H]."""
        if features.device.type != "cpu":
            stepped: tuple[Tensor, Tensor] = lstm_step(
                *_in_dtype(features, self.w_input, self.w_hidden, self.bias), state
            )
            return stepped
        sums = F.linear(features, self.w_input, self.bias) + F.linear(state[:, 0], self.w_hidden)
        never = torch.zeros(state.shape[0], dtype=torch.bool, device=state.device)
        _, cell, hidden = lstm_gates(sums, state[:, 1], never)
        return hidden, torch.stack((hidden.to(state.dtype), cell), 1)

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """features [T, B, H], state [B, 2, H], reset [T, B] -> hidden [T, B, H]."""
        dtype = computing_dtype(features)
        hidden: Tensor = lstm_unroll(
            features.to(dtype).contiguous(),
            state[:, 0].to(dtype).contiguous(),
            state[:, 1].contiguous(),
            reset.contiguous(),
            *(weight.to(dtype) for weight in (self.w_input, self.w_hidden, self.bias)),
        )[0]
        return hidden


class GRU(nn.Module):
    """One layer. The state [B, 1, H] is the hidden state, in float32.

    Saved gates [B, 4H]: n, r, z, and the share of the hidden state in n, U h + b'. The sums from the inputs [B, 3H] are
    those of n, r, z; from the hidden state [B, 3H] those of r, z, n. So the gradients of both are three neighbouring
    quarters of one array.
    """

    states = 1

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.w_input = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        self.w_hidden = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(3 * hidden_size))
        self.bias_share = nn.Parameter(torch.empty(hidden_size))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw orthogonal weights; the update gate starts by keeping (bias 1), so that early gradients reach far back."""
        nn.init.orthogonal_(self.w_input, generator=generator)
        nn.init.orthogonal_(self.w_hidden, generator=generator)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.bias_share)
        size = self.bias_share.shape[0]
        with torch.no_grad():
            self.bias[2 * size :] = 1.0  # z, the last of n, r, z

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, H], state [B, 1, H] -> hidden [B, H], state [B, 1, H]."""
        if features.device.type != "cpu":
            stepped: tuple[Tensor, Tensor] = gru_step(
                *_in_dtype(features, self.w_input, self.w_hidden, self.bias, self.bias_share), state
            )
            return stepped
        from_inputs = F.linear(features, self.w_input, self.bias)
        from_hidden = F.linear(state[:, 0], self.w_hidden)
        _, hidden = gru_gates(from_inputs, from_hidden, self.bias_share, state[:, 0])
        return hidden, hidden[:, None].to(state.dtype)

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """features [T, B, H], state [B, 1, H], reset [T, B] -> hidden [T, B, H]."""
        dtype = computing_dtype(features)
        hidden: Tensor = gru_unroll(
            features.to(dtype).contiguous(),
            state[:, 0].to(dtype).contiguous(),
            reset.contiguous(),
            *(weight.to(dtype) for weight in (self.w_input, self.w_hidden, self.bias, self.bias_share)),
        )[0]
        return hidden


class Feedforward(nn.Module):
    """No memory: one more hidden layer, so that the heads see more than a linear map of the observation."""

    states = 0

    def __init__(self, hidden_size: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        self.activation = activation

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.orthogonal_(self.linear.weight, 2**0.5, generator=generator)
        nn.init.zeros_(self.linear.bias)

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.activation(self.linear(features)), state

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        hidden: Tensor = self.activation(self.linear(features))
        return hidden


def computing_dtype(features: Tensor) -> torch.dtype:
    """Return the dtype of matrix products: that of autocast if it is on, else that of the features."""
    kind = features.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype


def _in_dtype(features: Tensor, *weights: Tensor) -> list[Tensor]:
    dtype = computing_dtype(features)
    return [tensor.to(dtype) for tensor in (features, *weights)]


def blocks_backward(steps: int, batch: int, block: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Yield ranges [start, stop) of steps, last first, of about `block` sequence steps each."""
    length = max(1, block // batch)
    for stop in range(steps, 0, -length):
        yield max(0, stop - length), stop


def states_before(hidden: Tensor, hidden0: Tensor, reset: Tensor, start: int, stop: int) -> Tensor:
    """Return the hidden states before steps start..stop-1: those of the preceding step, or zero where reset."""
    before = hidden[start - 1 : stop - 1] if start else torch.cat((hidden0[None], hidden[: stop - 1]))
    return before.masked_fill(reset[start:stop, :, None], 0)


# ---- LSTM, forward and backward


@torch.library.custom_op("millpond::lstm", mutates_args=())
def lstm_unroll(
    inputs: Tensor, hidden0: Tensor, cell0: Tensor, reset: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """inputs [T, B, I], hidden0 and cell0 [B, H], reset [T, B], weights [4H, I] and [4H, H], bias [4H]
    -> hidden [T, B, H], and for the backward pass gates [T, B, 4H] and cell [T, B, H].
    """
    if inputs.device.type != "cpu":
        return device_cores.lstm_rows(inputs, hidden0, cell0, reset, w_input, w_hidden, bias)
    steps, batch = reset.shape
    size = hidden0.shape[1]
    hidden = inputs.new_empty(steps, batch, size)
    gates = inputs.new_empty(steps, batch, 4 * size)
    cell = cell0.new_empty(steps, batch, size)
    for t in range(steps):
        hidden_before = (hidden[t - 1] if t else hidden0).masked_fill(reset[t, :, None], 0)
        torch.addmm(bias, inputs[t], w_input.t(), out=gates[t])
        gates[t].addmm_(hidden_before, w_hidden.t())
        gates[t], cell[t], hidden[t] = lstm_gates(gates[t], cell[t - 1] if t else cell0, reset[t])
    return hidden, gates, cell


@torch.library.custom_op("millpond::lstm_step", mutates_args=())
def lstm_step(
    features: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """features [B, I], weights, bias, state [B, 2, H] -> hidden [B, H], state: a step on a device."""
    return device_cores.lstm_step(features, state, w_input, w_hidden, bias)


@lstm_step.register_fake
def _(features: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return features.new_empty(len(features), state.shape[-1]), torch.empty_like(state)


@lstm_unroll.register_fake
def _(
    inputs: Tensor, hidden0: Tensor, cell0: Tensor, reset: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    (steps, batch), size = reset.shape, hidden0.shape[1]
    cell = cell0.new_empty(steps, batch, size)
    return inputs.new_empty(steps, batch, size), inputs.new_empty(steps, batch, 4 * size), cell


@torch.library.custom_op("millpond::lstm_backward", mutates_args=())
def lstm_backward(
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
    """Gradients of inputs, hidden0, cell0, w_input, w_hidden, bias from that of the hidden states [T, B, H].

    Gradients of the gates are held for one block of steps at a time.
    """
    if inputs.device.type != "cpu":
        return device_cores.lstm_rows_backward(
            d_output, hidden, gates, cell, inputs, hidden0, cell0, reset, w_input, w_hidden
        )
    d_inputs = torch.empty_like(inputs)
    d_w_input, d_w_hidden = torch.zeros_like(w_input), torch.zeros_like(w_hidden)
    d_bias = torch.zeros_like(w_hidden[:, 0])
    d_cell, d_before = torch.zeros_like(cell0), torch.zeros_like(hidden0)
    for start, stop in blocks_backward(*reset.shape):
        d_gates = gates.new_empty(stop - start, *gates.shape[1:])
        for t in reversed(range(start, stop)):
            d_sums, d_cell = lstm_gates_backward(
                gates[t], cell[t - 1] if t else cell0, cell[t], reset[t], d_output[t] + d_before, d_cell
            )
            d_gates[t - start] = d_sums
            torch.mm(d_gates[t - start], w_hidden, out=d_before)
            d_before.masked_fill_(reset[t, :, None], 0)
        flat = d_gates.flatten(0, 1)
        torch.mm(flat, w_input, out=d_inputs[start:stop].flatten(0, 1))
        d_w_input.addmm_(flat.t(), inputs[start:stop].flatten(0, 1))
        d_w_hidden.addmm_(flat.t(), states_before(hidden, hidden0, reset, start, stop).flatten(0, 1))
        d_bias += flat.sum(0)
    return d_inputs, d_before, d_cell, d_w_input, d_w_hidden, d_bias


@lstm_backward.register_fake
def _(
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
    like = torch.empty_like
    return like(inputs), like(hidden0), like(cell0), like(w_input), like(w_hidden), like(w_hidden[:, 0])


def _save_lstm(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    features, hidden0, cell0, reset, w_input, w_hidden, _ = inputs
    ctx.set_materialize_grads(False)  # otherwise zeros are allocated as gradients of gates and cell
    ctx.save_for_backward(*output, features, hidden0, cell0, reset, w_input, w_hidden)


def _lstm_gradients(ctx: Any, d_hidden: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
    if d_hidden is None:
        return (None,) * 7
    d_inputs, d_hidden0, d_cell0, *d_weights = lstm_backward(d_hidden, *ctx.saved_tensors)
    return d_inputs, d_hidden0, d_cell0, None, *d_weights


lstm_unroll.register_autograd(_lstm_gradients, setup_context=_save_lstm)


# ---- GRU, forward and backward


@torch.library.custom_op("millpond::gru", mutates_args=())
def gru_unroll(
    inputs: Tensor, hidden0: Tensor, reset: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, bias_share: Tensor
) -> tuple[Tensor, Tensor]:
    """inputs [T, B, I], hidden0 [B, H], reset [T, B], weights [3H, I] and [3H, H], biases [3H] and [H]
    -> hidden [T, B, H], and for the backward pass gates [T, B, 4H].
    """
    if inputs.device.type != "cpu":
        return device_cores.gru_rows(inputs, hidden0, reset, w_input, w_hidden, bias, bias_share)
    steps, batch = reset.shape
    size = hidden0.shape[1]
    hidden = inputs.new_empty(steps, batch, size)
    gates = inputs.new_empty(steps, batch, 4 * size)
    for t in range(steps):
        before = (hidden[t - 1] if t else hidden0).masked_fill(reset[t, :, None], 0)
        from_inputs, from_hidden = torch.addmm(bias, inputs[t], w_input.t()), torch.mm(before, w_hidden.t())
        gates[t], hidden[t] = gru_gates(from_inputs, from_hidden, bias_share, before)
    return hidden, gates


@torch.library.custom_op("millpond::gru_step", mutates_args=())
def gru_step(
    features: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, bias_share: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """features [B, I], weights, biases, state [B, 1, H] -> hidden [B, H], state: a step on a device."""
    return device_cores.gru_step(features, state, w_input, w_hidden, bias, bias_share)


@gru_step.register_fake
def _(
    features: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, bias_share: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    return features.new_empty(len(features), state.shape[-1]), torch.empty_like(state)


@gru_unroll.register_fake
def _(
    inputs: Tensor, hidden0: Tensor, reset: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, bias_share: Tensor
) -> tuple[Tensor, Tensor]:
    (steps, batch), size = reset.shape, hidden0.shape[1]
    return inputs.new_empty(steps, batch, size), inputs.new_empty(steps, batch, 4 * size)


@torch.library.custom_op("millpond::gru_backward", mutates_args=())
def gru_backward(
    d_output: Tensor,
    hidden: Tensor,
    gates: Tensor,
    inputs: Tensor,
    hidden0: Tensor,
    reset: Tensor,
    w_input: Tensor,
    w_hidden: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of inputs, hidden0, w_input, w_hidden, bias, bias_share from that of the hidden states [T, B, H]."""
    if inputs.device.type != "cpu":
        return device_cores.gru_rows_backward(d_output, hidden, gates, inputs, hidden0, reset, w_input, w_hidden)
    size = hidden0.shape[1]
    d_inputs = torch.empty_like(inputs)
    d_w_input, d_w_hidden = torch.zeros_like(w_input), torch.zeros_like(w_hidden)
    d_bias, d_before = hidden0.new_zeros(4 * size), torch.zeros_like(hidden0)
    for start, stop in blocks_backward(*reset.shape):
        d_gates = gates.new_empty(stop - start, *gates.shape[1:])
        for t in reversed(range(start, stop)):
            before = (hidden[t - 1] if t else hidden0).masked_fill(reset[t, :, None], 0)
            d_gates[t - start], direct = gru_gates_backward(gates[t], before, d_output[t] + d_before)
            torch.addmm(direct, d_gates[t - start, :, size:], w_hidden, out=d_before)
            d_before.masked_fill_(reset[t, :, None], 0)
        flat = d_gates.flatten(0, 1)
        torch.mm(flat[:, : 3 * size], w_input, out=d_inputs[start:stop].flatten(0, 1))
        d_w_input.addmm_(flat[:, : 3 * size].t(), inputs[start:stop].flatten(0, 1))
        d_w_hidden.addmm_(flat[:, size:].t(), states_before(hidden, hidden0, reset, start, stop).flatten(0, 1))
        d_bias += flat.sum(0)
    return d_inputs, d_before, d_w_input, d_w_hidden, d_bias[: 3 * size].clone(), d_bias[3 * size :].clone()


@gru_backward.register_fake
def _(
    d_output: Tensor,
    hidden: Tensor,
    gates: Tensor,
    inputs: Tensor,
    hidden0: Tensor,
    reset: Tensor,
    w_input: Tensor,
    w_hidden: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    like, size = torch.empty_like, hidden0.shape[1]
    bias, bias_share = hidden0.new_empty(3 * size), hidden0.new_empty(size)
    return like(inputs), like(hidden0), like(w_input), like(w_hidden), bias, bias_share


def _save_gru(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    features, hidden0, reset, w_input, w_hidden, _, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, features, hidden0, reset, w_input, w_hidden)


def _gru_gradients(ctx: Any, d_hidden: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
    if d_hidden is None:
        return (None,) * 7
    d_inputs, d_hidden0, *d_weights = gru_backward(d_hidden, *ctx.saved_tensors)
    return d_inputs, d_hidden0, None, *d_weights


gru_unroll.register_autograd(_gru_gradients, setup_context=_save_gru)

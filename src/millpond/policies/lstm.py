"""An LSTM whose state can be reset anywhere inside a row, as one operation with its own way back.

    i, f, o = sigmoid(W x_t + U h + b)      g = tanh(W x_t + U h + b)       (h, c) zeroed first where reset_t
    c_t = f * c + i * g                     h_t = o * tanh(c_t)

nn.LSTM cannot reset inside a row, and a loop of nn.LSTMCell builds a graph of some twenty nodes a step. Here a step
is two matrix products and one pass over the gates, and the gradients of the weights are one product a block of steps.
On the CPU in float32 all steps of a row are one compiled call (`lstm_rows`), or, without a BLAS to call from there, the
passes over the gates are (`lstm_kernels`); elsewhere it is plain torch.

T steps  B sequences  I inputs  H hidden
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.policies import lstm_kernels as kernels
from millpond.policies import lstm_rows, products
from millpond.policies.precision import computing_dtype, is_fused_for, is_fused_now
from millpond.policies.threads import in_threads, one_each
from millpond.policies.unrolling import BLOCK, blocks_backward, carried_states

LEAST = 4  # sequences for which another thread is worth waking


def gates_forward_plain(gates: Tensor, before: Tensor, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums [B, 4H] and the cell before [B, H] -> activated gates, cell, hidden."""
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cell = f * before.masked_fill(reset[:, None], 0) + i.to(before.dtype) * g
    hidden = (o * cell.tanh()).to(gates.dtype)
    return torch.cat((i, f, g, o), 1), cell, hidden


def gates_backward_plain(
    gates: Tensor, before: Tensor, cell: Tensor, reset: Tensor, d_hidden: Tensor, d_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of hidden and cell [B, H] -> gradients of the sums [B, 4H] and of the cell before [B, H]."""
    i, f, g, o = gates.to(cell.dtype).chunk(4, 1)
    squashed = cell.tanh()
    d_cell = d_cell + d_hidden * o * (1 - squashed * squashed)
    old = before.masked_fill(reset[:, None], 0)
    di, df = d_cell * g * i * (1 - i), d_cell * old * f * (1 - f)
    dg, do = d_cell * i * (1 - g * g), d_hidden * squashed * o * (1 - o)
    return torch.cat((di, df, dg, do), 1), (d_cell * f).masked_fill(reset[:, None], 0)


@torch.library.custom_op("millpond::lstm", mutates_args=())
def lstm_unroll(
    inputs: Tensor, hidden0: Tensor, cell0: Tensor, reset: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """inputs [T, B, I], hidden0 and cell0 [B, H], reset [T, B], weights [4H, I] and [4H, H], bias [4H]
    -> hidden [T, B, H], and for the way back gates [T, B, 4H] and cell [T, B, H].
    """
    steps, batch = reset.shape
    size = hidden0.shape[1]
    hidden = inputs.new_empty(steps, batch, size)
    gates = inputs.new_empty(steps, batch, 4 * size)
    cell = cell0.new_empty(steps, batch, size)
    fused = is_fused_for(inputs)
    if fused and products.SGEMM:
        given = inputs, hidden0, cell0, reset, w_input, w_hidden, bias
        arrays = (tensor.contiguous().numpy() for tensor in (*given, hidden, gates, cell))
        lstm_rows.rows_forward(products.SGEMM, *arrays)
        return hidden, gates, cell
    carried = hidden0.masked_fill(reset[0, :, None], 0)  # the hidden state that the next step begins with
    w_input_t, w_hidden_t = w_input.t(), w_hidden.t()
    for t in range(steps):
        before = cell[t - 1] if t else cell0
        reset_after = reset[min(t + 1, steps - 1)]
        torch.addmm(bias, inputs[t], w_input_t, out=gates[t])
        gates[t].addmm_(carried, w_hidden_t)
        if fused:
            kernels.gates_forward(
                gates[t].numpy(),
                before.numpy(),
                reset[t].numpy(),
                reset_after.numpy(),
                cell[t].numpy(),
                hidden[t].numpy(),
                carried.numpy(),
            )
        else:
            gates[t], cell[t], hidden[t] = gates_forward_plain(gates[t], before, reset[t])
            carried = hidden[t].masked_fill(reset_after[:, None], 0)
    return hidden, gates, cell


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

    The gradients of the gates are needed for a block of steps at a time only, so that they stay in the cache.
    """
    d_output = d_output.contiguous()
    d_inputs = torch.empty_like(inputs)
    d_w_input, d_w_hidden = torch.zeros_like(w_input), torch.zeros_like(w_hidden)
    d_bias = torch.zeros_like(w_hidden[:, 0])
    d_cell, d_carried = torch.zeros_like(cell0), torch.zeros_like(hidden0)
    fused = is_fused_for(inputs)
    if fused and products.SGEMM:
        given = d_output, hidden, gates, cell, inputs, hidden0, cell0, reset, w_input, w_hidden
        found = d_inputs, d_carried, d_cell, d_w_input, d_w_hidden, d_bias
        length = min(len(reset), max(1, lstm_rows.BLOCK // reset.shape[1]))
        in_hand = gates.new_empty(length, *gates.shape[1:]), hidden.new_empty(length, *hidden.shape[1:])
        arrays = (tensor.contiguous().numpy() for tensor in (*given, *found, *in_hand))
        lstm_rows.rows_backward(products.SGEMM, *arrays)
        return found
    never = torch.zeros_like(reset[0])
    for start, stop in blocks_backward(*reset.shape):
        d_gates = gates.new_empty(stop - start, *gates.shape[1:])
        for t in reversed(range(start, stop)):
            before = cell[t - 1] if t else cell0
            reset_after = reset[t + 1] if t + 1 < reset.shape[0] else never
            if fused:
                kernels.gates_backward(
                    gates[t].numpy(),
                    before.numpy(),
                    cell[t].numpy(),
                    reset[t].numpy(),
                    reset_after.numpy(),
                    d_output[t].numpy(),
                    d_carried.numpy(),
                    d_cell.numpy(),
                    d_gates[t - start].numpy(),
                )
            else:
                d_hidden = d_output[t] + d_carried.masked_fill(reset_after[:, None], 0)
                d_sums, d_cell = gates_backward_plain(gates[t], before, cell[t], reset[t], d_hidden, d_cell)
                d_gates[t - start] = d_sums
            torch.mm(d_gates[t - start], w_hidden, out=d_carried)
        flat = d_gates.flatten(0, 1)
        torch.mm(flat, w_input, out=d_inputs[start:stop].flatten(0, 1))
        d_w_input.addmm_(flat.t(), inputs[start:stop].flatten(0, 1))
        d_w_hidden.addmm_(flat.t(), carried_states(hidden, hidden0, reset, start, stop).flatten(0, 1))
        d_bias += flat.sum(0)
    return d_inputs, d_carried.masked_fill(reset[0, :, None], 0), d_cell, d_w_input, d_w_hidden, d_bias


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


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    features, hidden0, cell0, reset, w_input, w_hidden, _ = inputs
    ctx.set_materialize_grads(False)  # or zeros would be made for the gradients of what is only kept for the way back
    ctx.save_for_backward(*output, features, hidden0, cell0, reset, w_input, w_hidden)


def _backward(ctx: Any, d_hidden: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
    if d_hidden is None:
        return (None,) * 7
    d_inputs, d_hidden0, d_cell0, *d_weights = lstm_backward(d_hidden, *ctx.saved_tensors)
    return d_inputs, d_hidden0, d_cell0, None, *d_weights


lstm_unroll.register_autograd(_backward, setup_context=_save)


class _Rows(torch.autograd.Function):
    """`lstm_unroll` in float32 on the CPU, where each thread takes some of the sequences through all of their steps."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        inputs, hidden0, cell0, reset, w_input, w_hidden, bias = (tensor.detach().numpy() for tensor in given)
        steps, batch = reset.shape
        size = hidden0.shape[1]
        hidden = np.empty((steps, batch, size), np.float32)

        def piece(first: int, last: int) -> Any:
            shape, alone = (steps, last - first), last - first == batch
            kept = (
                inputs if alone else np.empty((*shape, inputs.shape[2]), np.float32),
                reset if alone else np.empty(shape, np.bool_),
                hidden if alone else np.empty((*shape, size), np.float32),
                np.empty((*shape, 4 * size), np.float32),
                np.empty((*shape, size), np.float32),
            )
            begun = inputs, hidden0, cell0, reset, w_input, w_hidden, bias, hidden
            lstm_rows.piece_forward(products.SGEMM, first, last, *begun, *kept)
            return first, last, kept

        ctx.kept = in_threads(piece, batch, LEAST)
        ctx.begun = hidden0, cell0, w_input, w_hidden
        return torch.from_numpy(hidden)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        hidden0, cell0, w_input, w_hidden = ctx.begun
        d_hidden = d_output.contiguous().numpy()
        d_inputs = np.empty((*d_hidden.shape[:2], w_input.shape[1]), np.float32)
        d_hidden0, d_cell0 = np.empty_like(hidden0), np.zeros_like(cell0)

        def piece(first: int, last: int, kept: Any) -> Any:
            d_weights = np.zeros_like(w_input), np.zeros_like(w_hidden), np.zeros_like(w_hidden[:, 0])
            found = d_inputs, d_hidden0, d_cell0, *d_weights
            lstm_rows.piece_backward(products.SGEMM, first, last, d_hidden, *ctx.begun, *kept, *found)  # type: ignore[call-arg]
            return d_weights

        # Gradients of weights are added up in the order of the sequences, so that a run repeats.
        d_weights, *others = one_each((partial(piece, *of_piece) for of_piece in ctx.kept), len(ctx.kept))
        for other in others:
            for total, more in zip(d_weights, other, strict=True):
                total += more
        d_state, d_all_weights = map(torch.from_numpy, (d_hidden0, d_cell0)), map(torch.from_numpy, d_weights)
        return torch.from_numpy(d_inputs), *d_state, None, *d_all_weights


class LSTM(nn.Module):
    """One layer. The state [B, 2, H] is the hidden state and the cell, in float32."""

    states = 2

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.w_input = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.w_hidden = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(4 * hidden_size))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Orthogonal weights; the forget gate begins open (bias 1), so that early gradients reach far back."""
        nn.init.orthogonal_(self.w_input, generator=generator)
        nn.init.orthogonal_(self.w_hidden, generator=generator)
        nn.init.zeros_(self.bias)
        size = self.bias.shape[0] // 4
        with torch.no_grad():
            self.bias[size : 2 * size] = 1.0

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, H], state [B, 2, H] -> hidden [B, H], state [B, 2, H]."""
        if is_fused_now(features) and computing_dtype(features) == torch.float32:
            return self._step_fused(features, state.contiguous())
        gates = F.linear(features, self.w_input, self.bias) + F.linear(state[:, 0], self.w_hidden)
        never = torch.zeros(state.shape[0], dtype=torch.bool, device=state.device)
        _, cell, hidden = gates_forward_plain(gates, state[:, 1], never)
        return hidden, torch.stack((hidden.to(state.dtype), cell), 1)

    def _step_fused(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        after = torch.empty_like(state)
        if products.SGEMM:
            weights = self.w_input.detach(), self.w_hidden.detach(), self.bias.detach()
            given = (tensor.numpy() for tensor in (features.contiguous(), *weights))
            not_packed = (lstm_rows.NO_PANELS,) * 2
            lstm_rows.act_forward(products.SGEMM, *given, *not_packed, state.numpy(), after.numpy())  # type: ignore[call-arg]
            return after[:, 0], after
        gates = features.new_empty(min(len(features), BLOCK), self.bias.shape[0])
        w_input_t, w_hidden_t = self.w_input.t(), self.w_hidden.t()
        for start in range(0, len(features), BLOCK):  # so that the gates stay in the cache
            part = slice(start, min(start + BLOCK, len(features)))
            sums = gates[: part.stop - start]
            torch.addmm(self.bias, features[part], w_input_t, out=sums)
            sums.addmm_(state[part, 0], w_hidden_t)
            kernels.step_forward(sums.numpy(), state[part].numpy(), after[part].numpy())
        return after[:, 0], after

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """features [T, B, H], state [B, 2, H], reset [T, B] -> hidden [T, B, H]."""
        dtype = computing_dtype(features)
        weights = (self.w_input.to(dtype), self.w_hidden.to(dtype), self.bias.to(dtype))
        hidden0, cell0 = state[:, 0].to(dtype).contiguous(), state[:, 1].contiguous()
        given = features.to(dtype).contiguous(), hidden0, cell0, reset.contiguous(), *weights
        if is_fused_for(given[0]) and products.SGEMM and not torch.compiler.is_compiling():
            return _Rows.apply(*given)  # type: ignore[no-any-return, no-untyped-call]
        hidden: Tensor = lstm_unroll(*given)[0]
        return hidden

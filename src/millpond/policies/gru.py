"""A GRU whose state can be reset anywhere inside a row, as one operation with its own way back.

    r, z = sigmoid(W x_t + U h + b)        n = tanh(W x_t + b + r * (U h + b'))       (h zeroed first where reset_t)
    h_t  = (1 - z) * n + z * h

The order of the gates and why it is so: `gru_kernels`. The rest is as in `lstm`.

T steps  B sequences  I inputs  H hidden
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.policies import gru_kernels as kernels
from millpond.policies.precision import computing_dtype, is_fused_for, is_fused_now
from millpond.policies.unrolling import BLOCK, blocks_backward, carried_states


def gates_forward_plain(
    from_inputs: Tensor, from_hidden: Tensor, bias: Tensor, carried: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums [B, 3H] twice, the candidate's bias [H], the hidden state before [B, H] -> saved gates [B, 4H], hidden."""
    in_n, in_r, in_z = from_inputs.chunk(3, 1)
    hid_r, hid_z, hid_n = from_hidden.chunk(3, 1)
    r, z, share = (in_r + hid_r).sigmoid(), (in_z + hid_z).sigmoid(), hid_n + bias
    n = (in_n + r * share).tanh()
    return torch.cat((n, r, z, share), 1), n + z * (carried - n)


def gates_backward_plain(gates: Tensor, before: Tensor, d_hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of hidden [B, H] -> gradients of the sums [B, 4H], and of the hidden state before, past the gates."""
    n, r, z, share = gates.chunk(4, 1)
    dn = d_hidden * (1 - z) * (1 - n * n)
    dz = d_hidden * (before - n) * z * (1 - z)
    return torch.cat((dn, dn * share * r * (1 - r), dz, dn * r), 1), d_hidden * z


@torch.library.custom_op("millpond::gru", mutates_args=())
def gru_unroll(
    inputs: Tensor, hidden0: Tensor, reset: Tensor, w_input: Tensor, w_hidden: Tensor, bias: Tensor, bias_share: Tensor
) -> tuple[Tensor, Tensor]:
    """inputs [T, B, I], hidden0 [B, H], reset [T, B], weights [3H, I] and [3H, H], biases [3H] and [H]
    -> hidden [T, B, H], and for the way back gates [T, B, 4H]."""
    steps, batch = reset.shape
    size = hidden0.shape[1]
    hidden = inputs.new_empty(steps, batch, size)
    gates = inputs.new_empty(steps, batch, 4 * size)
    from_inputs, from_hidden = inputs.new_empty(batch, 3 * size), inputs.new_empty(batch, 3 * size)
    carried = hidden0.masked_fill(reset[0, :, None], 0)  # the hidden state that the next step begins with
    w_input_t, w_hidden_t = w_input.t(), w_hidden.t()
    fused = is_fused_for(inputs)
    for t in range(steps):
        reset_after = reset[min(t + 1, steps - 1)]
        torch.addmm(bias, inputs[t], w_input_t, out=from_inputs)
        torch.mm(carried, w_hidden_t, out=from_hidden)
        if fused:
            kernels.gates_forward(
                from_inputs.numpy(),
                from_hidden.numpy(),
                bias_share.numpy(),
                carried.numpy(),
                reset_after.numpy(),
                gates[t].numpy(),
                hidden[t].numpy(),
            )
        else:
            gates[t], hidden[t] = gates_forward_plain(from_inputs, from_hidden, bias_share, carried)
            carried = hidden[t].masked_fill(reset_after[:, None], 0)
    return hidden, gates


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
    d_output = d_output.contiguous()
    size = hidden0.shape[1]
    d_inputs = torch.empty_like(inputs)
    d_w_input, d_w_hidden = torch.zeros_like(w_input), torch.zeros_like(w_hidden)
    d_bias = hidden0.new_zeros(4 * size)
    d_carried, d_before = torch.zeros_like(hidden0), torch.empty_like(hidden0)
    fused = is_fused_for(inputs)
    for start, stop in blocks_backward(*reset.shape):
        d_gates = gates.new_empty(stop - start, *gates.shape[1:])
        for t in reversed(range(start, stop)):
            d_hidden = d_output[t] + d_carried
            before = hidden[t - 1] if t else hidden0
            if fused:
                kernels.gates_backward(
                    gates[t].numpy(),
                    before.numpy(),
                    reset[t].numpy(),
                    d_hidden.numpy(),
                    d_before.numpy(),
                    d_gates[t - start].numpy(),
                )
            else:
                began = before.masked_fill(reset[t, :, None], 0)
                d_gates[t - start], d_before = gates_backward_plain(gates[t], began, d_hidden)
            torch.addmm(d_before, d_gates[t - start, :, size:], w_hidden, out=d_carried)
            d_carried.masked_fill_(reset[t, :, None], 0)
        flat = d_gates.flatten(0, 1)
        torch.mm(flat[:, : 3 * size], w_input, out=d_inputs[start:stop].flatten(0, 1))
        d_w_input.addmm_(flat[:, : 3 * size].t(), inputs[start:stop].flatten(0, 1))
        d_w_hidden.addmm_(flat[:, size:].t(), carried_states(hidden, hidden0, reset, start, stop).flatten(0, 1))
        d_bias += flat.sum(0)
    return d_inputs, d_carried, d_w_input, d_w_hidden, d_bias[: 3 * size].clone(), d_bias[3 * size :].clone()


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


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    features, hidden0, reset, w_input, w_hidden, _, _ = inputs
    ctx.set_materialize_grads(False)  # or zeros would be made for the gradients of what is only kept for the way back
    ctx.save_for_backward(*output, features, hidden0, reset, w_input, w_hidden)


def _backward(ctx: Any, d_hidden: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
    if d_hidden is None:
        return (None,) * 7
    d_inputs, d_hidden0, *d_weights = gru_backward(d_hidden, *ctx.saved_tensors)
    return d_inputs, d_hidden0, None, *d_weights


gru_unroll.register_autograd(_backward, setup_context=_save)


class GRU(nn.Module):
    """One layer. The state [B, 1, H] is the hidden state, in float32."""

    states = 1

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.w_input = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        self.w_hidden = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(3 * hidden_size))
        self.bias_share = nn.Parameter(torch.empty(hidden_size))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Orthogonal weights; the update gate begins by keeping (bias 1), so that early gradients reach far back."""
        nn.init.orthogonal_(self.w_input, generator=generator)
        nn.init.orthogonal_(self.w_hidden, generator=generator)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.bias_share)
        size = self.bias_share.shape[0]
        with torch.no_grad():
            self.bias[2 * size :] = 1.0  # of n, r, z the last

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, H], state [B, 1, H] -> hidden [B, H], state [B, 1, H]."""
        if is_fused_now(features) and computing_dtype(features) == torch.float32:
            return self._step_fused(features, state)
        from_inputs = F.linear(features, self.w_input, self.bias)
        from_hidden = F.linear(state[:, 0], self.w_hidden)
        _, hidden = gates_forward_plain(from_inputs, from_hidden, self.bias_share, state[:, 0])
        return hidden, hidden[:, None].to(state.dtype)

    def _step_fused(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        batch, size = features.shape
        after = state.clone(memory_format=torch.contiguous_format)
        hidden = after.view(batch, size)
        rows = min(batch, BLOCK)
        from_inputs, from_hidden = features.new_empty(rows, 3 * size), features.new_empty(rows, 3 * size)
        gates, spare = features.new_empty(rows, 4 * size).numpy(), features.new_empty(rows, size).numpy()
        never = torch.zeros(rows, dtype=torch.bool).numpy()
        w_input_t, w_hidden_t, bias_share = self.w_input.t(), self.w_hidden.t(), self.bias_share.detach().numpy()
        for start in range(0, batch, BLOCK):  # so that the gates stay in the cache
            part = slice(start, min(start + BLOCK, batch))
            count = part.stop - start
            sums_inputs, sums_hidden = from_inputs[:count], from_hidden[:count]
            torch.addmm(self.bias, features[part], w_input_t, out=sums_inputs)
            torch.mm(hidden[part], w_hidden_t, out=sums_hidden)
            sums = sums_inputs.numpy(), sums_hidden.numpy(), bias_share
            kernels.gates_forward(*sums, hidden[part].numpy(), never[:count], gates[:count], spare[:count])
        return hidden, after

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """features [T, B, H], state [B, 1, H], reset [T, B] -> hidden [T, B, H]."""
        dtype = computing_dtype(features)
        weights = (self.w_input, self.w_hidden, self.bias, self.bias_share)
        hidden: Tensor = gru_unroll(
            features.to(dtype).contiguous(),
            state[:, 0].to(dtype).contiguous(),
            reset.contiguous(),
            *(weight.to(dtype) for weight in weights),
        )[0]
        return hidden

"""MinGRU: a recurrent core whose gates see only the input, so that one scan computes all steps of a row.

    c, g, p = W x_t + b          z = sigmoid(g)          s = sigmoid(p)
    n       = c + 0.5 where c >= 0, else sigmoid(c)                              candidate, always positive
    h_t     = (1 - z) * h_{t-1} + z * n                                          h zeroed first where reset_t
    y_t     = s * h_t + (1 - s) * x_t                                            highway: seen by the next layer or the heads

Were RNNs All We Needed? (arXiv 2410.01201); the highway gate and several layers are as in PufferLib 4, which has no biases.
The recurrence is linear in h, so an associative scan over (1 - z, z * n) gives h in log2(T) passes over whole arrays, where an
LSTM needs T dependent matrix products.

T steps  B sequences  H hidden  L layers
"""

from __future__ import annotations

from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.policies import device_cores
from millpond.policies.cores import computing_dtype
from millpond.policies.gates import mingru_gates, positive

LONGEST = 64  # steps: the usual row


class MinGRU(nn.Module):
    """L layers. The state [B, L, H] has the hidden state of each, in float32. Sums: candidate, update gate, highway gate."""

    def __init__(self, hidden_size: int, layers: int = 1) -> None:
        super().__init__()
        self.states = layers
        self.weights = nn.ParameterList(torch.empty(3 * hidden_size, hidden_size) for _ in range(layers))
        self.biases = nn.ParameterList(torch.empty(3 * hidden_size) for _ in range(layers))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw orthogonal weights. Units start with memories of 2 to LONGEST steps, evenly spaced by their logarithm.

        A gate that sees only the input cannot find out what to keep if gradients do not reach back that far: with memories
        of a few steps, a cue of twenty steps ago was never learned (chrono initialisation, arXiv 1804.11188).
        """
        for weight, bias in zip(self.weights, self.biases, strict=True):
            nn.init.orthogonal_(weight, generator=generator)
            nn.init.zeros_(bias)
            size = len(bias) // 3
            with torch.no_grad():
                bias[size : 2 * size] = -torch.linspace(0.0, log(LONGEST - 1), size)  # z = 1 / length

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, H], state [B, L, H] -> output [B, H], state [B, L, H]."""
        if features.device.type != "cpu":
            dtype = computing_dtype(features)
            weights, biases = ([one.to(dtype) for one in some] for some in (self.weights, self.biases))
            stepped: tuple[Tensor, Tensor] = mingru_step(features.to(dtype), weights, biases, state)
            return stepped
        after = []
        for weight, bias, before in zip(self.weights, self.biases, state.unbind(1), strict=True):
            keep, add, highway = mingru_gates(F.linear(features, weight, bias))
            hidden = keep * before + add
            features = highway * hidden + (1 - highway) * features
            after.append(hidden.to(state.dtype))
        return features, torch.stack(after, 1)

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """features [T, B, H], state [B, L, H], reset [T, B] -> output [T, B, H]."""
        dtype = computing_dtype(features)
        features, reset = features.to(dtype).contiguous(), reset.contiguous()
        for weight, bias, before in zip(self.weights, self.biases, state.unbind(1), strict=True):
            before = before.to(dtype).contiguous()
            features = mingru_unroll(features, before, reset, weight.to(dtype), bias.to(dtype))[0]
        return features


def linear_scan(keep: Tensor, add: Tensor, before: Tensor) -> Tensor:
    """h_t = keep_t * h_{t-1} + add_t for all t: keep and add [T, B, H], before [B, H] -> h [T, B, H].

    After k passes each step has taken in the 2^k steps up to it (Hillis and Steele, 1986). Where nothing is kept, nothing
    passes, not even a NaN.
    """
    add = torch.cat((add[:1] + _kept(keep[:1], before), add[1:]))
    steps, distance = len(keep), 1
    while distance < steps:
        add = torch.cat((add[:distance], add[distance:] + _kept(keep[distance:], add[:-distance])))
        keep = torch.cat((keep[:distance], _kept(keep[distance:], keep[:-distance])))
        distance *= 2
    return add


def _kept(keep: Tensor, state: Tensor) -> Tensor:
    return torch.where(keep == 0, 0, keep * state)


@torch.library.custom_op("millpond::mingru", mutates_args=())
def mingru_unroll(
    inputs: Tensor, hidden0: Tensor, reset: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """inputs [T, B, H], hidden0 [B, H], reset [T, B], weight [3H, H], bias [3H]
    -> output [T, B, H], and for the backward pass sums [T, B, 3H] and hidden [T, B, H].
    """
    if inputs.device.type != "cpu":
        return device_cores.mingru_rows(inputs, hidden0, reset, weight, bias)
    sums = F.linear(inputs, weight, bias)
    keep, add, highway = mingru_gates(sums)
    hidden = linear_scan(keep.masked_fill(reset[..., None], 0), add, hidden0)
    return torch.lerp(inputs, hidden, highway), sums, hidden


@torch.library.custom_op("millpond::mingru_step", mutates_args=())
def mingru_step(features: Tensor, weights: list[Tensor], biases: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """features [B, H], weights and biases of L layers, state [B, L, H] -> output [B, H], state: a step on a device."""
    after = torch.empty_like(state)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        features = device_cores.mingru_step(features, state[:, layer], after[:, layer], weight, bias)
    return features, after


@mingru_step.register_fake
def _(features: Tensor, weights: list[Tensor], biases: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(features), torch.empty_like(state)


@mingru_unroll.register_fake
def _(inputs: Tensor, hidden0: Tensor, reset: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    steps, batch, size = inputs.shape
    return torch.empty_like(inputs), inputs.new_empty(steps, batch, 3 * size), torch.empty_like(inputs)


@torch.library.custom_op("millpond::mingru_backward", mutates_args=())
def mingru_backward(
    d_output: Tensor,
    sums: Tensor,
    hidden: Tensor,
    inputs: Tensor,
    hidden0: Tensor,
    reset: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of inputs, hidden0, weight, bias from that of the output [T, B, H].

    With kept_t = 1 - z_t, or 0 where reset_t, the gradient of h is a scan in the other direction:

        dh_t = s_t * dy_t + kept_{t+1} * dh_{t+1}
    """
    if inputs.device.type != "cpu":
        return device_cores.mingru_rows_backward(d_output, sums, hidden, inputs, hidden0, reset, weight)
    candidate, update, highway = sums.chunk(3, -1)
    z, s, n = update.sigmoid(), highway.sigmoid(), positive(candidate)
    kept = (1 - z).masked_fill(reset[..., None], 0)
    none = torch.zeros_like(hidden0)
    d_hidden = linear_scan(torch.cat((kept[1:], none[None])).flip(0), (s * d_output).flip(0), none).flip(0)
    before = torch.cat((hidden0[None], hidden[:-1])).masked_fill(reset[..., None], 0)
    slope = torch.where(candidate >= 0, torch.ones_like(n), n * (1 - n))
    d_sums = torch.cat(
        (
            d_hidden * z * slope,
            d_hidden * (n - before) * z * (1 - z),
            d_output * (hidden - inputs) * s * (1 - s),
        ),
        -1,
    )
    flat = d_sums.flatten(0, 1)
    d_inputs = torch.addmm((d_output * (1 - s)).flatten(0, 1), flat, weight).view_as(inputs)
    return d_inputs, _kept(kept[0], d_hidden[0]), flat.t() @ inputs.flatten(0, 1), flat.sum(0)


@mingru_backward.register_fake
def _(
    d_output: Tensor,
    sums: Tensor,
    hidden: Tensor,
    inputs: Tensor,
    hidden0: Tensor,
    reset: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(inputs), torch.empty_like(hidden0), torch.empty_like(weight), weight.new_empty(len(weight))


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    features, hidden0, reset, weight, _ = inputs
    _, sums, hidden = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(sums, hidden, features, hidden0, reset, weight)


def _gradients(ctx: Any, d_output: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
    if d_output is None:
        return (None,) * 5
    d_inputs, d_hidden0, d_weight, d_bias = mingru_backward(d_output.contiguous(), *ctx.saved_tensors)
    return d_inputs, d_hidden0, None, d_weight, d_bias


mingru_unroll.register_autograd(_gradients, setup_context=_save)

"""Encoders on the CPU in float32.

`FastEncoder` is the plain `ObservationEncoder` with compiled parts, as a module of torch. `array_encoder` gives an encoder
that is compiled throughout, from arrays to arrays, for two kinds of observations: plain floats, and tokens alone. It holds
the GIL for next to nothing, so that threads do not wait for each other.

N observations  D numbers  M tokens  H hidden
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.fast.activations import fast_tanh
from millpond.fast.gemm import SGEMM
from millpond.fast.images import FastPixels
from millpond.fast.limits import LSTM_BLOCK, MIN_PACKED_OBSERVATIONS
from millpond.fast.products import (
    add_transposed,
    is_packed,
    multiply,
    panels_of,
    panels_of_transposed,
    product_transposed,
    transposed_product,
)
from millpond.fast.tables import Bytes, FastGrid, FastTokens, sum_tokens, sum_tokens_backward
from millpond.policies.encoders.grid import GridEncoder
from millpond.policies.encoders.observation import ObservationEncoder
from millpond.policies.encoders.pixels import PixelEncoder
from millpond.policies.encoders.tokens import TokenEncoder, check_features
from millpond.policies.encoders.vector import VectorEncoder

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
ONE, ZERO = np.float32(1.0), np.float32(0.0)


# ---- A linear layer with tanh


@compiled_fast
def dense_forward(sgemm: int, numbers: Floats, weight: Floats, bias: Floats, out: Floats) -> None:
    """out [N, H] = tanh(numbers [N, D] @ weight [H, D].T + bias [H])"""
    for row in range(out.shape[0]):
        out[row] = bias
    product_transposed(sgemm, numbers, weight, True, out)
    for row in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[row, k] = fast_tanh(out[row, k])


@compiled_fast
def dense_backward(
    sgemm: int, d_out: Floats, out: Floats, numbers: Floats, d_sums: Floats, d_weight: Floats, d_bias: Floats
) -> None:
    """Gradients of the weights from that of `out`; `d_bias` is zero on entry, `d_sums` [N, H] is workspace."""
    for row in range(out.shape[0]):
        for k in range(out.shape[1]):
            d_sums[row, k] = d_out[row, k] * (ONE - out[row, k] * out[row, k])
            d_bias[k] += d_sums[row, k]
    transposed_product(sgemm, d_sums, numbers, False, d_weight)


class Dense(torch.autograd.Function):
    """numbers [N, D], weight [H, D], bias [H] -> tanh(numbers @ weight.T + bias). Observations get no gradient.

    Plain torch needs three operations forward and four backward, and calls libm's tanh for every number.
    """

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = torch.empty(len(numbers), len(weight))
        dense_forward(SGEMM, numbers.numpy(), weight.detach().numpy(), bias.detach().numpy(), out.numpy())
        ctx.numbers, ctx.out = numbers.numpy(), out.numpy()
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[None, Tensor, Tensor]:
        size = ctx.out.shape[1]
        d_weight, d_bias = torch.empty(size, ctx.numbers.shape[1]), torch.zeros(size)
        out = np.empty_like(ctx.out), d_weight.numpy(), d_bias.numpy()
        dense_backward(SGEMM, d_out.contiguous().numpy(), ctx.out, ctx.numbers, *out)
        return None, d_weight, d_bias


# ---- Tokens, a linear layer and ReLU


class TokenWeights(NamedTuple):
    """Tables and the linear layer after them; or their gradients."""

    where: Floats
    low: Floats
    high: Floats
    linear: Floats
    bias: Floats


@compiled_fast
def tokens_forward(sgemm: int, tokens: Bytes, weights: TokenWeights, summed: Floats, features: Floats) -> int:
    """features [N, H] = max(0, linear(summed) + bias), summed [N, H] over tokens; returns the largest feature."""
    size, largest = features.shape[1], 0
    packed = len(tokens) >= MIN_PACKED_OBSERVATIONS and is_packed(size, size)
    panels = panels_of_transposed(weights.linear, packed)
    for start in range(0, len(tokens), LSTM_BLOCK):
        stop = min(len(tokens), start + LSTM_BLOCK)
        largest = max(largest, sum_tokens(tokens, weights.where, weights.low, weights.high, summed, start, stop))
        out = features[start:stop]
        for n in range(len(out)):
            out[n] = weights.bias
        add_transposed(sgemm, summed[start:stop], weights.linear, panels, out)
        for n in range(len(out)):
            for h in range(size):
                out[n, h] = ZERO if out[n, h] < ZERO else out[n, h]  # preserves a NaN
    return largest


@compiled_fast
def tokens_backward(
    sgemm: int,
    tokens: Bytes,
    weights: TokenWeights,
    summed: Floats,
    features: Floats,
    d_features: Floats,
    gradients: TokenWeights,
) -> None:
    """Backward pass. `gradients` are zero on entry. `summed` and `d_features` are overwritten."""
    size = features.shape[1]
    tables = weights.where, weights.low, weights.high
    packed = len(tokens) >= MIN_PACKED_OBSERVATIONS and is_packed(size, size)
    panels = panels_of(weights.linear, packed)
    for start in range(0, len(tokens), LSTM_BLOCK):
        stop = min(len(tokens), start + LSTM_BLOCK)
        out, d_out, sums = features[start:stop], d_features[start:stop], summed[start:stop]
        for n in range(len(out)):
            for h in range(size):
                d_out[n, h] = ZERO if out[n, h] <= ZERO else d_out[n, h]
            for h in range(size):
                gradients.bias[h] += d_out[n, h]
        transposed_product(sgemm, d_out, sums, True, gradients.linear)
        multiply(sgemm, d_out, weights.linear, panels, sums)
        sum_tokens_backward(tokens[start:stop], *tables, sums, gradients.where, gradients.low, gradients.high, 0, size)


# ---- The encoder of a policy


class FastEncoder(nn.Module):
    """A plain ObservationEncoder's weights: tables are looked up, and plain vectors read, by compiled code."""

    def __init__(self, plain: ObservationEncoder, autocast: bool) -> None:
        super().__init__()
        self.plain = plain
        self.encoders = nn.ModuleList(_fast_part(encoder, autocast) for encoder in plain.encoders)
        self.dense = not autocast and _is_dense(plain)

    def forward(self, observation: Tensor) -> Tensor:
        plain = self.plain
        if self.dense:
            encoder: Any = plain.encoders[0]
            numbers = encoder.scaled(plain.readers[0](observation)).contiguous()
            return Dense.apply(numbers, encoder.linear.weight, plain.bias)  # type: ignore[no-any-return, no-untyped-call]
        total: Tensor = plain.bias
        for reader, encoder in zip(plain.readers, self.encoders, strict=True):
            total = encoder(reader(observation)) + total
        features: Tensor = plain.activation(plain.norm(total))
        return features


def _fast_part(encoder: nn.Module, autocast: bool) -> nn.Module:
    if type(encoder) is PixelEncoder and not autocast:
        return FastPixels(encoder)
    if type(encoder) is GridEncoder:
        return FastGrid(encoder)
    return FastTokens(encoder) if type(encoder) is TokenEncoder else encoder


def _is_dense(encoder: ObservationEncoder) -> bool:
    """True if the encoder is one linear layer and tanh."""
    return len(encoder.encoders) == 1 and type(encoder.encoders[0]) is VectorEncoder and _is(encoder, nn.Tanh)


def _is(encoder: ObservationEncoder, activation: type[nn.Module]) -> bool:
    return isinstance(encoder.activation, activation) and isinstance(encoder.norm, nn.Identity)


class ArrayEncoder(Protocol):
    """An encoder from arrays to arrays. It reads the current values of `parameters`, which must not be replaced."""

    @property
    def parameters(self) -> tuple[Tensor, ...]: ...

    def forward(self, observations: Array) -> Sequence[Floats]:
        """Observations [N, ...] -> features [N, H], and further arrays for the backward pass."""

    def backward(self, observations: Array, saved: Sequence[Floats], d_features: Floats) -> list[Floats]:
        """Return the gradients of `parameters`. `saved` (all that `forward` returned) and `d_features` are overwritten."""


def array_encoder(encoder: nn.Module) -> ArrayEncoder | None:
    """Return the encoder as compiled throughout, if it is for plain floats or for tokens alone."""
    if type(encoder) is not ObservationEncoder or len(encoder.encoders) != 1:
        return None
    part = encoder.encoders[0]
    if type(part) is TokenEncoder and _is(encoder, nn.ReLU):
        return TokenArrays(part, encoder.bias)
    if not _is_dense(encoder) or type(part) is not VectorEncoder:
        return None
    floats = encoder.readers[0].stored == torch.float32 and part.floats and part.normalizer is None
    return DenseArrays(part.linear.weight, encoder.bias) if floats else None


class DenseArrays:
    """A linear layer and tanh."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.parameters: tuple[Tensor, ...] = (weight, bias)
        self._weight, self._bias = _arrays(self.parameters)

    def forward(self, observations: Array) -> Sequence[Floats]:
        features = _empty(len(observations), len(self._bias))
        numbers = observations.reshape(len(observations), -1)
        dense_forward(SGEMM, numbers, self._weight, self._bias, features)
        return (features,)

    def backward(self, observations: Array, saved: Sequence[Floats], d_features: Floats) -> list[Floats]:
        (features,) = saved
        d_weight, d_bias = np.empty_like(self._weight), np.zeros_like(self._bias)
        numbers = observations.reshape(len(observations), -1)
        dense_backward(SGEMM, d_features, features, numbers, d_features, d_weight, d_bias)
        return [d_weight, d_bias]


class TokenArrays:
    """Tokens that are the whole observation, a linear layer and ReLU."""

    def __init__(self, encoder: TokenEncoder, bias: Tensor) -> None:
        self.parameters: tuple[Tensor, ...] = (encoder.where, encoder.low, encoder.high, encoder.linear.weight, bias)
        self._weights = TokenWeights(*_arrays(self.parameters))

    def forward(self, observations: Array) -> Sequence[Floats]:
        shape = len(observations), len(self._weights.bias)
        features, summed = _empty(*shape), _empty(*shape)
        largest = tokens_forward(SGEMM, observations, self._weights, summed, features)
        check_features(largest, len(self._weights.low) // 16 - 1)
        return features, summed

    def backward(self, observations: Array, saved: Sequence[Floats], d_features: Floats) -> list[Floats]:
        features, summed = saved
        gradients = TokenWeights(*map(np.zeros_like, self._weights))
        tokens_backward(SGEMM, observations, self._weights, summed, features, d_features, gradients)
        return list(gradients)


def _arrays(parameters: Sequence[Tensor]) -> list[Any]:
    return [parameter.detach().numpy() for parameter in parameters]


def _empty(*shape: int) -> Floats:
    """Allocate by torch, whose profiler then counts it."""
    return torch.empty(shape).numpy()

"""Encoders forth and back in one compiled call each, on arrays: they hold Python's lock for next to nothing, so that
threads do not wait for each other. What they compute is what `ObservationEncoder` computes; float32 on the CPU.

N observations  D numbers  M tokens  H hidden
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.compiled import compiled_fast
from millpond.policies import products
from millpond.policies.dense import dense_backward, dense_forward
from millpond.policies.lstm_kernels import ZERO, Floats
from millpond.policies.lstm_rows import BLOCK, is_packed
from millpond.policies.packed import add_of_transposed, add_transposed, multiply, panels_of, panels_of_transposed
from millpond.policies.tokens import Bytes, TokenEncoder, check_features, spread_tokens, sum_tokens

Array = npt.NDArray[Any]
LEAST_PACKED = 64  # observations for which it pays to pack a layer first


class CompiledEncoder(Protocol):
    """Reads the weights that `parameters` have now; they may change in place, and must not be replaced."""

    @property
    def parameters(self) -> tuple[Tensor, ...]: ...

    def forward(self, seen: Array) -> Sequence[Floats]:
        """Observations [N, ...] -> features [N, H], and what else the way back needs."""

    def backward(self, seen: Array, kept: Sequence[Floats], d_features: Floats) -> list[Floats]:
        """The gradients of `parameters`. What was kept, and `d_features`, may be written over."""


class CompiledDense:
    """A linear layer and tanh: `dense`."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.parameters: tuple[Tensor, ...] = (weight, bias)
        self._weight, self._bias = _arrays(self.parameters)

    def forward(self, seen: Array) -> Sequence[Floats]:
        features = _empty(len(seen), len(self._bias))
        dense_forward(products.SGEMM, seen.reshape(len(seen), -1), self._weight, self._bias, features)
        return (features,)

    def backward(self, seen: Array, kept: Sequence[Floats], d_features: Floats) -> list[Floats]:
        (features,) = kept
        d_weight, d_bias = np.empty_like(self._weight), np.zeros_like(self._bias)
        numbers = seen.reshape(len(seen), -1)
        dense_backward(products.SGEMM, d_features, features, numbers, d_features, d_weight, d_bias)
        return [d_weight, d_bias]


class TokenWeights(NamedTuple):
    """Tables and the layer behind them; or their gradients."""

    where: Floats
    low: Floats
    high: Floats
    linear: Floats
    bias: Floats


@compiled_fast
def tokens_forward(sgemm: int, tokens: Bytes, weights: TokenWeights, summed: Floats, features: Floats) -> int:
    """features [N, H] = max(0, linear(sum over tokens) + bias), with that sum kept; returns the largest feature."""
    size, largest = features.shape[1], 0
    packed = len(tokens) >= LEAST_PACKED and is_packed(size, size)
    panels = panels_of_transposed(weights.linear, packed)
    for start in range(0, len(tokens), BLOCK):
        stop = min(len(tokens), start + BLOCK)
        largest = max(largest, sum_tokens(tokens, weights.where, weights.low, weights.high, summed, start, stop))
        out = features[start:stop]
        for n in range(len(out)):
            out[n] = weights.bias
        add_transposed(sgemm, summed[start:stop], weights.linear, panels, out)
        for n in range(len(out)):
            for h in range(size):
                out[n, h] = ZERO if out[n, h] < ZERO else out[n, h]  # a NaN stays one
    return largest


@compiled_fast
def tokens_backward(
    sgemm: int,
    tokens: Bytes,
    weights: TokenWeights,
    summed: Floats,
    features: Floats,
    d_features: Floats,
    found: TokenWeights,
) -> None:
    """The gradients `found` come as zeros. `summed` and `d_features` are written over."""
    size = features.shape[1]
    tables = weights.where, weights.low, weights.high
    packed = len(tokens) >= LEAST_PACKED and is_packed(size, size)
    panels = panels_of(weights.linear, packed)
    block_panels = np.empty(BLOCK * size if packed else 0, np.float32)
    for start in range(0, len(tokens), BLOCK):
        stop = min(len(tokens), start + BLOCK)
        out, d_out, sums = features[start:stop], d_features[start:stop], summed[start:stop]
        for n in range(len(out)):
            for h in range(size):
                d_out[n, h] = ZERO if out[n, h] <= ZERO else d_out[n, h]
            for h in range(size):
                found.bias[h] += d_out[n, h]
        add_of_transposed(sgemm, d_out, sums, block_panels, found.linear)
        multiply(sgemm, d_out, weights.linear, panels, sums)
        spread_tokens(tokens[start:stop], *tables, sums, found.where, found.low, found.high, 0, size)


class CompiledTokens:
    """Tokens that are all of the observation, a linear layer and ReLU."""

    def __init__(self, encoder: TokenEncoder, bias: Tensor) -> None:
        self.parameters: tuple[Tensor, ...] = (encoder.where, encoder.low, encoder.high, encoder.linear.weight, bias)
        self._weights = TokenWeights(*_arrays(self.parameters))

    def forward(self, seen: Array) -> Sequence[Floats]:
        shape = len(seen), len(self._weights.bias)
        features, summed = _empty(*shape), _empty(*shape)
        largest = tokens_forward(products.SGEMM, seen, self._weights, summed, features)
        check_features(largest, len(self._weights.low) // 16)
        return features, summed

    def backward(self, seen: Array, kept: Sequence[Floats], d_features: Floats) -> list[Floats]:
        features, summed = kept
        found = TokenWeights(*map(np.zeros_like, self._weights))
        tokens_backward(products.SGEMM, seen, self._weights, summed, features, d_features, found)
        return list(found)


def _arrays(parameters: Sequence[Tensor]) -> list[Any]:
    return [parameter.detach().numpy() for parameter in parameters]


def _empty(*shape: int) -> Floats:
    """Memory that is torch's, whose profiler then sees it."""
    return torch.empty(shape).numpy()

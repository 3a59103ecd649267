"""Layers of networks without memory on vectors, forward and backward, on the CPU in float32.

    features = tanh(W numbers + b)      hidden = tanh(W features + b)      outputs = W hidden + b

N steps  D numbers  H hidden  O outputs
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.fast.activations import fast_tanh
from millpond.fast.products import product, product_transposed, transposed_product

Floats = npt.NDArray[np.float32]
ONE, ZERO = np.float32(1.0), np.float32(0.0)


class Layers(NamedTuple):
    """Weights of the three layers; or their gradients. All are empty if there is no critic."""

    w_encoder: Floats  # [H, D]
    b_encoder: Floats
    w_core: Floats  # [H, H]
    b_core: Floats
    w_output: Floats  # [O + 1, H]; with a critic [O, H], and [1, H] of the critic
    b_output: Floats


NO_VECTOR = np.zeros(0, np.float32)
NO_MATRIX = np.zeros((0, 0), np.float32)
NO_LAYERS = Layers(NO_MATRIX, NO_VECTOR, NO_MATRIX, NO_VECTOR, NO_MATRIX, NO_VECTOR)


@compiled_fast
def layer_forward(sgemm: int, inputs: Floats, weight: Floats, bias: Floats, out: Floats) -> None:
    """out [N, H] = tanh(inputs @ weight.T + bias)"""
    for n in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[n, k] = bias[k]
    product_transposed(sgemm, inputs, weight, True, out)
    flat = out.reshape(out.size)
    for k in range(len(flat)):
        flat[k] = fast_tanh(flat[k])


@compiled_fast
def layer_backward(sgemm: int, d_out: Floats, out: Floats, inputs: Floats, d_weight: Floats, d_bias: Floats) -> None:
    """Add to the gradients of the weights. `d_out` becomes the gradient of the sums before tanh."""
    d_sums, flat = d_out.reshape(d_out.size), out.reshape(out.size)
    for k in range(len(flat)):
        d_sums[k] *= ONE - flat[k] * flat[k]
    for n in range(d_out.shape[0]):
        for k in range(d_out.shape[1]):
            d_bias[k] += d_out[n, k]
    transposed_product(sgemm, d_out, inputs, True, d_weight)


@compiled_fast
def output_forward(sgemm: int, hidden: Floats, layers: Layers) -> Floats:
    """hidden [N, H] -> outputs [N, O]"""
    out = np.empty((len(hidden), len(layers.b_output)), np.float32)
    for n in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[n, k] = layers.b_output[k]
    product_transposed(sgemm, hidden, layers.w_output, True, out)
    return out


@compiled_fast
def output_backward(
    sgemm: int, d_out: Floats, hidden: Floats, layers: Layers, gradients: Layers, d_hidden: Floats
) -> None:
    """d_out [N, O] -> d_hidden [N, H]; adds to the gradients of the output layer."""
    for n in range(d_out.shape[0]):
        for k in range(d_out.shape[1]):
            gradients.b_output[k] += d_out[n, k]
    transposed_product(sgemm, d_out, hidden, True, gradients.w_output)
    product(sgemm, d_out, layers.w_output, False, d_hidden)


@compiled_fast
def hidden_backward(
    sgemm: int, d_hidden: Floats, hidden: Floats, features: Floats, inputs: Floats, layers: Layers, gradients: Layers
) -> None:
    """Add to the gradients of the first two layers; `hidden` and `d_hidden` are overwritten."""
    layer_backward(sgemm, d_hidden, hidden, features, gradients.w_core, gradients.b_core)
    product(sgemm, d_hidden, layers.w_core, False, hidden)  # gradient of the features
    layer_backward(sgemm, hidden, features, inputs, gradients.w_encoder, gradients.b_encoder)

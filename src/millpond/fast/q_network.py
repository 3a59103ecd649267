"""Q-networks on small images in compiled code: values, and gradients of rows of a batch.

The plain version is `millpond.learners.q_network.QNetwork`: a 3x3 convolution, LayerNorm over channels, ReLU; a linear layer,
LayerNorm, ReLU; a linear layer. Each thread computes some rows of a batch; `q_updates` says how they work together.

B transitions of a batch   C channels   F filters   P places   H hidden   A actions
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.fast.packed_gemm import transpose
from millpond.fast.products import product, product_transposed
from millpond.fast.simd import WIDTH, add_eight, load_eight, multiply_add_eight, multiply_eight, store_eight
from millpond.fast.simd_math import spread_eight, sum_eight
from millpond.fast.small_images import (
    SIDE,
    add_partial_sums,
    add_weight_gradient,
    convolve,
    filters_last,
    list_pixels,
    margin,
    normalize_groups,
    normalize_groups_backward,
    normalize_places,
    normalize_places_backward,
    with_padding,
    without_padding,
)

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
ZERO = np.float32(0.0)


class QLayout(NamedTuple):
    """Sizes of a network, and where each parameter begins in its flat parameters."""

    channels: int
    height: int
    width: int
    filters: int
    hidden: int
    actions: int
    bias: int
    convolution: int
    convolution_bias: int
    gain: int
    shift: int
    linear: int
    hidden_gain: int
    hidden_shift: int
    output: int
    output_bias: int


class QWeights(NamedTuple):
    """Parameters of one network: views of its flat parameters, and the convolution's weights with filters last."""

    filters: Floats  # [C * 9 * F]
    filter_bias: Floats  # [F]
    gain: Floats  # [F]
    shift: Floats  # [F]
    linear: Floats  # [H, F * P]
    bias: Floats  # [H]
    hidden_gain: Floats  # [H]
    hidden_shift: Floats  # [H]
    output: Floats  # [A * H]
    output_bias: Floats  # [A]


class QActivations(NamedTuple):
    """Numbers of a batch that the gradient needs. Threads write different rows."""

    normal: Floats  # [B, F * P] after LayerNorm over channels, without gain and shift
    deviation: Floats  # [B, P]
    inputs: Floats  # [B, F * P] of the linear layer
    hidden: Floats  # [B, H] after LayerNorm, without gain and shift
    hidden_deviation: Floats  # [B, 1]
    active: Floats  # [B, H] inputs of the last layer
    q: Floats  # [B, A]


class QGradients(NamedTuple):
    """Gradients of one thread's rows of a batch, of all parameters but the linear layer's weights."""

    filters: Floats
    filter_bias: Floats
    gain: Floats
    shift: Floats
    bias: Floats
    hidden_gain: Floats
    hidden_shift: Floats
    output: Floats
    output_bias: Floats


@compiled_fast
def weights_of(flat: Floats, layout: QLayout) -> QWeights:
    """View flat parameters as those of a network."""
    places = (layout.height - SIDE + 1) * (layout.width - SIDE + 1)
    f, h, inputs, taps = layout.filters, layout.hidden, layout.filters * places, layout.channels * SIDE * SIDE
    filters = np.empty(taps * f, np.float32)
    filters_last(flat[layout.convolution : layout.convolution + taps * f], f, filters)
    return QWeights(
        filters,
        flat[layout.convolution_bias : layout.convolution_bias + f],
        flat[layout.gain : layout.gain + f],
        flat[layout.shift : layout.shift + f],
        flat[layout.linear : layout.linear + h * inputs].reshape(h, inputs),
        flat[layout.bias : layout.bias + h],
        flat[layout.hidden_gain : layout.hidden_gain + h],
        flat[layout.hidden_shift : layout.hidden_shift + h],
        flat[layout.output : layout.output + layout.actions * h],
        flat[layout.output_bias : layout.output_bias + layout.actions],
    )


@compiled_fast
def forward(
    sgemm: int,
    layout: QLayout,
    weights: QWeights,
    frames: Array,
    index: Integers,
    scale: np.float32,
    begin: int,
    end: int,
    keep: bool,
    out: QActivations,
) -> None:
    """Compute Q of the observations frames[index[begin:end]] into the rows begin:end.

    Not to `keep` what only the gradient needs leaves more of the cache to the rest.
    """
    if end <= begin:
        return
    filters, hidden = layout.filters, layout.hidden
    places, height, width, pixels = out.deviation.shape[1], layout.height, layout.width, frames.shape[1]
    convolved, values = np.empty(places * filters, np.float32), np.empty(pixels + 1, np.float32)
    where = np.empty(pixels + 1, np.int64)
    padded = np.zeros((margin(width) + height * width) * filters, np.float32)
    scratch = np.empty(places * filters, np.float32)
    for row in range(begin, end):
        normal = out.normal[row] if keep else scratch
        count = list_pixels(frames[index[row]], scale, where, values)
        convolve(where, values, count, height, width, weights.filters, weights.filter_bias, padded)
        without_padding(padded, height, width, filters, convolved)
        transpose(convolved, places, filters, normal)
        normalize_places(normal, places, weights.gain, weights.shift, out.deviation[row], out.inputs[row])
    product_transposed(sgemm, out.inputs[begin:end], weights.linear, False, out.hidden[begin:end])
    for row in range(begin, end):
        values, active_row = out.hidden[row], out.active[row]
        for k in range(0, hidden, WIDTH):
            store_eight(add_eight(load_eight(values, k), load_eight(weights.bias, k)), values, k)
        normalize_groups(
            values, hidden, weights.hidden_gain, weights.hidden_shift, out.hidden_deviation[row], active_row
        )
        for action in range(layout.actions):
            sums = spread_eight(ZERO)
            for k in range(0, hidden, WIDTH):
                sums = multiply_add_eight(
                    load_eight(active_row, k), load_eight(weights.output, action * hidden + k), sums
                )
            out.q[row, action] = sum_eight(sums) + weights.output_bias[action]


@compiled_fast
def q_values(
    sgemm: int, layout: QLayout, flat: Floats, frames: Array, scale: np.float32, begin: int, end: int, out: QActivations
) -> None:
    """Compute Q of frames[begin:end] from flat parameters: acting, in one call."""
    forward(sgemm, layout, weights_of(flat, layout), frames, np.arange(len(frames)), scale, begin, end, False, out)


@compiled_fast
def gradients_of(flat: Floats, layout: QLayout) -> QGradients:
    """View one thread's flat memory as gradients."""
    f, h = layout.filters, layout.hidden
    taps, outputs = layout.channels * SIDE * SIDE * f, layout.actions * h
    narrow = taps + 3 * f
    wide = narrow + 3 * h
    return QGradients(
        flat[:taps],
        flat[taps : taps + f],
        flat[taps + f : taps + 2 * f],
        flat[taps + 2 * f : narrow],
        flat[narrow : narrow + h],
        flat[narrow + h : narrow + 2 * h],
        flat[narrow + 2 * h : wide],
        flat[wide : wide + outputs],
        flat[wide + outputs : wide + outputs + layout.actions],
    )


@compiled_fast
def backward(
    sgemm: int,
    layout: QLayout,
    weights: QWeights,
    frames: Array,
    index: Integers,
    scale: np.float32,
    begin: int,
    end: int,
    kept: QActivations,
    action: Integers,
    difference: Floats,
    hidden_gradient: Floats,
    input_gradient: Floats,
    grads: QGradients,
) -> None:
    """Compute gradients of the rows begin:end from that of Q of their actions: `difference` [B].

    Writes the rows of hidden_gradient [B, H] before the linear layer's LayerNorm, and `grads`; input_gradient [B, F * P] is
    memory that is overwritten.
    """
    hidden, filters = layout.hidden, layout.filters
    if end <= begin:
        return
    for row in range(begin, end):
        chosen, gradient, active = action[row], hidden_gradient[row], kept.active[row]
        factor = spread_eight(difference[row])
        grads.output_bias[chosen] += difference[row]
        for k in range(0, hidden, WIDTH):
            at = chosen * hidden + k
            store_eight(multiply_eight(factor, load_eight(weights.output, at)), gradient, k)
            total = multiply_add_eight(factor, load_eight(active, k), load_eight(grads.output, at))
            store_eight(total, grads.output, at)
        normalize_groups_backward(
            gradient,
            kept.hidden[row],
            kept.hidden_deviation[row],
            hidden,
            weights.hidden_gain,
            weights.hidden_shift,
            grads.hidden_gain,
            grads.hidden_shift,
            grads.bias,
        )
    product(sgemm, hidden_gradient[begin:end], weights.linear, False, input_gradient[begin:end])
    places, height, width, pixels = kept.deviation.shape[1], layout.height, layout.width, frames.shape[1]
    gradient, partial = np.empty(places * filters, np.float32), np.zeros((3, filters * WIDTH), np.float32)
    where, values = np.empty(pixels + 1, np.int64), np.empty(pixels + 1, np.float32)
    padded = np.zeros((margin(width) + height * width) * filters, np.float32)
    for row in range(begin, end):
        normalize_places_backward(
            input_gradient[row],
            kept.normal[row],
            kept.deviation[row],
            places,
            weights.gain,
            weights.shift,
            partial[0],
            partial[1],
            partial[2],
        )
        transpose(input_gradient[row], filters, places, gradient)
        with_padding(gradient, height, width, filters, padded)
        count = list_pixels(frames[index[row]], scale, where, values)
        add_weight_gradient(where, values, count, height, width, padded, filters, grads.filters)
    add_partial_sums(partial[0], grads.gain)
    add_partial_sums(partial[1], grads.shift)
    add_partial_sums(partial[2], grads.filter_bias)


@compiled_fast
def put(values: Floats, first: bool, out: Floats) -> None:
    """Write values, or add them if they are not the `first`."""
    for k in range(len(values)):
        out[k] = values[k] if first else out[k] + values[k]


@compiled_fast
def put_gradients(layout: QLayout, grads: QGradients, first: bool, out: Floats) -> None:
    """Write one thread's gradients into flat ones, or add them."""
    put(grads.filter_bias, first, out[layout.convolution_bias :])
    put(grads.gain, first, out[layout.gain :])
    put(grads.shift, first, out[layout.shift :])
    put(grads.bias, first, out[layout.bias :])
    put(grads.hidden_gain, first, out[layout.hidden_gain :])
    put(grads.hidden_shift, first, out[layout.hidden_shift :])
    put(grads.output, first, out[layout.output :])
    put(grads.output_bias, first, out[layout.output_bias :])
    filters, taps = layout.filters, layout.channels * SIDE * SIDE
    for f in range(filters):
        for k in range(taps):
            at = layout.convolution + f * taps + k
            out[at] = grads.filters[k * filters + f] + (ZERO if first else out[at])

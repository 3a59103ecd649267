"""A 3x3 convolution of small images, LayerNorm over the channels of each place, ReLU: forward and backward, image by image.

The plain version is the convolution of `millpond.policies.encoders.pixels.PixelEncoder` for images below 36 pixels per side.
All images of a batch would be one matrix product, but one with few columns, after a copy of every pixel to nine places.
Here each pixel that is not 0 is added to the nine outputs that it belongs to: planes of zeros and ones, as MinAtar's, have few
of them. An image's outputs stay in the first-level cache until they are normalised.

C channels   F filters, a multiple of 8   P places of the output   h, w height and width of the image
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.fast.simd import WIDTH, add_eight, load_eight, multiply_add_eight, multiply_eight, store_eight
from millpond.fast.simd_math import (
    divide_eight,
    relu_eight,
    spread_eight,
    sqrt_eight,
    subtract_eight,
    sum_eight,
    where_positive_eight,
)

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
SIDE = 3  # of a filter
EPSILON = np.float32(1e-5)  # of LayerNorm
ZERO, ONE = np.float32(0.0), np.float32(1.0)


@compiled_fast
def filters_last(weight: Floats, filters: int, out: Floats) -> None:
    """weight [F, C, 3, 3] -> out [C, 3, 3, F]; both flat."""
    inputs = len(weight) // filters
    for f in range(filters):
        for k in range(inputs):
            out[k * filters + f] = weight[f * inputs + k]


@compiled_fast
def margin(width: int) -> int:
    """Number of places before the first one, which taps of pixels at the edge reach: see `convolve`."""
    return (SIDE - 1) * (width + 1)


@compiled_fast
def list_pixels(image: npt.NDArray[Any], scale: np.float32, where: Integers, values: Floats) -> int:
    """Write indices and scaled values of all pixels that are not 0 to `where` and `values`; return how many there are."""
    count, done = 0, 0
    if image.itemsize == 1:  # eight pixels at a time: most of them are 0
        done = len(image) // WIDTH * WIDTH
        words = image[:done].view(np.uint64)
        for word in range(len(words)):
            if words[word] == 0:
                continue
            for pixel in range(word * WIDTH, (word + 1) * WIDTH):
                where[count] = pixel
                values[count] = np.float32(image[pixel]) * scale
                count += image[pixel] != 0
    for pixel in range(done, len(image)):
        where[count] = pixel
        values[count] = np.float32(image[pixel]) * scale
        count += image[pixel] != 0
    return count


@compiled_fast
def end_of_channel(where: Integers, first: int, count: int, limit: int) -> int:
    """Return the first place after `first` whose pixel has an index of `limit` or more; `count` if there is none."""
    last = first + 1
    while last < count and where[last] < limit:
        last += 1
    return last


@compiled_fast
def convolve(
    where: Integers, values: Floats, count: int, height: int, width: int, weight: Floats, bias: Floats, padded: Floats
) -> None:
    """The first `count` pixels of `list_pixels` -> padded [(margin + h * w) * F] before LayerNorm; weight [C * 9 * F].

    The output at (y, x) is at place margin + y * w + x; the last two columns and rows, and the margin, are not outputs. Pixels
    at an edge add to them, since loops of changing length, which the processor cannot predict, take longer.
    """
    filters, area, before = len(bias), height * width, margin(width)
    for start in range(0, filters, WIDTH):
        each = load_eight(bias, start)
        for place in range(before, area):
            store_eight(each, padded, place * filters + start)
    row, first = width * filters, 0
    while first < count:
        channel = where[first] // area
        last = end_of_channel(where, first, count, (channel + 1) * area)
        for start in range(0, filters, WIDTH):
            at = channel * SIDE * SIDE * filters + start
            w0, w1, w2 = load_three(weight, at, filters)
            w3, w4, w5 = load_three(weight, at + SIDE * filters, filters)
            w6, w7, w8 = load_three(weight, at + 2 * SIDE * filters, filters)
            for k in range(first, last):
                factor, to = spread_eight(values[k]), (before + where[k] - channel * area) * filters + start
                add_three(factor, w0, w1, w2, padded, to, filters)
                add_three(factor, w3, w4, w5, padded, to - row, filters)
                add_three(factor, w6, w7, w8, padded, to - 2 * row, filters)
        first = last


@compiled_fast
def load_three(weight: Floats, at: int, filters: int) -> Any:
    """Return eight filters of three neighbouring taps."""
    return load_eight(weight, at), load_eight(weight, at + filters), load_eight(weight, at + 2 * filters)


@compiled_fast
def add_three(factor: Any, w0: Any, w1: Any, w2: Any, out: Floats, to: int, filters: int) -> None:
    """Add factor * w to the outputs of three neighbouring taps."""
    store_eight(multiply_add_eight(factor, w0, load_eight(out, to)), out, to)
    store_eight(multiply_add_eight(factor, w1, load_eight(out, to - filters)), out, to - filters)
    store_eight(multiply_add_eight(factor, w2, load_eight(out, to - 2 * filters)), out, to - 2 * filters)


@compiled_fast
def without_padding(padded: Floats, height: int, width: int, filters: int, out: Floats) -> None:
    """padded, as `convolve` writes it -> out [P * F]"""
    length = (width - SIDE + 1) * filters
    for y in range(height - SIDE + 1):
        at = (margin(width) + y * width) * filters
        for k in range(0, length, WIDTH):
            store_eight(load_eight(padded, at + k), out, y * length + k)


@compiled_fast
def with_padding(values: Floats, height: int, width: int, filters: int, padded: Floats) -> None:
    """values [P * F] -> padded, as `convolve` writes it; everything else in it stays unchanged."""
    length = (width - SIDE + 1) * filters
    for y in range(height - SIDE + 1):
        at = (margin(width) + y * width) * filters
        for k in range(0, length, WIDTH):
            store_eight(load_eight(values, y * length + k), padded, at + k)


@compiled_fast
def add_weight_gradient(
    where: Integers, values: Floats, count: int, height: int, width: int, padded: Floats, filters: int, out: Floats
) -> None:
    """Add the gradient of the weights to out [C * 9 * F], filters last; `padded` is the output's, 0 where there is none."""
    area, before, row, first = height * width, margin(width), width * filters, 0
    while first < count:
        channel = where[first] // area
        last = end_of_channel(where, first, count, (channel + 1) * area)
        for start in range(0, filters, WIDTH):
            to = channel * SIDE * SIDE * filters + start
            w0, w1, w2 = load_three(out, to, filters)
            w3, w4, w5 = load_three(out, to + SIDE * filters, filters)
            w6, w7, w8 = load_three(out, to + 2 * SIDE * filters, filters)
            for k in range(first, last):
                factor, at = spread_eight(values[k]), (before + where[k] - channel * area) * filters + start
                w0 = multiply_add_eight(factor, load_eight(padded, at), w0)
                w1 = multiply_add_eight(factor, load_eight(padded, at - filters), w1)
                w2 = multiply_add_eight(factor, load_eight(padded, at - 2 * filters), w2)
                w3 = multiply_add_eight(factor, load_eight(padded, at - row), w3)
                w4 = multiply_add_eight(factor, load_eight(padded, at - row - filters), w4)
                w5 = multiply_add_eight(factor, load_eight(padded, at - row - 2 * filters), w5)
                w6 = multiply_add_eight(factor, load_eight(padded, at - 2 * row), w6)
                w7 = multiply_add_eight(factor, load_eight(padded, at - 2 * row - filters), w7)
                w8 = multiply_add_eight(factor, load_eight(padded, at - 2 * row - 2 * filters), w8)
            store_three(w0, w1, w2, out, to, filters)
            store_three(w3, w4, w5, out, to + SIDE * filters, filters)
            store_three(w6, w7, w8, out, to + 2 * SIDE * filters, filters)
        first = last


@compiled_fast
def store_three(w0: Any, w1: Any, w2: Any, out: Floats, to: int, filters: int) -> None:
    """Write eight filters of three neighbouring taps."""
    store_eight(w0, out, to)
    store_eight(w1, out, to + filters)
    store_eight(w2, out, to + 2 * filters)


@compiled_fast
def normalize_groups(values: Floats, size: int, gain: Floats, shift: Floats, deviation: Floats, active: Floats) -> None:
    """LayerNorm and ReLU of each group of `size` numbers, a multiple of 8.

    values [G * size] become the normalised numbers without gain and shift; active [G * size] is the output, and
    deviation [G] has 1 / standard deviation of each group.
    """
    share = ONE / np.float32(size)
    for group in range(len(values) // size):
        begin = group * size
        sums = spread_eight(ZERO)
        for k in range(begin, begin + size, WIDTH):
            sums = add_eight(sums, load_eight(values, k))
        mean = spread_eight(sum_eight(sums) * share)
        squares = spread_eight(ZERO)
        for k in range(begin, begin + size, WIDTH):
            centred = subtract_eight(load_eight(values, k), mean)
            squares = multiply_add_eight(centred, centred, squares)
        inverse = ONE / np.sqrt(sum_eight(squares) * share + EPSILON)
        deviation[group] = inverse
        factor = spread_eight(inverse)
        for k in range(0, size, WIDTH):
            normal = multiply_eight(subtract_eight(load_eight(values, begin + k), mean), factor)
            store_eight(normal, values, begin + k)
            output = multiply_add_eight(normal, load_eight(gain, k), load_eight(shift, k))
            store_eight(relu_eight(output), active, begin + k)


@compiled_fast
def normalize_groups_backward(
    gradient: Floats,
    normal: Floats,
    deviation: Floats,
    size: int,
    gain: Floats,
    shift: Floats,
    gain_gradient: Floats,
    shift_gradient: Floats,
    bias_gradient: Floats,
) -> None:
    """Turn the gradient [G * size] of `normalize_groups`' output into that of its input, in place.

        dn = d gain      dx = (dn - mean(dn) - n mean(dn n)) / deviation

    Adds the gradients of gain, shift and of a bias [size] that was added to every group before.
    """
    share = ONE / np.float32(size)
    for group in range(len(gradient) // size):
        begin = group * size
        sums, products = spread_eight(ZERO), spread_eight(ZERO)
        for k in range(0, size, WIDTH):
            at = begin + k
            normal_each, factor = load_eight(normal, at), load_eight(gain, k)
            output = multiply_add_eight(normal_each, factor, load_eight(shift, k))
            each = where_positive_eight(output, load_eight(gradient, at))
            store_eight(add_eight(load_eight(shift_gradient, k), each), shift_gradient, k)
            store_eight(multiply_add_eight(each, normal_each, load_eight(gain_gradient, k)), gain_gradient, k)
            each = multiply_eight(each, factor)
            store_eight(each, gradient, at)
            sums = add_eight(sums, each)
            products = multiply_add_eight(each, normal_each, products)
        mean, slope = spread_eight(sum_eight(sums) * share), spread_eight(sum_eight(products) * share)
        inverse = spread_eight(deviation[group])
        for k in range(0, size, WIDTH):
            at = begin + k
            centred = subtract_eight(load_eight(gradient, at), mean)
            centred = subtract_eight(centred, multiply_eight(load_eight(normal, at), slope))
            centred = multiply_eight(centred, inverse)
            store_eight(centred, gradient, at)
            store_eight(add_eight(load_eight(bias_gradient, k), centred), bias_gradient, k)


@compiled_fast
def normalize_places(
    values: Floats, places: int, gain: Floats, shift: Floats, deviation: Floats, active: Floats
) -> None:
    """LayerNorm over the channels of each place, and ReLU: `normalize_groups` for values [F * P], places last.

    Eight places are computed at a time: there are no sums within a vector.
    """
    filters = len(gain)
    share = ONE / np.float32(filters)
    shares, ones, small = spread_eight(share), spread_eight(ONE), spread_eight(EPSILON)
    whole = places // WIDTH * WIDTH
    for p in range(0, whole, WIDTH):
        mean = spread_eight(ZERO)
        for f in range(filters):
            mean = add_eight(mean, load_eight(values, f * places + p))
        mean = multiply_eight(mean, shares)
        squares = spread_eight(ZERO)
        for f in range(filters):
            centred = subtract_eight(load_eight(values, f * places + p), mean)
            squares = multiply_add_eight(centred, centred, squares)
        inverse = divide_eight(ones, sqrt_eight(multiply_add_eight(squares, shares, small)))
        store_eight(inverse, deviation, p)
        for f in range(filters):
            at = f * places + p
            normal = multiply_eight(subtract_eight(load_eight(values, at), mean), inverse)
            store_eight(normal, values, at)
            output = multiply_add_eight(normal, spread_eight(gain[f]), spread_eight(shift[f]))
            store_eight(relu_eight(output), active, at)
    for p in range(whole, places):
        total, squared = ZERO, ZERO
        for f in range(filters):
            total += values[f * places + p]
        for f in range(filters):
            squared += (values[f * places + p] - total * share) ** 2
        deviation[p] = ONE / np.sqrt(squared * share + EPSILON)
        for f in range(filters):
            at = f * places + p
            values[at] = (values[at] - total * share) * deviation[p]
            output_one = values[at] * gain[f] + shift[f]
            active[at] = ZERO if output_one < ZERO else output_one  # a NaN stays a NaN


@compiled_fast
def normalize_places_backward(
    gradient: Floats,
    normal: Floats,
    deviation: Floats,
    places: int,
    gain: Floats,
    shift: Floats,
    gain_gradient: Floats,
    shift_gradient: Floats,
    bias_gradient: Floats,
) -> None:
    """Turn the gradient [F * P] of `normalize_places`' output into that of its input, in place; see above.

    Adds the gradients of gain, shift and bias as eight partial sums of each filter: they are [F * 8].
    """
    filters = len(gain)
    share = ONE / np.float32(filters)
    shares, whole = spread_eight(share), places // WIDTH * WIDTH
    for p in range(0, whole, WIDTH):
        mean, slope = spread_eight(ZERO), spread_eight(ZERO)
        for f in range(filters):
            at, to = f * places + p, f * WIDTH
            normal_each, factor = load_eight(normal, at), spread_eight(gain[f])
            output = multiply_add_eight(normal_each, factor, spread_eight(shift[f]))
            each = where_positive_eight(output, load_eight(gradient, at))
            store_eight(add_eight(load_eight(shift_gradient, to), each), shift_gradient, to)
            store_eight(multiply_add_eight(each, normal_each, load_eight(gain_gradient, to)), gain_gradient, to)
            each = multiply_eight(each, factor)
            store_eight(each, gradient, at)
            mean = add_eight(mean, each)
            slope = multiply_add_eight(each, normal_each, slope)
        mean, slope = multiply_eight(mean, shares), multiply_eight(slope, shares)
        inverse = load_eight(deviation, p)
        for f in range(filters):
            at, to = f * places + p, f * WIDTH
            centred = subtract_eight(load_eight(gradient, at), mean)
            centred = subtract_eight(centred, multiply_eight(load_eight(normal, at), slope))
            centred = multiply_eight(centred, inverse)
            store_eight(centred, gradient, at)
            store_eight(add_eight(load_eight(bias_gradient, to), centred), bias_gradient, to)
    for p in range(whole, places):
        mean_one, slope_one = ZERO, ZERO
        for f in range(filters):
            at, to = f * places + p, f * WIDTH
            each_one = ZERO if normal[at] * gain[f] + shift[f] <= ZERO else gradient[at]
            shift_gradient[to] += each_one
            gain_gradient[to] += each_one * normal[at]
            gradient[at] = each_one * gain[f]
            mean_one += gradient[at] * share
            slope_one += gradient[at] * normal[at] * share
        for f in range(filters):
            at = f * places + p
            gradient[at] = (gradient[at] - mean_one - normal[at] * slope_one) * deviation[p]
            bias_gradient[f * WIDTH] += gradient[at]


@compiled_fast
def add_partial_sums(partial: Floats, out: Floats) -> None:
    """out [F] += the sums of partial [F * 8]."""
    for f in range(len(out)):
        out[f] += sum_eight(load_eight(partial, f * WIDTH))

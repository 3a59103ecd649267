"""Clipping, Adam and a soft target in one pass over flat parameters.

The plain versions are `millpond.learners.flat_parameters.clip_rows` and `RowOptimizer`. All functions work on a range of the
numbers, so that threads can share them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.fast.simd import WIDTH, add_eight, load_eight, multiply_add_eight, multiply_eight, store_eight
from millpond.fast.simd_math import divide_eight, spread_eight, sqrt_eight, subtract_eight, sum_eight

Floats = npt.NDArray[np.float32]
ONE = np.float32(1.0)
BLOCK = 1024  # numbers whose squares are summed in float32


@compiled_fast
def sum_of_squares(values: Floats, begin: int, end: int) -> float:
    """Sum the squares of values[begin:end]; float32 within blocks, float64 beyond them."""
    total = 0.0
    for start in range(begin, end, BLOCK):
        stop = min(start + BLOCK, end)
        vectors = start + (stop - start) // WIDTH * WIDTH
        sums = spread_eight(np.float32(0.0))
        for k in range(start, vectors, WIDTH):
            each = load_eight(values, k)
            sums = multiply_add_eight(each, each, sums)
        rest = np.float32(0.0)
        for k in range(vectors, stop):
            rest += values[k] * values[k]
        total += np.float64(sum_eight(sums)) + np.float64(rest)
    return total


@compiled_fast
def clip_coefficient(squares: float, max_norm: float) -> np.float32:
    """Return the factor that scales a gradient with this sum of squares down to `max_norm`; NaN if it is not finite."""
    coefficient = np.float32(max_norm) / (np.float32(np.sqrt(squares)) + np.float32(1e-6))
    return ONE if coefficient > ONE else coefficient


@compiled_fast
def adam(
    data: Floats,
    grad: Floats,
    first: Floats,
    second: Floats,
    target: Floats,
    begin: int,
    end: int,
    scale: np.float32,
    beta1: float,
    beta2: float,
    rate: np.float32,
    epsilon: np.float32,
    adaptive: bool,
    tau: np.float32,
) -> None:
    """Update the parameters data[begin:end] from gradients times `scale`.

        m <- beta1 m + (1 - beta1) g      v <- beta2 v + (1 - beta2) g^2
        p <- p - rate m / (sqrt(v) + epsilon), or p - rate m if not `adaptive`
        p' <- p' + tau (p - p')           if `target` is not empty; exactly p if tau is 1

    `rate` and `epsilon` have the corrections of the first steps in them.
    """
    with_target, copied = len(target) > 0, tau == ONE
    vectors = begin + (end - begin) // WIDTH * WIDTH
    one_minus_beta1, one_minus_beta2, decay = np.float32(1.0 - beta1), np.float32(1.0 - beta2), np.float32(beta2)
    scales, rest1, rest2 = spread_eight(scale), spread_eight(one_minus_beta1), spread_eight(one_minus_beta2)
    decay2, rates, small, soft = spread_eight(decay), spread_eight(-rate), spread_eight(epsilon), spread_eight(tau)
    for k in range(begin, vectors, WIDTH):
        g = multiply_eight(load_eight(grad, k), scales)
        m = load_eight(first, k)
        m = multiply_add_eight(subtract_eight(g, m), rest1, m)
        v = multiply_add_eight(multiply_eight(g, g), rest2, multiply_eight(load_eight(second, k), decay2))
        store_eight(m, first, k)
        store_eight(v, second, k)
        step = divide_eight(m, add_eight(sqrt_eight(v), small)) if adaptive else m
        p = multiply_add_eight(step, rates, load_eight(data, k))
        store_eight(p, data, k)
        if with_target:
            q = load_eight(target, k)
            store_eight(p if copied else multiply_add_eight(subtract_eight(p, q), soft, q), target, k)
    for k in range(vectors, end):
        gradient = grad[k] * scale
        first[k] += (gradient - first[k]) * one_minus_beta1
        second[k] = second[k] * decay + gradient * gradient * one_minus_beta2
        data[k] -= rate * (first[k] / (np.sqrt(second[k]) + epsilon) if adaptive else first[k])
        if with_target:
            target[k] = data[k] if copied else target[k] + tau * (data[k] - target[k])

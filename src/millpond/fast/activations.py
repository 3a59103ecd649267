"""tanh and the logistic function as plain arithmetic, so that a compiled loop over them uses vector registers.

tanh(x) is computed as x P(x^2) / Q(x^2) with P and Q of degree 4, fitted for the smallest relative error on |x| <= 9;
beyond that float32 rounds tanh to 1. In float32 the relative error is below 4e-7 everywhere (a test checks it). Calling
libm's tanh once per number is several times slower.
"""

from __future__ import annotations

import numpy as np

from millpond.compiled import inlined

LIMIT = np.float32(9.0)
HALF = np.float32(0.5)
P0, P1, P2, P3, P4 = (
    np.float32(c)
    for c in (
        0.9999999794625801,
        0.13381032827323336,
        0.0034955964543624055,
        2.0609210604542844e-5,
        1.3354822445902857e-8,
    )
)
Q0, Q1, Q2, Q3, Q4 = (
    np.float32(c) for c in (1.0, 0.4671434842850269, 0.025877014426477545, 3.2856480623614365e-4, 7.776627747457115e-7)
)


@inlined
def fast_tanh(x: np.float32) -> np.float32:
    # Comparisons in this form preserve a NaN.
    x = LIMIT if x > LIMIT else x
    x = -LIMIT if x < -LIMIT else x
    s = x * x
    above = ((((P4 * s + P3) * s + P2) * s + P1) * s + P0) * x
    below = (((Q4 * s + Q3) * s + Q2) * s + Q1) * s + Q0
    return above / below


@inlined
def fast_sigmoid(x: np.float32) -> np.float32:
    """1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2."""
    return fast_tanh(x * HALF) * HALF + HALF

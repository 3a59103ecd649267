"""Normal numbers on the CPU in float32: drawing them, and the probability and entropy of those taken, one pass each.

The plain version is `millpond.policies.heads.GaussianHead`.

N steps  D numbers of an action
"""

from __future__ import annotations

from math import exp, log, pi

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled

Floats = npt.NDArray[np.float32]
HALF_LOG_2_PI = 0.5 * log(2 * pi)


@compiled
def draw_vectors(
    numbers: Floats,
    log_deviation: Floats,
    centre: Floats,
    reach: Floats,
    noise: Floats,
    action: Floats,
    log_prob: Floats,
) -> None:
    """numbers and noise [N, D], the others [D] -> action [N, D], log_prob [N].

    action = centre + reach * (numbers + exp(log_deviation) * noise)
    """
    size = len(log_deviation)
    deviation, constant = np.empty(size), 0.0
    for k in range(size):
        deviation[k] = exp(log_deviation[k]) * reach[k]
        constant -= log(deviation[k]) + HALF_LOG_2_PI
    for n in range(len(numbers)):
        total = constant
        for k in range(size):
            mean = centre[k] + numbers[n, k] * reach[k]
            action[n, k] = mean + noise[n, k] * deviation[k]
            away = (action[n, k] - mean) / deviation[k]  # of the number as it is stored
            total -= 0.5 * away * away
        log_prob[n] = total


@compiled
def evaluate_vectors(
    numbers: Floats,
    log_deviation: Floats,
    centre: Floats,
    reach: Floats,
    action: Floats,
    log_prob: Floats,
    entropy: Floats,
    away: Floats,
) -> None:
    """numbers and action [N, D] -> log_prob and entropy [N]; for the backward pass away [N, D], in deviations."""
    size = len(log_deviation)
    deviation, constant = np.empty(size), 0.0
    for k in range(size):
        deviation[k] = exp(log_deviation[k]) * reach[k]
        constant -= log(deviation[k]) + HALF_LOG_2_PI
    for n in range(len(numbers)):
        total = constant
        for k in range(size):
            distance = (action[n, k] - centre[k] - numbers[n, k] * reach[k]) / deviation[k]
            away[n, k] = distance
            total -= 0.5 * distance * distance
        log_prob[n] = total
        entropy[n] = 0.5 * size - constant


@compiled
def evaluate_vectors_backward(
    log_deviation: Floats,
    away: Floats,
    d_log_prob: Floats,
    d_entropy: Floats,
    d_numbers: Floats,
    d_log_deviation: Floats,
) -> None:
    """d log p / d number = away / exp(log_deviation), d log p / d log_deviation = away^2 - 1, dH / d log_deviation = 1.

    `d_log_deviation` [D] is added to.
    """
    size = len(log_deviation)
    inverse, totals = np.empty(size), np.zeros(size)
    for k in range(size):
        inverse[k] = exp(-log_deviation[k])
    for n in range(len(away)):
        for k in range(size):
            d_numbers[n, k] = d_log_prob[n] * away[n, k] * inverse[k]
            totals[k] += d_log_prob[n] * (np.float64(away[n, k]) * away[n, k] - 1.0) + d_entropy[n]
    for k in range(size):
        d_log_deviation[k] += totals[k]

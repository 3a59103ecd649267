"""Choices: drawing them, and how likely those taken were, one pass over a batch each.

N steps  C choices  A logits of all choices together; float32
"""

from __future__ import annotations

from math import exp, log

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled

Floats = npt.NDArray[np.float32]
LEAST = np.finfo(np.float32).min  # for what is forbidden; finite, so that where all is, no NaN comes of it


@compiled
def draw_choices(
    logits: Floats,
    allowed: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    draws: npt.NDArray[np.float64],
    action: npt.NDArray[np.int32],
    log_prob: Floats,
) -> None:
    """logits [N, A], allowed [N, A] (or [0, 0]: all are), draws [N, C] from [0, 1) -> action [N, C], log_prob [N].

    A choice k is drawn where the probabilities up to k first exceed the draw. Where nothing is allowed, all are equal.
    """
    masked = allowed.shape[0] > 0
    mass = np.empty(logits.shape[1], np.float64)
    for n in range(logits.shape[0]):
        first, log_probability = 0, 0.0
        for c in range(len(sizes)):
            last = first + sizes[c]
            none = masked and not allowed[n, first:last].any()
            top = -np.inf
            for k in range(first, last):
                mass[k] = 0.0 if none else -np.inf if masked and not allowed[n, k] else logits[n, k]
                top = max(top, mass[k])
            total = 0.0
            for k in range(first, last):
                mass[k] = exp(mass[k] - top)
                total += mass[k]
            wanted, reached, chosen = draws[n, c] * total, 0.0, first
            for k in range(first, last):
                if mass[k] > 0.0:
                    reached += mass[k]
                    chosen = k
                    if reached > wanted:
                        break
            action[n, c] = chosen - first
            log_probability += log(mass[chosen] / total)
            first = last
        log_prob[n] = log_probability


@compiled
def weigh_choices(
    logits: Floats,
    allowed: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    action: npt.NDArray[np.int32],
    log_prob: Floats,
    entropy: Floats,
    log_probs: Floats,
    probs: Floats,
) -> None:
    """logits and allowed as above, action [N, C] -> log_prob and entropy [N]; and for the way back, of all, [N, A]."""
    masked = allowed.shape[0] > 0
    for n in range(logits.shape[0]):
        first, chosen, spread = 0, 0.0, 0.0
        for c in range(len(sizes)):
            last = first + sizes[c]
            top = -np.inf
            for k in range(first, last):
                log_probs[n, k] = LEAST if masked and not allowed[n, k] else logits[n, k]
                top = max(top, log_probs[n, k])
            total = 0.0
            for k in range(first, last):
                log_probs[n, k] -= top
                probs[n, k] = exp(log_probs[n, k])
                total += probs[n, k]
            shift = log(total)
            for k in range(first, last):
                log_probs[n, k] -= shift
                probs[n, k] /= total
                spread -= probs[n, k] * log_probs[n, k]
            chosen += log_probs[n, first + action[n, c]]
            first = last
        log_prob[n] = chosen
        entropy[n] = spread


@compiled
def weigh_choices_backward(
    log_probs: Floats,
    probs: Floats,
    allowed: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    action: npt.NDArray[np.int32],
    d_log_prob: Floats,
    d_entropy: Floats,
    d_logits: Floats,
) -> None:
    """d log p_a / d z_k = 1[k = a] - p_k, and dH / d z_k = -p_k (log p_k + H), for each choice; 0 where not allowed."""
    masked = allowed.shape[0] > 0
    for n in range(probs.shape[0]):
        first = 0
        for c in range(len(sizes)):
            last = first + sizes[c]
            spread = 0.0
            for k in range(first, last):
                spread -= probs[n, k] * log_probs[n, k]
            for k in range(first, last):
                share = d_log_prob[n] + d_entropy[n] * (log_probs[n, k] + spread)
                d_logits[n, k] = (d_log_prob[n] if k == first + action[n, c] else 0.0) - probs[n, k] * share
                if masked and not allowed[n, k]:
                    d_logits[n, k] = 0.0
            first = last

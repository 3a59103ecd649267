"""Drawing of choices, one pass over a batch. N steps, C choices, A logits of all choices together; float32."""

from __future__ import annotations

from math import exp, log

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled

Floats = npt.NDArray[np.float32]


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

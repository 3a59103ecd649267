"""Sampling of minibatches from rows. R rows  b rows of a minibatch"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Sampling = Literal["uniform", "sequential", "prioritized", "independent"]
SMALLEST = 1e-6  # added to priorities, so that every row can be drawn


@dataclass(frozen=True)
class Draw:
    """The rows of one minibatch and their importance weights."""

    rows: npt.NDArray[np.int64]  # [b]
    weight: npt.NDArray[np.float32]  # [b]


def draw_minibatches(
    sampling: Sampling,
    num_rows: int,
    minibatch_rows: int,
    rng: np.random.Generator,
    *,
    priority: Callable[[], npt.NDArray[np.float64]] | None = None,
    alpha: float = 0.0,
    beta: float = 1.0,
    count: int | None = None,
    replacement: bool = False,
) -> Iterator[Draw]:
    """Yield the minibatches of one update epoch: as many as there are rows for, or `count` if they are drawn one by one.

    `uniform` is a new permutation: every row exactly once. `prioritized` draws each minibatch independently, without
    replacement within it, with probability p_i ~ priority_i ** alpha, and weights (R p_i) ** -beta that correct the bias as
    beta approaches 1; `priority` is called for each minibatch. With alpha 0 it is the permutation. `independent` draws
    each minibatch independently, too, all rows alike: a row may be in several minibatches, or in none. With `replacement` a
    row may also be in one of these minibatches twice.
    """
    count = num_rows // minibatch_rows if count is None else count
    if sampling == "prioritized" and alpha > 0:
        if priority is None:
            raise ValueError("prioritized sampling needs priorities")
        for _ in range(count):
            weights = (priority() + SMALLEST) ** alpha
            probability = weights / weights.sum()
            rows = rng.choice(num_rows, size=minibatch_rows, replace=replacement, p=probability)
            yield Draw(rows, ((num_rows * probability[rows]) ** -beta).astype(np.float32))
        return
    if sampling == "independent":
        for _ in range(count):
            rows = (
                rng.integers(num_rows, size=minibatch_rows)
                if replacement
                else rng.permutation(num_rows)[:minibatch_rows]
            )
            yield Draw(rows, np.ones(minibatch_rows, np.float32))
        return
    order = np.arange(num_rows) if sampling == "sequential" else rng.permutation(num_rows)
    ones = np.ones(minibatch_rows, np.float32)
    for first in range(0, num_rows, minibatch_rows):
        yield Draw(order[first : first + minibatch_rows], ones)


def annealed_beta(beta0: float, progress: float, share: float = 1.0) -> float:
    """Return beta at `progress` of the run: from beta0 at the start through `share` of the way to 1."""
    return beta0 + (1.0 - beta0) * share * min(max(progress, 0.0), 1.0)

"""Adam (Kingma and Ba, 2015) and RAdam (Liu et al., 2020) on the rows of a parameter matrix.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
    Adam    p <- p - lr  m^ / (sqrt(v^) + eps)                  m^ = m / (1 - b1^t), v^ = v / (1 - b2^t)
    RAdam   p <- p - lr r_t m^ / (sqrt(v^) + eps)               where the variance of v^ is tractable (rho_t > 5)
            p <- p - lr m^                                      where it is not: the first steps

Every row has its own number of updates t and its own learning rate, as if it had an optimiser of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
TRACTABLE = 5.0


class RowOptimizer:
    """`rectified`: RAdam, else Adam. `data` and `grad` are [A, P]; `updates` counts each row's steps."""

    def __init__(self, data: Tensor, grad: Tensor, *, rectified: bool) -> None:
        self.data, self.grad, self.rectified = data, grad, rectified
        self.first, self.second = torch.zeros_like(data), torch.zeros_like(data)
        self.updates = [0] * len(data)

    @torch.no_grad()
    def step(self, learning_rates: Sequence[float]) -> None:
        """One update of every row with its own learning rate."""
        self.first.lerp_(self.grad, 1 - BETA1)
        self.second.mul_(BETA2).addcmul_(self.grad, self.grad, value=1 - BETA2)
        self.updates = [count + 1 for count in self.updates]
        pairs = list(zip(self.updates, learning_rates, strict=True))
        if len(set(pairs)) == 1:
            self._apply(slice(None), *pairs[0])
        else:
            for row, (updates, rate) in enumerate(pairs):
                self._apply(slice(row, row + 1), updates, rate)

    def _apply(self, rows: slice, updates: int, rate: float) -> None:
        rate /= 1 - BETA1**updates
        correction = 1 - BETA2**updates
        if self.rectified:
            longest = 2 / (1 - BETA2) - 1
            length = longest - 2 * updates * BETA2**updates / correction
            if length <= TRACTABLE:
                self.data[rows].add_(self.first[rows], alpha=-rate)
                return
            above, below = (length - 4) * (length - 2) * longest, (longest - 4) * (longest - 2) * length
            rate *= math.sqrt(above / below)
        root = math.sqrt(correction)
        # sqrt(v^) + eps = (sqrt(v) + eps root) / root
        deviation = self.second[rows].sqrt().add_(EPS * root)
        self.data[rows].addcdiv_(self.first[rows], deviation, value=-rate * root)

    def reset(self, row: int) -> None:
        """Begin anew with one row."""
        self.first[row].zero_()
        self.second[row].zero_()
        self.updates[row] = 0

    def row_state(self, row: int) -> dict[str, Any]:
        return {
            "first": self.first[row].clone(),
            "second": self.second[row].clone(),
            "updates": self.updates[row],
        }

    def load_row_state(self, row: int, state: dict[str, Any]) -> None:
        self.first[row].copy_(state["first"])
        self.second[row].copy_(state["second"])
        self.updates[row] = int(state["updates"])

"""Muon: momentum with orthogonalised matrices (Jordan et al., 2024).

    m <- beta m + g           u = g + beta m                            (Nesterov)
    W <- W - lr sqrt(max(1, rows / columns)) orthogonal(u)              matrices; rows of filters: the first axis
    b <- b - lr u                                                       vectors

As in PufferLib, whose default it is: vectors follow the momentum unchanged, and there is one state number per parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

ROUNDS = 5
A, B, C = 3.4445, -4.7750, 2.0315  # Jordan's: steepest at 0; singular values end between 0.7 and 1.2


def orthogonal(matrix: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Return about U V' of a matrix U S V', with all singular values near 1, by the Newton-Schulz iteration.

        X <- A X + B (X X') X + C (X X')^2 X

    It maps each singular value s to A s + B s^3 + C s^5, starting with all of them in 0..1. It is computed on the side on
    which X X' is smaller.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.t() if tall else matrix
    x = x / x.norm().clamp(min=1e-12)
    for _ in range(rounds):
        square = x @ x.t()
        x = A * x + torch.addmm(square, square, square, beta=B, alpha=C) @ x
    return x.t() if tall else x


class Muon(torch.optim.Optimizer):
    """Muon for all parameters of a policy."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters that have gradients; a closure is not called."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(self._update(parameter, group["momentum"]), alpha=group["lr"])

    def _update(self, parameter: Tensor, beta: float) -> Tensor:
        state: dict[str, Any] = self.state[parameter]
        gradient = parameter.grad
        assert gradient is not None
        momentum = state.setdefault("momentum", torch.zeros_like(parameter))
        momentum.mul_(beta).add_(gradient)
        update = gradient.add(momentum, alpha=beta)
        if update.dim() < 2:
            return update
        flat = update.flatten(1)
        rows, columns = flat.shape
        scaled: Tensor = orthogonal(flat) * max(1.0, rows / columns) ** 0.5
        return scaled.view_as(update)

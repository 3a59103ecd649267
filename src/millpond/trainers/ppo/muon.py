"""Muon: momentum with orthogonalised matrices (Jordan et al., 2024), in its original form and in those of PufferLib.

    original   m <- beta m + g                  u = g + beta m     constant coefficients
    puffer3    m <- beta m + (1 - beta) g       u = g + m          coefficients per round
    puffer4    m <- beta m + g                  u = g + beta m     coefficients per round

    W <- W - lr sqrt(max(1, rows / columns)) orthogonal(u)         matrices; rows of filters: the first axis
    b <- b - lr u                                                  vectors

The latest gradient has half of the weight in `puffer3`, whatever beta is, and about a tenth in the others at beta 0.95; vectors
then take steps of twice a gradient instead of twenty times. PufferLib iterates in bfloat16 on matrices in float32, this
in their own precision. There is one state number per parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

MuonForm = Literal["original", "puffer3", "puffer4"]
Coefficients = tuple[float, float, float]

# Steepest at 0: singular values end between 0.7 and 1.2.
ORIGINAL: tuple[Coefficients, ...] = ((3.4445, -4.7750, 2.0315),) * 5
# One polynomial per round, as in PufferLib 3 (heavyball) and 4: singular values end nearer to 1.
PER_ROUND: tuple[Coefficients, ...] = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def orthogonal(matrix: Tensor, rounds: Iterable[Coefficients] = ORIGINAL) -> Tensor:
    """Return about U V' of a matrix U S V', with all singular values near 1, by the Newton-Schulz iteration.

        X <- a X + b (X X') X + c (X X')^2 X

    It maps each singular value s to a s + b s^3 + c s^5, starting with all of them in 0..1. It is computed on the side on
    which X X' is smaller.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.t() if tall else matrix
    x = x / x.norm().clamp(min=1e-12)
    for a, b, c in rounds:
        square = x @ x.t()
        x = a * x + torch.addmm(square, square, square, beta=b, alpha=c) @ x
    return x.t() if tall else x


class Muon(torch.optim.Optimizer):
    """Muon for all parameters of a policy."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, momentum: float, form: MuonForm = "original"
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        self.averages = form == "puffer3"
        self.rounds = ORIGINAL if form == "original" else PER_ROUND

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
        momentum.mul_(beta).add_(gradient, alpha=1.0 - beta if self.averages else 1.0)
        update = gradient.add(momentum, alpha=1.0 if self.averages else beta)
        if update.dim() < 2:
            return update
        flat = update.flatten(1)
        rows, columns = flat.shape
        scaled: Tensor = orthogonal(flat, self.rounds) * max(1.0, rows / columns) ** 0.5
        return scaled.view_as(update)

"""Schedule-free AdamW (Defazio et al., 2024, arXiv 2405.15682): averaging of weights in place of a schedule.

    y_t     = (1 - beta1) z_t + beta1 x_t                   gradients are taken here
    v_t     = beta2 v_{t-1} + (1 - beta2) g_t^2             g_t is the gradient at y_t
    gamma_t = lr min(1, t / warmup)
    z_{t+1} = z_t - gamma_t (g_t / (sqrt(v_t / (1 - beta2^t)) + eps) + decay y_t)
    x_{t+1} = (1 - c) x_t + c z_{t+1}                       c = gamma_t^2 / (gamma_1^2 + ... + gamma_t^2)

The parameters hold y. Training acts with them, too, so that rows are those of the policy whose gradient is taken. Evaluations
and checkpoints use x, the average; the optimizer's state has x and z, from which y follows exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

POINTS = ("x", "z")


class ScheduleFreeAdamW(torch.optim.Optimizer):
    """Schedule-free AdamW for all parameters of a policy."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        warmup: int = 0,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "warmup": warmup}
        super().__init__(parameters, {**settings, "steps": 0, "sum_of_squares": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters that have gradients; a closure is not called."""
        for group in self.param_groups:
            group["steps"] += 1
            steps, (beta1, beta2) = group["steps"], group["betas"]
            rate = group["lr"] * min(1.0, steps / max(1, group["warmup"]))
            group["sum_of_squares"] += rate**2
            share = rate**2 / group["sum_of_squares"] if rate else 0.0
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self._state_of(parameter)
                x, z, square = state["x"], state["z"], state["exp_avg_sq"]
                square.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                deviation = (square / (1 - beta2**steps)).sqrt_().add_(group["eps"])
                z.add_(parameter, alpha=-rate * group["weight_decay"]).addcdiv_(parameter.grad, deviation, value=-rate)
                x.lerp_(z, share)
                parameter.copy_(torch.lerp(z, x, beta1))

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["exp_avg_sq"] = torch.zeros_like(parameter)
            for point in POINTS:
                state[point] = parameter.detach().clone()
        return state

    @torch.no_grad()
    def to_average(self) -> None:
        """Put x into the parameters."""
        for parameter, state in self.state.items():
            parameter.copy_(state["x"])

    @torch.no_grad()
    def to_training_point(self) -> None:
        """Put y into the parameters."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if state := self.state.get(parameter):
                    parameter.copy_(torch.lerp(state["z"], state["x"], group["betas"][0]))


@contextmanager
def averaged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Use the averaged weights, if the optimizer averages any."""
    if not isinstance(optimizer, ScheduleFreeAdamW):
        yield
        return
    optimizer.to_average()
    try:
        yield
    finally:
        optimizer.to_training_point()


def follow_value_scale(optimizer: torch.optim.Optimizer, layer: nn.Linear, before: Tensor, factor: Tensor) -> None:
    """Rescale x and z of the value's weights as `Policy.update_value_scale` rescaled y; `before` is its bias until then."""
    for point in POINTS:
        weight, bias = (optimizer.state.get(parameter, {}).get(point) for parameter in (layer.weight, layer.bias))
        if weight is not None and bias is not None:
            weight[-1].mul_(factor)
            bias[-1].copy_(layer.bias.detach()[-1] + (bias[-1] - before) * factor)

"""Clipping and Adam on the CPU in float32: one compiled pass over each parameter.

    m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
    p = p - lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)

The state stays that of `torch.optim.Adam`, and so do its checkpoints.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.compiled import compiled_fast

Floats = npt.NDArray[np.float32]


@compiled_fast
def sum_of_squares(numbers: Floats) -> float:
    """Return the sum in float64."""
    total = 0.0
    for k in range(len(numbers)):
        total += np.float64(numbers[k]) * np.float64(numbers[k])
    return total


@compiled_fast
def scale(numbers: Floats, factor: np.float32) -> None:
    """Multiply in place."""
    for k in range(len(numbers)):
        numbers[k] *= factor


@compiled_fast
def adam_update(
    parameter: Floats,
    gradient: Floats,
    first: Floats,
    second: Floats,
    beta1: np.float32,
    beta2: np.float32,
    step_size: np.float32,
    correction: np.float32,
    eps: np.float32,
) -> None:
    """Update a parameter and its moments; `correction` is sqrt(1 - beta2^t). One output array per loop, to use vectors."""
    keep1, keep2 = np.float32(1.0) - beta1, np.float32(1.0) - beta2
    for k in range(len(gradient)):
        first[k] = beta1 * first[k] + keep1 * gradient[k]
    for k in range(len(gradient)):
        second[k] = beta2 * second[k] + keep2 * gradient[k] * gradient[k]
    for k in range(len(gradient)):
        parameter[k] -= step_size * first[k] / (np.sqrt(second[k]) / correction + eps)


def is_compiled_adam(optimizer: torch.optim.Optimizer) -> bool:
    """True for torch's Adam without options that the compiled pass does not know."""
    unknown = ("weight_decay", "amsgrad", "maximize", "capturable", "differentiable")
    return type(optimizer) is torch.optim.Adam and not any(
        group[name] for group in optimizer.param_groups for name in unknown
    )


class CompiledAdam:
    """Takes the steps of a `torch.optim.Adam`, in its state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._arrays: dict[int, tuple[Tensor, Any, Any, Any]] = {}  # by parameter: exp_avg, and arrays of the state

    def step(self) -> None:
        """Update all parameters that have a gradient."""
        for group in self.optimizer.param_groups:
            beta1, beta2 = group["betas"]
            betas, eps = (np.float32(beta1), np.float32(beta2)), np.float32(group["eps"])
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.optimizer.state[parameter] or self._begin(parameter)
                    count = state["step"]
                    count += 1
                    t = count.item()
                    step_size, correction = group["lr"] / (1.0 - beta1**t), sqrt(1.0 - beta2**t)
                    adam_update(
                        *self._of(parameter, state),
                        *betas,
                        np.float32(step_size),
                        np.float32(correction),
                        eps,
                    )

    def _begin(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the state before the first step, as torch makes it."""
        state: dict[str, Tensor] = self.optimizer.state[parameter]
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state

    def _of(self, parameter: Tensor, state: dict[str, Tensor]) -> tuple[Any, Any, Any, Any]:
        """Return parameter, gradient and both moments as flat arrays. Loading a checkpoint replaces the moments."""
        cached = self._arrays.get(id(parameter))
        if cached is None or cached[0] is not state["exp_avg"]:
            moments = state["exp_avg"], state["exp_avg_sq"]
            weights, first, second = (tensor.detach().view(-1).numpy() for tensor in (parameter, *moments))
            cached = self._arrays[id(parameter)] = state["exp_avg"], weights, first, second
        _, weights, first, second = cached
        assert parameter.grad is not None
        return weights, parameter.grad.view(-1).numpy(), first, second

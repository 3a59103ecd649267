"""Clipping and Adam on the CPU in float32: one compiled pass over each parameter.

    m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
    p = p - lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)

The state stays that of `torch.optim.Adam`, and so do its checkpoints.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.compiled import compiled_fast

Floats = npt.NDArray[np.float32]
BLOCK = 2_048  # numbers of each array


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
    eps: np.float32,
    step_size: np.float32,
    correction: np.float32,
) -> None:
    """Update a parameter and its moments; `correction` is sqrt(1 - beta2^t).

    One output array per loop, so that loops use vectors; in blocks that stay in the cache from one loop to the next.
    """
    keep1, keep2 = np.float32(1.0) - beta1, np.float32(1.0) - beta2
    for start in range(0, len(gradient), BLOCK):
        stop = min(len(gradient), start + BLOCK)
        p, g, m, v = parameter[start:stop], gradient[start:stop], first[start:stop], second[start:stop]
        for k in range(len(g)):
            m[k] = beta1 * m[k] + keep1 * g[k]
        for k in range(len(g)):
            v[k] = beta2 * v[k] + keep2 * g[k] * g[k]
        for k in range(len(g)):
            p[k] -= step_size * m[k] / (np.sqrt(v[k]) / correction + eps)


def is_compiled_adam(optimizer: torch.optim.Optimizer) -> bool:
    """True for torch's Adam of contiguous float32 parameters on the CPU, without options that are not compiled."""
    if type(optimizer) is not torch.optim.Adam:
        return False
    unknown = ("weight_decay", "amsgrad", "maximize", "capturable", "differentiable")
    if any(group[name] for group in optimizer.param_groups for name in unknown):
        return False
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return all(p.is_contiguous() and p.is_cpu and p.dtype == torch.float32 for p in parameters)


class _State(NamedTuple):
    """A parameter's state in the optimizer, and arrays of the same memory: flat ones, and the step as a number."""

    moment: Tensor  # replaced when a checkpoint is loaded
    step: Any
    parameter: Any
    first: Any
    second: Any


class CompiledAdam:
    """Takes the steps of a `torch.optim.Adam`, in its state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._states: dict[int, _State] = {}  # by parameter

    def step(self) -> None:
        """Update all parameters that have a gradient."""
        for group in self.optimizer.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            constants = np.float32(beta1), np.float32(beta2), np.float32(group["eps"])
            t, scales = 0.0, (np.float32(0), np.float32(0))
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self._state_of(parameter)
                steps = state.step.item() + 1.0
                state.step.fill(steps)
                if steps != t:  # the same for nearly all parameters
                    t, scales = steps, (np.float32(rate / (1.0 - beta1**steps)), np.float32(sqrt(1.0 - beta2**steps)))
                array = gradient.view(-1).numpy()
                adam_update(state.parameter, array, state.first, state.second, *constants, *scales)

    def _state_of(self, parameter: Tensor) -> _State:
        state = self.optimizer.state[parameter]
        if not state:  # before the first step: as torch makes it
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        cached = self._states.get(id(parameter))
        if cached is None or cached.moment is not state["exp_avg"]:
            tensors = parameter, state["exp_avg"], state["exp_avg_sq"]
            arrays = (tensor.detach().view(-1).numpy() for tensor in tensors)
            cached = self._states[id(parameter)] = _State(state["exp_avg"], state["step"].numpy(), *arrays)
        return cached

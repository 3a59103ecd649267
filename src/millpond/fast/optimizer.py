"""The steps of `torch.optim.Adam` on the CPU in float32: one compiled pass over each parameter.

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
from millpond.fast.adam import ONE, adam

Floats = npt.NDArray[np.float32]
NO_TARGET = np.zeros(0, np.float32)


@compiled_fast
def scale(numbers: Floats, factor: np.float32) -> None:
    """Multiply in place."""
    for k in range(len(numbers)):
        numbers[k] *= factor


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
            t, constants = 0.0, (np.float32(0), np.float32(0))
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self._state_of(parameter)
                steps = state.step.item() + 1.0
                state.step.fill(steps)
                if steps != t:  # the same for nearly all parameters
                    correction = sqrt(1.0 - beta2**steps)
                    t, constants = (
                        steps,
                        (
                            np.float32(rate * correction / (1.0 - beta1**steps)),
                            np.float32(group["eps"] * correction),
                        ),
                    )
                arrays = state.parameter, gradient.view(-1).numpy(), state.first, state.second, NO_TARGET
                adam(*arrays, 0, gradient.numel(), ONE, beta1, beta2, *constants, True, ONE)

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

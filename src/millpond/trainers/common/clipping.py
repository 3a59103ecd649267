"""Clipping gradients by their norm, all together."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.policies.precision import is_fused_for

Floats = npt.NDArray[np.float32]


@compiled_fast
def sum_of_squares(numbers: Floats) -> float:
    total = 0.0
    for k in range(len(numbers)):
        total += np.float64(numbers[k]) * np.float64(numbers[k])
    return total


@compiled_fast
def scale(numbers: Floats, factor: np.float32) -> None:
    for k in range(len(numbers)):
        numbers[k] *= factor


def clip_gradients(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients down to `max_norm` where their norm is larger; returns the norm that they had.

    As torch's own does, which takes some ten operations on lists of tensors for it. A NaN spreads to all of them.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not all(is_fused_for(gradient) and gradient.is_contiguous() for gradient in gradients):
        return nn.utils.clip_grad_norm_(parameters, max_norm)
    arrays: list[Any] = [gradient.view(-1).numpy() for gradient in gradients]
    norm = sum(map(sum_of_squares, arrays)) ** 0.5
    if not norm <= max_norm:
        for array in arrays:
            scale(array, np.float32(max_norm / (norm + 1e-6)))
    return torch.tensor(norm, dtype=torch.float32)

"""In what precision a layer of our own computes."""

from __future__ import annotations

import torch
from torch import Tensor


def computing_dtype(features: Tensor) -> torch.dtype:
    """The dtype of matrix products: that of autocast where it is on, else that of the features."""
    kind = features.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype


def is_fused_for(features: Tensor) -> bool:
    """Whether the numba kernels can take it; elsewhere plain torch computes the same."""
    return features.device.type == "cpu" and features.dtype == torch.float32


def is_fused_now(features: Tensor) -> bool:
    """The same, for kernels that are called as they are: without a way back, and not while torch.compile looks on."""
    return is_fused_for(features) and not torch.compiler.is_compiling() and not torch.is_grad_enabled()

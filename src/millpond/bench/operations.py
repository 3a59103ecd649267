"""Counting the floating-point operations of matrix products and convolutions, which stages are measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from millpond.policies.products import through_torch
from millpond.policies.threads import torch_threads

BACKWARD_TOO = 3  # for each product forward, one for the inputs' gradient and one for the weights'


def operations(work: Callable[[], object]) -> float:
    """Floating-point operations of the matrix products in a call, which is made in this thread alone."""
    in_place: dict[Any, Any] = {torch.ops.aten.addmm_: _product_operations}  # torch counts all but this one
    counted = FlopCounterMode(display=False, custom_mapping=in_place)
    with torch_threads(1), through_torch(), counted as counter:
        work()
    return float(counter.get_total_flops())


def _product_operations(
    target: torch.Size, left: torch.Size, right: torch.Size, *, out_shape: Any = None, **scales: Any
) -> int:
    return 2 * left[0] * left[1] * right[1]

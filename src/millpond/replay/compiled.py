"""Numba as this package uses it: compiled once and cached, and without holding Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile to machine code that runs without the GIL and lands in Numba's cache on disk."""
    result: Function = numba.njit(nogil=True, cache=True)(function)
    return result


# Positions in buffers are unsigned: Numba then leaves out the code for negative indices.
Position = np.uintp

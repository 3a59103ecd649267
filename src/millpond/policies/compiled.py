"""How the kernels of this package are compiled: numba, without Python's lock, kept on disk.

Sums may be reordered and products fused, so that the loops use whole vector registers. What is *not* allowed is to
assume that numbers are finite: a NaN must come out where a NaN went in, or divergence would be hidden.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

FAST = {"contract", "reassoc", "nsz", "arcp"}


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile a function when it is first called; its type stays what it says."""
    try:
        made = njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")(function)
    except RuntimeError as error:  # numba found no folder that it may write to
        warnings.warn(
            f"compiled code cannot be kept on disk, so every process compiles it anew ({error}); "
            "set NUMBA_CACHE_DIR to a folder that can be written to",
            stacklevel=2,
        )
        made = njit(nogil=True, fastmath=FAST, error_model="numpy")(function)
    return cast(Callable[Parameters, Result], made)


def inlined(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A scalar function that becomes part of the loop that calls it."""
    return cast(Callable[Parameters, Result], njit(fastmath=FAST, error_model="numpy", inline="always")(function))

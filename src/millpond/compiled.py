"""How loops are compiled: numba, without Python's lock, kept on disk.

numba keeps compiled code beside the source, or, where that folder cannot be written to (a system-wide installation),
in the user's cache folder; NUMBA_CACHE_DIR overrides both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Sums may be reordered and products fused, so that loops use whole vector registers. What is not allowed is to assume
# that numbers are finite: a NaN must come out where a NaN went in, or divergence would be hidden.
FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy"}


def compiled(function: Callable[Parameters, Result], **options: Any) -> Callable[Parameters, Result]:
    """Compile a function when it is first called; its type stays what it says."""
    try:
        made = njit(nogil=True, cache=True, **options)(function)
    except RuntimeError as error:  # numba found no folder that it may write to
        warnings.warn(
            f"compiled code cannot be kept on disk, so every process compiles it anew ({error}); "
            "set NUMBA_CACHE_DIR to a folder that can be written to",
            stacklevel=2,
        )
        made = njit(nogil=True, **options)(function)
    return cast(Callable[Parameters, Result], made)


def compiled_fast(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The same for arithmetic on floats, whose order may change."""
    return compiled(function, **FAST)


def inlined(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A scalar function that becomes part of the loop of floats that calls it."""
    return cast(Callable[Parameters, Result], njit(inline="always", **FAST)(function))

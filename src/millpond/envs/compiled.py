"""How worlds are compiled: numba, without Python's lock, kept on disk.

numba keeps compiled code beside the source, or, where that folder cannot be written to (a system-wide installation),
in the user's cache folder; NUMBA_CACHE_DIR overrides both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile a function when it is first called; its type stays what it says."""
    try:
        made = njit(nogil=True, cache=True)(function)
    except RuntimeError as error:  # numba found no folder that it may write to
        warnings.warn(
            f"compiled code cannot be kept on disk, so every process compiles it anew ({error}); "
            "set NUMBA_CACHE_DIR to a folder that can be written to",
            stacklevel=2,
        )
        made = njit(nogil=True)(function)
    return cast(Callable[Parameters, Result], made)

"""How loops are compiled: numba, without Python's lock, kept on disk.

numba keeps compiled code beside the source, or, where that folder cannot be written to (a system-wide installation),
in the user's cache folder; NUMBA_CACHE_DIR overrides both. It compiles anew when the function's own file has changed,
but not when a function that it calls has, in another file: what was compiled then goes on with the old one. So the mark
that it compares is extended here by what the function uses.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from llvmlite import binding  # type: ignore[import-untyped]
from numba import config, njit

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Sums may be reordered and products fused, so that loops use whole vector registers. What is not allowed is to assume
# that numbers are finite: a NaN must come out where a NaN went in, or divergence would be hidden.
FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy"}


def target_features() -> frozenset[str]:
    """Features of the processor that numba compiles for: this one, or what NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say."""
    if config.CPU_FEATURES is not None:
        text = config.CPU_FEATURES
    else:
        try:
            text = binding.get_host_cpu_features().flatten()
        except RuntimeError:  # LLVM does not know this processor
            text = ""
    return frozenset(feature[1:] for feature in text.split(",") if feature.startswith("+"))


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
    else:
        kept = made._cache._cache_file
        kept._source_stamp = (kept._source_stamp, _mark(function))
    return cast(Callable[Parameters, Result], made)


OF_PROCESSOR = {"PAYS"}  # constants that follow from the processor, by which numba keeps what it compiled apart itself


def _mark(function: Callable[..., Any]) -> str:
    """Of what a function is and uses: its code, the constants of its module, and the same of compiled ones it calls."""
    used = []
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        called = getattr(value, "py_func", None) or getattr(value, "_defn", None)  # the latter of numba's intrinsics
        if called is not None:
            used.append((name, _mark(called)))
        elif name not in OF_PROCESSOR and isinstance(value, (bool, int, float, str, tuple, np.generic)):
            used.append((name, repr(value)))
    return hashlib.sha256(repr((_written(function.__code__), used)).encode()).hexdigest()


def _written(code: CodeType) -> tuple[Any, ...]:
    """What stands in it, without where it is."""
    return code.co_code, code.co_names, [_written(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]


def compiled_fast(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The same for arithmetic on floats, whose order may change."""
    return compiled(function, **FAST)


def inlined(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A scalar function that becomes part of the loop of floats that calls it."""
    return cast(Callable[Parameters, Result], njit(inline="always", **FAST)(function))

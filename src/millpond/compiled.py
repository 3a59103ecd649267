"""Compilation of loops: numba, without the GIL, cached on disk.

numba caches compiled code beside the source, or in the user's cache folder if that folder is not writable (a system-wide
installation); NUMBA_CACHE_DIR overrides both. It recompiles when the function's own file has changed, but not when a function
that it calls has changed in another file: the cached code would go on with the old one. So the stamp by which numba
recognises a change is extended here by a fingerprint of everything that the function uses.
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

# Sums may be reordered and products fused, so that loops use whole vector registers. Numbers may not be assumed finite: a NaN
# must come out where a NaN went in, or divergence would be hidden.
FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy"}
# Constants that follow from the processor; numba caches code per processor anyway.
OF_PROCESSOR = {"USE_PACKED_GEMM", "LANES", "PANEL", "MAX_ROWS"}


def target_features() -> frozenset[str]:
    """Return the features of the processor that numba compiles for.

    It is this one, or the one that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES describe.
    """
    if config.CPU_FEATURES is not None:
        text = config.CPU_FEATURES
    else:
        try:
            text = binding.get_host_cpu_features().flatten()
        except RuntimeError:  # LLVM does not know this processor
            text = ""
    return frozenset(feature[1:] for feature in text.split(",") if feature.startswith("+"))


def compiled(function: Callable[Parameters, Result], **options: Any) -> Callable[Parameters, Result]:
    """Compile a function when it is first called; its type stays the declared one."""
    try:
        dispatcher = njit(nogil=True, cache=True, **options)(function)
        extend_source_stamp(dispatcher, fingerprint(function))
    except RuntimeError as error:  # no writable folder, or a numba that is not known here
        warnings.warn(
            f"compiled code cannot be cached on disk, so every process compiles it again ({error}); "
            "set NUMBA_CACHE_DIR to a writable folder",
            stacklevel=2,
        )
        dispatcher = njit(nogil=True, **options)(function)
    return cast(Callable[Parameters, Result], dispatcher)


def compiled_fast(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile arithmetic on floats, whose order may change."""
    return compiled(function, **FAST)


def inlined(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a scalar function part of the loop over floats that calls it."""
    return cast(Callable[Parameters, Result], njit(inline="always", **FAST)(function))


def extend_source_stamp(dispatcher: Any, mark: str) -> None:
    """Make numba's cache depend on `mark`, too.

    numba has no public way to do this for single functions (NUMBA_CACHE_LOCATOR_CLASSES is for a whole process, and new), so
    this writes private attributes. The mark is part of the version, too: numba unpickles the index of a cache only if its
    version is right, and an index may name classes that have moved since. Raises RuntimeError if numba has changed: code is
    then not cached at all, since it might be stale.
    """
    try:
        cache_file = dispatcher._cache._cache_file
        cache_file._version = (cache_file._version, cache_file._source_stamp, mark)
        cache_file._source_stamp = (cache_file._source_stamp, mark)
    except AttributeError as error:
        raise RuntimeError(f"this version of numba has another cache: {error}") from error


def fingerprint(function: Callable[..., Any]) -> str:
    """Return a hash of a function's code, the constants of its module that it uses, and the compiled functions it calls."""
    used = []
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        called = getattr(value, "py_func", None) or getattr(value, "_defn", None)  # the latter of numba's intrinsics
        if called is not None:
            used.append((name, fingerprint(called)))
        elif name not in OF_PROCESSOR and isinstance(value, (bool, int, float, str, tuple, np.generic)):
            used.append((name, repr(value)))
    return hashlib.sha256(repr((_contents(function.__code__), used)).encode()).hexdigest()


def _contents(code: CodeType) -> tuple[Any, ...]:
    """Return the contents of a code object without its location."""
    return code.co_code, code.co_names, [_contents(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]

"""How worlds are compiled: numba, without Python's lock, kept on disk.

numba keeps compiled code beside the source, or, where that folder cannot be written to (a system-wide installation),
in the user's cache folder; NUMBA_CACHE_DIR overrides both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

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


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing: Any, array: Any, row: Any, column: Any) -> tuple[Any, Callable[..., Any]]:
    """Ask the processor to bring array[row, column] into its cache, and do not wait for it.

    Who goes through many envs, each a kilobyte in a random order, otherwise waits for memory at every one.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        made = context.make_array(kind)(context, builder, arguments[0])
        place = cgutils.get_item_pointer(context, builder, kind, made, arguments[1:], wraparound=False)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        hint = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, hint, "llvm.prefetch.p0")
        # The three numbers of LLVM's instruction: to read, to keep in all caches, data.
        builder.call(function, [builder.bitcast(place, byte), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate

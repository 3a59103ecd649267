"""What numba has no word for: a hint to the processor's cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


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

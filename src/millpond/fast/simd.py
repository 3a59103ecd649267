"""Eight float32 at a time inside compiled loops, as a value type: `Eight`.

The compiler does not vectorise a loop over floats that writes to several arrays, since it cannot know that they do not
overlap; with one output array per loop it does, after a check of all addresses that takes as long as a short row. Here
the vectors are explicit. On processors with shorter vectors LLVM uses two of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

WIDTH = 8
VECTOR = ir.VectorType(ir.FloatType(), WIDTH)


class EightType(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name="Eight")


EIGHT = EightType()


@register_model(EightType)
class _Register(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


def require_floats(array: Any) -> None:
    """Check, when a loop is compiled, that an array can be read and written eight at a time by address."""
    if not isinstance(array, types.Array) or array.layout != "C" or array.dtype != types.float32:
        raise TypingError(f"{array} is not a contiguous array of float32")


def write_multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Emit a * b + c of vectors; rounded once if the processor has such an instruction."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{WIDTH}f32")
    return builder.call(function, [a, b, c])


@intrinsic  # type: ignore[untyped-decorator]
def load_eight(typing_context: Any, array: Any, at: Any) -> Any:
    """array[at : at + 8] of a contiguous array, by flat index if it has more than one axis. Bounds are not checked."""
    require_floats(array)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at = arguments
        start = builder.gep(context.make_array(signature.args[0])(context, builder, array).data, [at])
        return builder.load(builder.bitcast(start, VECTOR.as_pointer()), align=4)

    return EIGHT(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_eight(typing_context: Any, value: Any, array: Any, at: Any) -> Any:
    """array[at : at + 8] = value, likewise."""
    require_floats(array)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, array, at = arguments
        start = builder.gep(context.make_array(signature.args[1])(context, builder, array).data, [at])
        builder.store(value, builder.bitcast(start, VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(EIGHT, array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def add_eight(typing_context: Any, a: Any, b: Any) -> Any:
    """a + b"""
    return EIGHT(EIGHT, EIGHT), lambda context, builder, signature, arguments: builder.fadd(*arguments)


@intrinsic  # type: ignore[untyped-decorator]
def multiply_eight(typing_context: Any, a: Any, b: Any) -> Any:
    """a * b"""
    return EIGHT(EIGHT, EIGHT), lambda context, builder, signature, arguments: builder.fmul(*arguments)


@intrinsic  # type: ignore[untyped-decorator]
def multiply_add_eight(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c"""
    return EIGHT(EIGHT, EIGHT, EIGHT), lambda context, builder, signature, arguments: write_multiply_add(
        builder, *arguments
    )

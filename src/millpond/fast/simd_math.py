"""More operations on vectors of eight float32: see `simd`.

A NaN stays a NaN in every one of them, so that divergence is not hidden.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from millpond.fast.simd import EIGHT, VECTOR, WIDTH

ZEROS = ir.Constant(VECTOR, [0.0] * WIDTH)


@intrinsic  # type: ignore[untyped-decorator]
def spread_eight(typing_context: Any, value: Any) -> Any:
    """Eight times the same number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lane, empty = ir.IntType(32), ir.Constant(VECTOR, ir.Undefined)
        first = builder.insert_element(empty, arguments[0], ir.Constant(lane, 0))
        return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(lane, WIDTH), [0] * WIDTH))

    return EIGHT(types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def subtract_eight(typing_context: Any, a: Any, b: Any) -> Any:
    """a - b"""
    return EIGHT(EIGHT, EIGHT), lambda context, builder, signature, arguments: builder.fsub(*arguments)


@intrinsic  # type: ignore[untyped-decorator]
def divide_eight(typing_context: Any, a: Any, b: Any) -> Any:
    """a / b"""
    return EIGHT(EIGHT, EIGHT), lambda context, builder, signature, arguments: builder.fdiv(*arguments)


@intrinsic  # type: ignore[untyped-decorator]
def sqrt_eight(typing_context: Any, a: Any) -> Any:
    """sqrt(a)"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(VECTOR, [VECTOR])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{WIDTH}f32")
        return builder.call(function, arguments)

    return EIGHT(EIGHT), generate


@intrinsic  # type: ignore[untyped-decorator]
def relu_eight(typing_context: Any, a: Any) -> Any:
    """max(a, 0)"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        return builder.select(builder.fcmp_ordered("<", value, ZEROS), ZEROS, value)

    return EIGHT(EIGHT), generate


@intrinsic  # type: ignore[untyped-decorator]
def where_positive_eight(typing_context: Any, condition: Any, a: Any) -> Any:
    """a where condition > 0, else 0: the gradient of ReLU. A NaN in the condition counts as positive."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        condition, value = arguments
        return builder.select(builder.fcmp_ordered("<=", condition, ZEROS), ZEROS, value)

    return EIGHT(EIGHT, EIGHT), generate


@intrinsic  # type: ignore[untyped-decorator]
def sum_eight(typing_context: Any, a: Any) -> Any:
    """The sum of the eight numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,), lane = arguments, ir.IntType(32)
        width = WIDTH
        while width > 1:
            width //= 2
            kind = ir.VectorType(lane, width)
            low = builder.shuffle_vector(value, value, ir.Constant(kind, list(range(width))))
            high = builder.shuffle_vector(value, value, ir.Constant(kind, list(range(width, 2 * width))))
            value = builder.fadd(low, high)
        return builder.extract_element(value, ir.Constant(lane, 0))

    return types.float32(EIGHT), generate

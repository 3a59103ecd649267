"""Products with a matrix that is packed first: panels of 16 columns, whose rows are contiguous.

The matrices of a small network are reused for every step of a row. On processors with vectors of eight float32 (AVX2) a
block of six rows and one panel keeps its sums in registers, and reaches nine tenths of the processor's peak, where BLAS
reaches seven to nine. On processors with longer vectors BLAS computes all products: `USE_PACKED_GEMM` is false.

    k inner  m rows  n columns, in panels of 16
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from millpond.compiled import compiled_fast, target_features
from millpond.fast.gemm import add_product, add_product_transposed, add_transposed_product
from millpond.fast.simd import VECTOR, WIDTH, require_floats, write_multiply_add

Floats = npt.NDArray[np.float32]
ONE, ZERO = np.float32(1.0), np.float32(0.0)
PANEL = 2 * WIDTH
MAX_ROWS = 6  # their sums, two vectors each, fit into 16 registers beside the factors
ROWS_AT_ONCE = 384  # stay in the second-level cache while all panels are used


def has_vectors_of_eight() -> bool:
    """True if the processor multiplies eight float32 at once, and not more."""
    features = target_features()
    return {"avx2", "fma"} <= features and "avx512f" not in features


USE_PACKED_GEMM = has_vectors_of_eight()


def _block(rows: int) -> Callable[..., None]:
    """Make the kernel of `rows` rows and one panel. It is written as LLVM IR: numba would not keep it in registers."""

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply(
        typing_context: Any,
        a: Any,
        a_at: Any,
        a_row: Any,
        a_step: Any,
        b: Any,
        b_at: Any,
        steps: Any,
        out: Any,
        out_at: Any,
        out_row: Any,
        add: Any,
    ) -> Any:
        """out[r, c] (+)= sum over k of a[a_at + r * a_row + k * a_step] * b[b_at + 16 * k + c]; all arrays flat."""
        for array in (a, b, out):
            require_floats(array)
        n = types.intp
        signature = types.void(a, n, n, n, b, n, n, out, n, n, types.boolean)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a, a_at, a_row, a_step, b, b_at, steps, out, out_at, out_row, add = arguments
            halves, width = range(2), WIDTH

            def number(value: int) -> Any:
                return ir.Constant(ir.IntType(64), value)

            def start(which: int, array: Any, at: Any) -> Any:
                return builder.gep(context.make_array(signature.args[which])(context, builder, array).data, [at])

            def vector_at(pointer: Any, at: Any) -> Any:
                return builder.bitcast(builder.gep(pointer, [at]), VECTOR.as_pointer())

            def spread(value: Any) -> Any:
                void, first = ir.Constant(VECTOR, ir.Undefined), ir.IntType(32)
                alone = builder.insert_element(void, value, ir.Constant(first, 0))
                return builder.shuffle_vector(alone, void, ir.Constant(ir.VectorType(first, width), [0] * width))

            a, b, out = start(0, a, a_at), start(4, b, b_at), start(7, out, out_at)
            left = [builder.gep(a, [builder.mul(a_row, number(r))]) for r in range(rows)]
            sums = [[cgutils.alloca_once(builder, VECTOR) for _ in halves] for _ in range(rows)]
            for row in sums:
                for total in row:
                    builder.store(ir.Constant(VECTOR, [0.0] * width), total)
            with cgutils.for_range(builder, steps) as loop:
                at = builder.mul(loop.index, number(PANEL))
                right = [builder.load(vector_at(b, builder.add(at, number(h * width))), align=4) for h in halves]
                step = builder.mul(loop.index, a_step)
                for r in range(rows):
                    factor = spread(builder.load(builder.gep(left[r], [step])))
                    for h in halves:
                        total = sums[r][h]
                        builder.store(write_multiply_add(builder, factor, right[h], builder.load(total)), total)
            for r in range(rows):
                for h in halves:
                    place = vector_at(out, builder.add(builder.mul(out_row, number(r)), number(h * width)))
                    with builder.if_then(add):
                        more = builder.load(place, align=4)
                        builder.store(builder.fadd(builder.load(sums[r][h]), more), sums[r][h])
                    builder.store(builder.load(sums[r][h]), place, align=4)
            return context.get_dummy_value()

        return signature, generate

    return multiply  # type: ignore[no-any-return]


_one, _two, _three, _four, _five, _six = (_block(rows) for rows in range(1, MAX_ROWS + 1))


@compiled_fast
def _multiply(a: Floats, a_row: int, a_step: int, m: int, packed: Floats, n: int, out: Floats, add: bool) -> None:
    """out [m, n] (+)= the product, in blocks of about as many rows each; all arrays flat."""
    steps = len(packed) // n
    for start in range(0, m, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, m - start)
        for panel in range(n // PANEL):
            b_at, blocks = panel * PANEL * steps, -(-count // MAX_ROWS)
            for block in range(blocks):
                first = start + count * block // blocks
                rows = start + count * (block + 1) // blocks - first
                a_at, out_at = first * a_row, first * n + panel * PANEL
                if rows == 6:
                    _six(a, a_at, a_row, a_step, packed, b_at, steps, out, out_at, n, add)
                elif rows == 5:
                    _five(a, a_at, a_row, a_step, packed, b_at, steps, out, out_at, n, add)
                elif rows == 4:
                    _four(a, a_at, a_row, a_step, packed, b_at, steps, out, out_at, n, add)
                elif rows == 3:
                    _three(a, a_at, a_row, a_step, packed, b_at, steps, out, out_at, n, add)
                elif rows == 2:
                    _two(a, a_at, a_row, a_step, packed, b_at, steps, out, out_at, n, add)
                else:
                    _one(a, a_at, a_row, a_step, packed, b_at, steps, out, out_at, n, add)


@compiled_fast
def pack(b: Floats, packed: Floats) -> None:
    """Pack b [k, n], n a multiple of 16, into packed [n * k]."""
    steps = b.shape[0]
    for panel in range(b.shape[1] // PANEL):
        for k in range(steps):
            for c in range(PANEL):
                packed[(panel * steps + k) * PANEL + c] = b[k, panel * PANEL + c]


@compiled_fast
def pack_transposed(b: Floats, packed: Floats) -> None:
    """Pack the transpose of b [n, k], n a multiple of 16, into packed [n * k]."""
    steps = b.shape[1]
    for panel in range(b.shape[0] // PANEL):
        for c in range(PANEL):
            for k in range(steps):
                packed[(panel * steps + k) * PANEL + c] = b[panel * PANEL + c, k]


@compiled_fast
def multiply_packed(a: Floats, packed: Floats, out: Floats, add: bool) -> None:
    """out [m, n] = a [m, k] @ b [k, n], or is added to; contiguous."""
    m, n = out.shape
    _multiply(a.reshape(a.size), a.shape[1], 1, m, packed, n, out.reshape(out.size), add)


@compiled_fast
def add_transposed_packed(a: Floats, packed: Floats, out: Floats) -> None:
    """out [m, n] += a [k, m].T @ b [k, n]."""
    m, n = out.shape
    _multiply(a.reshape(a.size), 1, m, m, packed, n, out.reshape(out.size), True)


# Packed products, or BLAS if `panels` is empty.


@compiled_fast
def panels_of(b: Floats, packed: bool) -> Floats:
    """Pack b [k, n] into panels; none if not `packed`."""
    panels = np.empty(b.size if packed else 0, np.float32)
    if packed:
        pack(b, panels)
    return panels


@compiled_fast
def panels_of_transposed(b: Floats, packed: bool) -> Floats:
    """Pack the transpose of b [n, k] into panels; none if not `packed`."""
    panels = np.empty(b.size if packed else 0, np.float32)
    if packed:
        pack_transposed(b, panels)
    return panels


@compiled_fast
def multiply(sgemm: int, a: Floats, b: Floats, panels: Floats, out: Floats) -> None:
    """out [m, n] = a [m, k] @ b [k, n]."""
    if len(panels):
        multiply_packed(a, panels, out, False)
    else:
        add_product(sgemm, a, b, ZERO, out)


@compiled_fast
def add_transposed(sgemm: int, a: Floats, b: Floats, panels: Floats, out: Floats) -> None:
    """out [m, n] += a [m, k] @ b [n, k].T; panels are those of the transpose."""
    if len(panels):
        multiply_packed(a, panels, out, True)
    else:
        add_product_transposed(sgemm, a, b, ONE, out)


@compiled_fast
def add_of_transposed(sgemm: int, a: Floats, b: Floats, workspace: Floats, out: Floats) -> None:
    """out [m, n] += a [k, m].T @ b [k, n]; b is packed into `workspace`, which may be longer, or is empty."""
    if len(workspace):
        panels = workspace[: b.size]
        pack(b, panels)
        add_transposed_packed(a, panels, out)
    else:
        add_transposed_product(sgemm, a, b, ONE, out)


@compiled_fast
def is_packed(inputs: int, outputs: int) -> bool:
    """True if products with a matrix of these sizes are packed."""
    return USE_PACKED_GEMM and inputs % PANEL == 0 and outputs % PANEL == 0

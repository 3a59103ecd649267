"""Products with a matrix that is packed into panels of columns, whose rows are contiguous.

A block of some rows and one panel keeps its sums in the processor's registers: six rows of 16 columns where registers hold
eight float32 (AVX2), twelve rows of 32 columns where they hold sixteen (AVX-512). It reaches nine tenths of the processor's
peak. BLAS reaches seven to nine, but only four on AMD's processors with AVX-512, whose longer vectors MKL does not use. On
other processors BLAS computes all products: `USE_PACKED_GEMM` is false.

The last panel is padded with zeros. A matrix that is used many times is packed once, as a whole; otherwise each panel is
packed right before it is used, and stays in the first-level cache.

    k inner  m rows  n columns
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from millpond.compiled import compiled_fast, target_features
from millpond.fast.simd import require_floats

Floats = npt.NDArray[np.float32]
ZERO = np.float32(0.0)
NO_BIAS = np.zeros(0, np.float32)
UNROLLED = 4  # steps of a block's loop; without it LLVM moves some of the sums to memory


def vector_lanes() -> int:
    """Number of float32 that the processor multiplies at once: 16, 8, or 0 if packing is of no use."""
    features = target_features()
    if not {"avx2", "fma"} <= features:
        return 0
    return 16 if "avx512f" in features else 8


# These follow from the processor: `millpond.compiled.OF_PROCESSOR` names them.
USE_PACKED_GEMM = vector_lanes() > 0
LANES = vector_lanes() or 8
PANEL = 2 * LANES
MAX_ROWS = 12 if LANES == 16 else 6  # their sums, two vectors each, fit into 32 or 16 registers beside the factors
LINE = 16  # floats of a cache line
STEPS_AT_ONCE = 256  # of a panel that is packed right before its use: 32 kB, or 16
AHEAD = 8  # steps of a transposed matrix that are fetched before they are used
ROWS_AT_ONCE = 384  # stay in the second-level cache while all panels are used


class _Emitter:
    """Writes LLVM IR on vectors of `LANES` float32."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context, self.builder = context, builder
        self.vector = ir.VectorType(ir.FloatType(), LANES)

    def number(self, value: int) -> Any:
        return ir.Constant(ir.IntType(64), value)

    def start(self, kind: Any, array: Any, at: Any) -> Any:
        """Return a pointer to array[at]."""
        return self.builder.gep(self.context.make_array(kind)(self.context, self.builder, array).data, [at])

    def place(self, pointer: Any, at: Any) -> Any:
        """Return a pointer to the vector that begins at pointer[at]."""
        return self.builder.bitcast(self.builder.gep(pointer, [at]), self.vector.as_pointer())

    def load(self, pointer: Any, at: Any) -> Any:
        return self.builder.load(self.place(pointer, at), align=4)

    def spread(self, value: Any) -> Any:
        """Return a vector of equal numbers."""
        void, index = ir.Constant(self.vector, ir.Undefined), ir.IntType(32)
        alone = self.builder.insert_element(void, value, ir.Constant(index, 0))
        return self.builder.shuffle_vector(alone, void, ir.Constant(ir.VectorType(index, LANES), [0] * LANES))

    def select(self, a: Any, b: Any, lanes: list[int]) -> Any:
        """Return the given lanes of a, and from `LANES` on those of b."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), LANES), lanes))

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        return self.builder.call(function, [a, b, c])

    def prefetch(self, pointer: Any) -> None:
        """Begin to bring the cache line of a pointer near."""
        flag, kind = ir.IntType(32), ir.IntType(8).as_pointer()
        function = ir.FunctionType(ir.VoidType(), [kind, flag, flag, flag])
        prefetch = cgutils.get_or_insert_function(self.builder.module, function, "llvm.prefetch.p0i8")
        self.builder.call(prefetch, [self.builder.bitcast(pointer, kind), *(ir.Constant(flag, n) for n in (0, 3, 1))])

    def add_and_relu(self, value: Any, bias: Any) -> Any:
        """Return max(value + bias, 0); a NaN stays a NaN."""
        total, zeros = self.builder.fadd(value, bias), ir.Constant(self.vector, [0.0] * LANES)
        return self.builder.select(self.builder.fcmp_ordered("<", total, zeros), zeros, total)

    def block(
        self, rows: int, transposed: bool, a: Any, a_row: Any, a_step: Any, b: Any, steps: Any, out: Any, out_row: Any
    ) -> list[tuple[Any, Any, int]]:
        """Emit the product of `rows` rows and one panel; return pointers to its sums, to where they belong, and the half.

        Rows begin every `a_row` numbers, and their steps are neighbours; `transposed` ones are neighbours, and their steps
        begin every `a_step` numbers. Each of these is in another line of the cache, often in another page, so it is fetched
        ahead.
        """
        builder, halves = self.builder, range(2)
        left = [
            builder.gep(a, [self.number(r) if transposed else builder.mul(a_row, self.number(r))]) for r in range(rows)
        ]
        sums = [[cgutils.alloca_once(builder, self.vector) for _ in halves] for _ in range(rows)]
        for total in (total for row in sums for total in row):
            builder.store(ir.Constant(self.vector, [0.0] * LANES), total)

        def step(index: Any) -> None:
            at = builder.mul(index, self.number(PANEL))
            right = [self.load(b, builder.add(at, self.number(h * LANES))) for h in halves]
            place = builder.mul(index, a_step) if transposed else index
            if transposed:
                ahead = builder.add(place, builder.mul(a_step, self.number(AHEAD)))
                for pointer in left[:: max(1, rows - 1)]:  # the first and the last
                    self.prefetch(builder.gep(pointer, [ahead]))
            for r in range(rows):
                factor = self.spread(builder.load(builder.gep(left[r], [place])))
                for h in halves:
                    builder.store(self.multiply_add(factor, right[h], builder.load(sums[r][h])), sums[r][h])

        whole = builder.sdiv(steps, self.number(UNROLLED))
        with cgutils.for_range(builder, whole) as loop:
            first = builder.mul(loop.index, self.number(UNROLLED))
            for k in range(UNROLLED):
                step(builder.add(first, self.number(k)))
        rest = builder.mul(whole, self.number(UNROLLED)), steps, self.number(1)
        with cgutils.for_range_slice(builder, *rest) as (index, _):
            step(index)
        return [
            (sums[r][h], self.place(out, builder.add(builder.mul(out_row, self.number(r)), self.number(h * LANES))), h)
            for r in range(rows)
            for h in halves
        ]


@intrinsic  # type: ignore[untyped-decorator]
def _multiply_block(
    typing_context: Any,
    rows: Any,
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
    activate: Any,
    bias: Any,
    bias_at: Any,
) -> Any:
    """out[r, c] (+)= sum over k of a[a_at + r * a_row + k * a_step] * b[b_at + PANEL * k + c] for 1 to MAX_ROWS rows.

    Or, if it is to `activate`, the maximum of 0 and the sum + bias[bias_at + c]; nothing is added then. All arrays are flat;
    a_row or a_step is 1. It is written as LLVM IR, one loop for each number of rows: numba would not keep the sums in
    registers.
    """
    for array in (a, b, out, bias):
        require_floats(array)
    n = types.intp
    signature = types.void(n, a, n, n, n, b, n, n, out, n, n, types.boolean, types.boolean, bias, n)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, a, a_at, a_row, a_step, b, b_at, steps, out, out_at, out_row, add, activate, bias, bias_at = arguments
        emit = _Emitter(context, builder)
        a, b, out, bias = (
            emit.start(signature.args[which], array, at)
            for which, array, at in ((1, a, a_at), (5, b, b_at), (8, out, out_at), (13, bias, bias_at))
        )
        end = builder.append_basic_block("end")
        transposed = builder.icmp_signed("!=", a_step, emit.number(1))
        choice = builder.switch(builder.select(transposed, builder.add(rows, emit.number(MAX_ROWS)), rows), end)
        for number in range(2 * MAX_ROWS):
            case = builder.append_basic_block(f"case{number + 1}")
            choice.add_case(emit.number(number + 1), case)
            builder.position_at_end(case)
            results = emit.block(number % MAX_ROWS + 1, number >= MAX_ROWS, a, a_row, a_step, b, steps, out, out_row)
            with builder.if_else(activate) as (to_activate, otherwise):
                with to_activate:
                    biases = [emit.load(bias, emit.number(half * LANES)) for half in range(2)]
                    for total, place, half in results:
                        builder.store(emit.add_and_relu(builder.load(total), biases[half]), place, align=4)
                with otherwise, builder.if_else(add) as (to_add, to_write):
                    with to_add:
                        for total, place, _ in results:
                            sums = builder.fadd(builder.load(total), builder.load(place, align=4))
                            builder.store(sums, place, align=4)
                    with to_write:
                        for total, place, _ in results:
                            builder.store(builder.load(total), place, align=4)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def _transpose_square(typing_context: Any, a: Any, a_at: Any, a_row: Any, out: Any, out_at: Any, out_row: Any) -> Any:
    """out[out_at + c * out_row + r] = a[a_at + r * a_row + c] for LANES rows and columns; both arrays flat."""
    for array in (a, out):
        require_floats(array)
    n = types.intp
    signature = types.void(a, n, n, out, n, n)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, a_at, a_row, out, out_at, out_row = arguments
        emit = _Emitter(context, builder)
        a, out = emit.start(signature.args[0], a, a_at), emit.start(signature.args[3], out, out_at)
        lines = [emit.load(a, builder.mul(a_row, emit.number(r))) for r in range(LANES)]
        distance = 1
        while distance < LANES:  # each stage exchanges squares of `distance` numbers
            for r in (r for r in range(LANES) if not r & distance):
                pair = lines[r], lines[r + distance]
                upper = [c if not c & distance else LANES + c - distance for c in range(LANES)]
                lower = [c + distance if not c & distance else LANES + c for c in range(LANES)]
                lines[r], lines[r + distance] = emit.select(*pair, upper), emit.select(*pair, lower)
            distance *= 2
        for c, line in enumerate(lines):
            builder.store(line, emit.place(out, builder.mul(out_row, emit.number(c))), align=4)
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def _copy_vector(typing_context: Any, a: Any, a_at: Any, out: Any, out_at: Any) -> Any:
    """out[out_at : out_at + LANES] = a[a_at : a_at + LANES]; both arrays flat."""
    for array in (a, out):
        require_floats(array)
    signature = types.void(a, types.intp, out, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, a_at, out, out_at = arguments
        emit = _Emitter(context, builder)
        a, out = emit.start(signature.args[0], a, a_at), emit.start(signature.args[2], out, out_at)
        builder.store(emit.load(a, emit.number(0)), emit.place(out, emit.number(0)), align=4)
        return context.get_dummy_value()

    return signature, generate


@compiled_fast
def transpose(a: Floats, rows: int, columns: int, out: Floats) -> None:
    """a [rows, columns] -> out [columns, rows]; both flat."""
    whole_rows, whole_columns = rows // LANES * LANES, columns // LANES * LANES
    for r in range(0, whole_rows, LANES):
        for c in range(0, whole_columns, LANES):
            _transpose_square(a, r * columns + c, columns, out, c * rows + r, rows)
    for r in range(rows):
        for c in range(whole_columns if r < whole_rows else 0, columns):
            out[c * rows + r] = a[r * columns + c]


# ---- Packing


@compiled_fast
def panel_count(columns: int) -> int:
    """Number of panels of a matrix."""
    return -(-columns // PANEL)


@compiled_fast
def packed_size(inner: int, columns: int) -> int:
    """Number of floats of a packed matrix [k, n]."""
    return panel_count(columns) * PANEL * inner


@compiled_fast
def aligned(size: int) -> Floats:
    """Return memory for `size` floats that begins at a cache line: a vector that crosses two takes twice as long."""
    memory = np.empty(size + LINE, np.float32)
    first = -(memory.ctypes.data // 4) % LINE
    return memory[first : first + size]


@compiled_fast
def _pack_panel(b: Floats, columns: int, panel: int, begin: int, end: int, out: Floats, out_at: int) -> None:
    """Pack the rows begin:end of one panel of b [k, n], which is flat."""
    first = panel * PANEL
    count, steps = min(PANEL, columns - first), end - begin
    if count == PANEL:
        for k in range(steps):
            at, to = (begin + k) * columns + first, out_at + k * PANEL
            _copy_vector(b, at, out, to)
            _copy_vector(b, at + LANES, out, to + LANES)
        return
    out[out_at : out_at + steps * PANEL] = ZERO
    for k in range(steps):
        for c in range(count):
            out[out_at + k * PANEL + c] = b[(begin + k) * columns + first + c]


@compiled_fast
def _pack_panel_transposed(
    b: Floats, columns: int, inner: int, panel: int, begin: int, end: int, out: Floats, out_at: int
) -> None:
    """Pack the rows begin:end of one panel of the transpose of b [n, k], which is flat."""
    first = panel * PANEL
    count, steps = min(PANEL, columns - first), end - begin
    whole_columns, whole_steps = count // LANES * LANES, steps // LANES * LANES
    if count < PANEL:
        out[out_at : out_at + steps * PANEL] = ZERO
    for c in range(0, whole_columns, LANES):
        for k in range(0, whole_steps, LANES):
            _transpose_square(b, (first + c) * inner + begin + k, inner, out, out_at + k * PANEL + c, PANEL)
    for k in range(whole_steps, steps):
        for c in range(whole_columns):
            out[out_at + k * PANEL + c] = b[(first + c) * inner + begin + k]
    for c in range(whole_columns, count):
        for k in range(steps):
            out[out_at + k * PANEL + c] = b[(first + c) * inner + begin + k]


@compiled_fast
def pack(b: Floats, packed: Floats) -> None:
    """Pack b [k, n] into packed [packed_size(k, n)]."""
    inner, columns = b.shape
    flat = b.reshape(b.size)
    for panel in range(panel_count(columns)):
        _pack_panel(flat, columns, panel, 0, inner, packed, panel * PANEL * inner)


@compiled_fast
def pack_transposed(b: Floats, packed: Floats) -> None:
    """Pack the transpose of b [n, k] into packed [packed_size(k, n)]."""
    columns, inner = b.shape
    flat = b.reshape(b.size)
    for panel in range(panel_count(columns)):
        _pack_panel_transposed(flat, columns, inner, panel, 0, inner, packed, panel * PANEL * inner)


# ---- Products


@compiled_fast
def _multiply_panel(
    a: Floats,
    a_at: int,
    a_row: int,
    a_step: int,
    rows: int,
    packed: Floats,
    b_at: int,
    steps: int,
    panel: int,
    out: Floats,
    first: int,
    columns: int,
    add: bool,
    bias: Floats,
) -> None:
    """Compute the columns of one panel for the rows `first` to `first + rows` of out [m, n], in blocks of about equal size.

    If there is a bias [n], it is added, and then negative numbers become 0.
    """
    activate = len(bias) > 0
    blocks, width = -(-rows // MAX_ROWS), min(PANEL, columns - panel * PANEL)
    whole = width == PANEL
    sums, line = (out, columns) if whole else (np.empty(MAX_ROWS * PANEL, np.float32), PANEL)
    to_add, to_activate = add and whole, activate and whole
    smallest, larger, start = rows // blocks, rows % blocks, 0
    for block in range(blocks):
        count = smallest + (block < larger)
        to, at = (first + start) * columns + panel * PANEL, panel * PANEL
        from_row = a_at + start * a_row
        place = to if whole else 0
        _multiply_block(
            count, a, from_row, a_row, a_step, packed, b_at, steps, sums, place, line, to_add, to_activate, bias, at
        )
        for r in range(0 if whole else count):
            for c in range(width):
                value = sums[r * PANEL + c]
                if activate:
                    value += bias[panel * PANEL + c]
                    value = ZERO if value < ZERO else value
                out[to + r * columns + c] = out[to + r * columns + c] + value if add else value
        start += count


@compiled_fast
def multiply_packed(a: Floats, packed: Floats, out: Floats, add: bool) -> None:
    """out [m, n] = a [m, k] @ b [k, n], or is added to; contiguous."""
    (m, steps), columns = a.shape, out.shape[1]
    flat_a, flat_out = a.reshape(a.size), out.reshape(out.size)
    for first in range(0, m, ROWS_AT_ONCE):
        rows = min(ROWS_AT_ONCE, m - first)
        for panel in range(panel_count(columns)):
            right = packed, panel * PANEL * steps, steps, panel
            _multiply_panel(flat_a, first * steps, steps, 1, rows, *right, flat_out, first, columns, add, NO_BIAS)


@compiled_fast
def multiply_panels(
    a: Floats,
    begin: int,
    end: int,
    a_transposed: bool,
    b: Floats,
    b_transposed: bool,
    add: bool,
    bias: Floats,
    out: Floats,
) -> None:
    """out [m, n] = the rows begin:end of a [m, k] or a.T @ b [k, n] or b.T, or is added to; packs each panel before its use.

    With a bias [n], for k up to STEPS_AT_ONCE: max(product + bias, 0).
    """
    inner, columns = (b.shape[1], b.shape[0]) if b_transposed else b.shape
    a_row, a_step = (1, a.shape[1]) if a_transposed else (a.shape[1], 1)
    flat_a, flat_b, flat_out = a.reshape(a.size), b.reshape(b.size), out.reshape(out.size)
    packed = aligned(PANEL * min(inner, STEPS_AT_ONCE))
    for first in range(0, inner, STEPS_AT_ONCE):
        last = min(inner, first + STEPS_AT_ONCE)
        for panel in range(panel_count(columns)):
            if b_transposed:
                _pack_panel_transposed(flat_b, columns, inner, panel, first, last, packed, 0)
            else:
                _pack_panel(flat_b, columns, panel, first, last, packed, 0)
            left = flat_a, begin * a_row + first * a_step, a_row, a_step, end - begin
            right, to_add = (packed, 0, last - first, panel), add or first > 0
            _multiply_panel(*left, *right, flat_out, 0, columns, to_add, bias)

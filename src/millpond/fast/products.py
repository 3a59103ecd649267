"""Matrix products of compiled loops: packed ones where the processor has vectors for them, else torch's BLAS.

`product` and its siblings pack one of their matrices panel by panel. A matrix that is used many times is packed once, by
`panels_of`, and then given to `multiply` and its siblings: for them BLAS computes if the panels are empty.

    k inner  m rows  n columns; all matrices contiguous
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.fast.gemm import (
    blas_product,
    blas_product_transposed,
    blas_transposed_columns,
    blas_transposed_product,
)
from millpond.fast.packed_gemm import (
    NO_BIAS,
    PANEL,
    STEPS_AT_ONCE,
    USE_PACKED_GEMM,
    aligned,
    multiply_packed,
    multiply_panels,
    pack,
    pack_transposed,
    packed_size,
)

Floats = npt.NDArray[np.float32]
ONE, ZERO = np.float32(1.0), np.float32(0.0)
MIN_PACKED_ROWS = 4  # with fewer rows, packing takes longer than the product
MIN_PACKED_COLUMNS = 8  # of a transposed matrix: a panel is always computed as a whole


def calls_no_blas(rows: int, columns: int) -> bool:
    """Return True if `product_transposed` with an output of this size packs."""
    return USE_PACKED_GEMM and rows >= MIN_PACKED_ROWS and columns >= MIN_PACKED_COLUMNS


@compiled_fast
def product(sgemm: int, a: Floats, b: Floats, add: bool, out: Floats) -> None:
    """out [m, n] = a [m, k] @ b [k, n], or is added to."""
    if USE_PACKED_GEMM and len(a) >= MIN_PACKED_ROWS:
        multiply_panels(a, 0, a.shape[0], False, b, False, add, NO_BIAS, out)
    else:
        blas_product(sgemm, a, b, ONE if add else ZERO, out)


@compiled_fast
def product_transposed(sgemm: int, a: Floats, b: Floats, add: bool, out: Floats) -> None:
    """out [m, n] = a [m, k] @ b [n, k].T, or is added to."""
    if USE_PACKED_GEMM and len(a) >= MIN_PACKED_ROWS and len(b) >= MIN_PACKED_COLUMNS:
        multiply_panels(a, 0, a.shape[0], False, b, True, add, NO_BIAS, out)
    else:
        blas_product_transposed(sgemm, a, b, ONE if add else ZERO, out)


@compiled_fast
def transposed_product(sgemm: int, a: Floats, b: Floats, add: bool, out: Floats) -> None:
    """out [m, n] = a [k, m].T @ b [k, n], or is added to."""
    if USE_PACKED_GEMM and len(out) >= MIN_PACKED_ROWS:
        multiply_panels(a, 0, a.shape[1], True, b, False, add, NO_BIAS, out)
    else:
        blas_transposed_product(sgemm, a, b, ONE if add else ZERO, out)


@compiled_fast
def transposed_columns(sgemm: int, a: Floats, begin: int, end: int, b: Floats, out: Floats) -> None:
    """out [end - begin, n] = a [k, m][:, begin:end].T @ b [k, n]."""
    if USE_PACKED_GEMM and end - begin >= MIN_PACKED_ROWS:
        multiply_panels(a, begin, end, True, b, False, False, NO_BIAS, out)
    else:
        blas_transposed_columns(sgemm, a, begin, end, b, ZERO, out)


@compiled_fast
def dense_relu(sgemm: int, a: Floats, weight: Floats, bias: Floats, out: Floats) -> None:
    """out [m, n] = max(a [m, k] @ weight [n, k].T + bias [n], 0); a NaN stays a NaN."""
    columns = out.shape[1]
    if USE_PACKED_GEMM and len(a) >= MIN_PACKED_ROWS and columns >= MIN_PACKED_COLUMNS and a.shape[1] <= STEPS_AT_ONCE:
        multiply_panels(a, 0, a.shape[0], False, weight, True, False, bias, out)
        return
    product_transposed(sgemm, a, weight, False, out)
    for row in range(len(out)):
        line = out[row]
        for k in range(columns):
            total = line[k] + bias[k]
            line[k] = ZERO if total < ZERO else total


# ---- Products with a matrix that was packed before


@compiled_fast
def is_packed(inputs: int, outputs: int) -> bool:
    """True if products with a matrix of these sizes are packed."""
    return USE_PACKED_GEMM and inputs % PANEL == 0 and outputs % PANEL == 0


@compiled_fast
def panels_of(b: Floats, packed: bool) -> Floats:
    """Pack b [k, n] into panels; none if not `packed`."""
    panels = aligned(packed_size(b.shape[0], b.shape[1]) if packed else 0)
    if packed:
        pack(b, panels)
    return panels


@compiled_fast
def panels_of_transposed(b: Floats, packed: bool) -> Floats:
    """Pack the transpose of b [n, k] into panels; none if not `packed`."""
    panels = aligned(packed_size(b.shape[1], b.shape[0]) if packed else 0)
    if packed:
        pack_transposed(b, panels)
    return panels


@compiled_fast
def multiply(sgemm: int, a: Floats, b: Floats, panels: Floats, out: Floats) -> None:
    """out [m, n] = a [m, k] @ b [k, n]."""
    if len(panels):
        multiply_packed(a, panels, out, False)
    else:
        blas_product(sgemm, a, b, ZERO, out)


@compiled_fast
def add_transposed(sgemm: int, a: Floats, b: Floats, panels: Floats, out: Floats) -> None:
    """out [m, n] += a [m, k] @ b [n, k].T; panels are those of the transpose."""
    if len(panels):
        multiply_packed(a, panels, out, True)
    else:
        blas_product_transposed(sgemm, a, b, ONE, out)

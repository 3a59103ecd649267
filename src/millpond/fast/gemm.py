"""Matrix products inside compiled loops: torch's BLAS, called by its address.

A loop over the steps of a row that returns to Python for every product takes the GIL a few hundred times per minibatch,
and threads then wait for each other. If torch does not export its `sgemm_` (builds on Accelerate), `SGEMM` is 0, and
there is no fast path.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from millpond.compiled import inlined

Floats = npt.NDArray[np.float32]
PLAIN, TRANSPOSED = np.int8(ord("N")), np.int8(ord("T"))


def find_sgemm() -> int:
    """Return the address of torch's sgemm_, with 32-bit sizes; 0 if torch does not export it."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("*torch_cpu.*")):
        try:
            function = ctypes.CDLL(str(library)).sgemm_
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


SGEMM = find_sgemm()


@intrinsic  # type: ignore[untyped-decorator]
def _call_sgemm(
    typing_context: Any,
    address: Any,
    transpose_a: Any,
    transpose_b: Any,
    sizes: Any,
    a: Any,
    b: Any,
    beta: Any,
    c: Any,
    strides: Any,
) -> Any:
    """Call sgemm_ as Fortran does: everything by reference, matrices by columns."""
    three = types.UniTuple(types.int32, 3)
    signature = types.void(
        types.int64,
        types.int8,
        types.int8,
        three,
        types.uintp,
        types.uintp,
        types.float32,
        types.uintp,
        three,
    )

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, transpose_a, transpose_b, sizes, a, b, beta, c, strides = arguments
        pointer = ir.IntType(8).as_pointer()

        def by_reference(value: Any) -> Any:
            return builder.bitcast(cgutils.alloca_once_value(builder, value), pointer)

        m, n, k = (by_reference(size) for size in cgutils.unpack_tuple(builder, sizes, 3))
        lda, ldb, ldc = (by_reference(stride) for stride in cgutils.unpack_tuple(builder, strides, 3))
        a, b, c = (builder.inttoptr(matrix, pointer) for matrix in (a, b, c))
        alpha = by_reference(ir.Constant(ir.FloatType(), 1.0))
        flags = [by_reference(transpose_a), by_reference(transpose_b)]
        kind = ir.FunctionType(ir.VoidType(), [pointer] * 13)
        function = builder.inttoptr(address, kind.as_pointer())
        builder.call(function, [*flags, m, n, k, alpha, a, lda, b, ldb, by_reference(beta), c, ldc])
        return context.get_dummy_value()

    return signature, generate


# Row-major memory is column-major memory of the transpose, so each product is computed as that of its transpose.


@inlined
def blas_product_transposed(sgemm: int, a: Floats, b: Floats, beta: np.float32, out: Floats) -> None:
    """out [m, n] = beta * out + a [m, k] @ b [n, k].T; all contiguous."""
    m, k, n = np.int32(a.shape[0]), np.int32(a.shape[1]), np.int32(b.shape[0])
    matrices = b.ctypes.data, a.ctypes.data, beta, out.ctypes.data
    _call_sgemm(sgemm, TRANSPOSED, PLAIN, (n, m, k), *matrices, (k, k, n))


@inlined
def blas_product(sgemm: int, a: Floats, b: Floats, beta: np.float32, out: Floats) -> None:
    """out [m, n] = beta * out + a [m, k] @ b [k, n]."""
    m, k, n = np.int32(a.shape[0]), np.int32(a.shape[1]), np.int32(b.shape[1])
    matrices = b.ctypes.data, a.ctypes.data, beta, out.ctypes.data
    _call_sgemm(sgemm, PLAIN, PLAIN, (n, m, k), *matrices, (n, k, n))


@inlined
def blas_transposed_product(sgemm: int, a: Floats, b: Floats, beta: np.float32, out: Floats) -> None:
    """out [m, n] = beta * out + a [k, m].T @ b [k, n]."""
    k, m, n = np.int32(a.shape[0]), np.int32(a.shape[1]), np.int32(b.shape[1])
    matrices = b.ctypes.data, a.ctypes.data, beta, out.ctypes.data
    _call_sgemm(sgemm, PLAIN, TRANSPOSED, (n, m, k), *matrices, (n, m, n))


@inlined
def blas_transposed_columns(
    sgemm: int, a: Floats, begin: int, end: int, b: Floats, beta: np.float32, out: Floats
) -> None:
    """out [end - begin, n] = beta * out + a [k, m][:, begin:end].T @ b [k, n]."""
    k, m, n = np.int32(a.shape[0]), np.int32(a.shape[1]), np.int32(b.shape[1])
    matrices = b.ctypes.data, a.ctypes.data + 4 * begin, beta, out.ctypes.data
    _call_sgemm(sgemm, PLAIN, TRANSPOSED, (n, np.int32(end - begin), k), *matrices, (n, m, n))

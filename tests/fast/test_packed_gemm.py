"""Products with packed matrices, and vectors of eight floats, against NumPy."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest

from millpond.compiled import compiled_fast
from millpond.fast import packed_gemm, products, simd
from millpond.fast.gemm import SGEMM

Floats = npt.NDArray[np.float32]
AROUND = np.float32(-7.0)


def drawn(*shape: int) -> Floats:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def guarded(rows: int, columns: int) -> tuple[Floats, Floats]:
    """An array with marks before and after it, to check that nothing else is written."""
    around = np.full(rows * columns + 64, AROUND, np.float32)
    return around, around[32:-32].reshape(rows, columns)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 24, 97, 389, 800])
@pytest.mark.parametrize(("inner", "columns"), [(1, 16), (5, 48), (128, 64), (3, 1), (33, 31), (16, 33), (70, 100)])
def test_products_with_packed_matrices_equal_numpy(rows: int, inner: int, columns: int) -> None:
    a, b = drawn(rows, inner), drawn(inner, columns)
    panels, same = (np.empty(packed_gemm.packed_size(inner, columns), np.float32) for _ in range(2))
    packed_gemm.pack(b, panels)
    packed_gemm.pack_transposed(np.ascontiguousarray(b.T), same)
    np.testing.assert_array_equal(panels, same)
    around, out = guarded(rows, columns)
    out[:] = before = drawn(rows, columns)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    packed_gemm.multiply_packed(a, panels, out, True)
    np.testing.assert_allclose(out, before + exact, rtol=1e-5, atol=1e-5)
    packed_gemm.multiply_packed(a, panels, out, False)
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-5)
    assert (around[:32] == AROUND).all()
    assert (around[-32:] == AROUND).all()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 4, 12, 13, 97, 389])
@pytest.mark.parametrize(("inner", "columns"), [(1, 16), (5, 48), (128, 64), (3, 1), (33, 7), (300, 33)])
def test_products_equal_numpy_packed_or_not(
    monkeypatch: pytest.MonkeyPatch, packed: bool, rows: int, inner: int, columns: int
) -> None:
    a, b = drawn(rows, inner), drawn(inner, columns)
    a_transposed, b_transposed = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
    exact, before = a.astype(np.float64) @ b.astype(np.float64), drawn(rows, columns)
    calls = ((products.product, a, b), (products.product_transposed, a, b_transposed))
    for function, left, right in (*calls, (products.transposed_product, a_transposed, b)):
        function = function if packed == products.USE_PACKED_GEMM else uncompiled(monkeypatch, function, packed)
        for add in (False, True):
            around, out = guarded(rows, columns)
            out[:] = before
            function(SGEMM, left, right, add, out)
            np.testing.assert_allclose(out, exact + (before if add else 0), rtol=1e-5, atol=3e-5)
            assert (around[:32] == AROUND).all()
            assert (around[-32:] == AROUND).all()
    first, last = rows // 3, rows
    out = np.empty((last - first, columns), np.float32)
    products.transposed_columns(SGEMM, a_transposed, first, last, b, out)
    np.testing.assert_allclose(out, exact[first:last], rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rows", [1, 4, 13, 97])
@pytest.mark.parametrize(("inner", "columns"), [(1, 16), (4, 256), (33, 7), (16, 40), (256, 64), (257, 64)])
def test_dense_relu_equals_numpy(
    monkeypatch: pytest.MonkeyPatch, packed: bool, rows: int, inner: int, columns: int
) -> None:
    a, weight, bias = drawn(rows, inner), drawn(columns, inner), drawn(columns)
    a[0, 0] = np.nan
    function = products.dense_relu
    function = function if packed == products.USE_PACKED_GEMM else uncompiled(monkeypatch, function, packed)
    around, out = guarded(rows, columns)
    function(SGEMM, a, weight, bias, out)
    exact = np.maximum(a.astype(np.float64) @ weight.T.astype(np.float64) + bias, 0)  # a NaN stays a NaN
    assert np.isnan(out[0]).all()
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-4)
    assert (around[:32] == AROUND).all()
    assert (around[-32:] == AROUND).all()


def uncompiled(monkeypatch: pytest.MonkeyPatch, function: Any, packed: bool) -> Any:
    """The function as it is on a processor where matrices are packed, or are not."""
    monkeypatch.setattr(products, "USE_PACKED_GEMM", packed)
    return numba.njit(function.py_func)


def test_nan_spreads_to_its_row_only() -> None:
    a, b, out = drawn(6, 16), drawn(16, 16), np.zeros((6, 16), np.float32)
    a[2, 3] = np.nan
    panels = np.empty(packed_gemm.packed_size(16, 16), np.float32)
    packed_gemm.pack(b, panels)
    packed_gemm.multiply_packed(a, panels, out, False)
    assert np.isnan(out[2]).all()
    assert np.isfinite(np.delete(out, 2, 0)).all()


def test_panels_follow_the_vectors_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [("+avx2,+fma", 8), ("+avx2", 0), ("", 0), ("+avx2,+fma,+avx512f", 16), ("+avx2,+fma,-avx512f", 8)]
    for features, expected in cases:
        monkeypatch.setattr(numba.config, "CPU_FEATURES", features)
        assert packed_gemm.vector_lanes() == expected


@compiled_fast
def all_operations(a: Floats, b: Floats, out: Floats) -> None:
    x, y = simd.load_eight(a, 3), simd.load_eight(b, 1)
    simd.store_eight(simd.add_eight(x, y), out, 0)
    simd.store_eight(simd.multiply_eight(x, y), out, 8)
    simd.store_eight(simd.multiply_add_eight(x, y, y), out, 16)


def test_vector_operations_equal_numpy() -> None:
    a, b, out = drawn(20), drawn(12), np.full(26, AROUND, np.float32)
    all_operations(a, b, out)
    x, y = a[3:11], b[1:9]
    np.testing.assert_allclose(out[:24], np.concatenate([x + y, x * y, x * y + y]), rtol=1e-6, atol=1e-7)
    assert (out[24:] == AROUND).all()

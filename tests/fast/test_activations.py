"""tanh and the logistic function as plain arithmetic, against NumPy in float64."""

from __future__ import annotations

import numpy as np

from millpond.compiled import compiled_fast
from millpond.fast.activations import fast_sigmoid, fast_tanh


@compiled_fast
def tanh_of(x: np.ndarray, out: np.ndarray) -> None:
    for k in range(x.shape[0]):
        out[k] = fast_tanh(x[k])


@compiled_fast
def sigmoid_of(x: np.ndarray, out: np.ndarray) -> None:
    for k in range(x.shape[0]):
        out[k] = fast_sigmoid(x[k])


def test_tanh_and_sigmoid_are_exact_to_float32() -> None:
    x = np.concatenate([np.linspace(-20, 20, 1_000_001), 10.0 ** np.linspace(-30, 4, 100_001)]).astype(np.float32)
    out = np.empty_like(x)
    tanh_of(x, out)
    expected = np.tanh(x.astype(np.float64))
    assert np.max(np.abs(out - expected) / np.maximum(np.abs(expected), 1e-30)) < 5e-7
    sigmoid_of(x, out)
    assert np.max(np.abs(out - 1 / (1 + np.exp(-np.maximum(x.astype(np.float64), -500))))) < 3e-7
    edges = np.array([np.nan, np.inf, -np.inf], np.float32)
    out = np.empty_like(edges)
    tanh_of(edges, out)
    np.testing.assert_allclose(out, [np.nan, 1, -1], rtol=2e-7)

"""Compare the packed products of compiled code with torch's BLAS, in GFLOP/s of one thread.

    python benchmarks/products.py [--repeats 7] [--seconds 0.02]

Every size is one that a recipe or a comparison in benchmarks/peers uses. Both kinds run alternately in one process, from
compiled code; a ratio above 1 says that packing is faster. The choice itself needs no name of a processor: products are
packed wherever the instruction set has vectors of eight or sixteen float32 with a fused multiply-add.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from hardware import processor
from millpond.compiled import compiled_fast
from millpond.fast.gemm import (
    SGEMM,
    blas_product,
    blas_product_transposed,
    blas_transposed_columns,
    blas_transposed_product,
)
from millpond.fast.packed_gemm import LANES, USE_PACKED_GEMM
from millpond.fast.products import (
    add_transposed,
    multiply,
    panels_of,
    panels_of_transposed,
    product,
    product_transposed,
    transposed_columns,
    transposed_product,
)

ZERO, ONE = np.float32(0.0), np.float32(1.0)


class Size(NamedTuple):
    """A product of out [m, n] over k; `kind` names the loop below that computes it."""

    what: str
    kind: str
    m: int
    k: int
    n: int


SIZES = (
    Size("two layers of 64, acting for 8 envs", "forward", 8, 64, 64),
    Size("two layers of 64, 256 steps", "forward", 256, 64, 64),
    Size("the same, gradient of inputs", "backward", 256, 64, 64),
    Size("the same, gradient of weights", "weights", 64, 256, 64),
    Size("SAC, layers of 256, batch 256", "forward", 256, 256, 256),
    Size("the same, gradient of inputs", "backward", 256, 256, 256),
    Size("the same, gradient of weights", "weights", 256, 256, 256),
    Size("SAC, half of the batch", "forward", 128, 256, 256),
    Size("DQN, 64 rows, 1,024 inputs, 128 outputs", "forward", 64, 1_024, 128),
    Size("the same, gradient of inputs", "backward", 64, 128, 1_024),
    Size("the same, gradient of weights, half of the rows", "columns", 64, 128, 1_024),
    Size("PQN, 128 rows", "forward", 128, 1_024, 128),
    Size("LSTM 128, a step of 128 sequences", "step", 128, 128, 512),
    Size("LSTM 128, a step backward", "step back", 128, 512, 128),
    Size("LSTM 128, 384 inputs", "forward", 384, 128, 512),
    Size("LSTM 128, gradient of weights", "weights", 512, 384, 128),
    Size("LSTM 64, a step of 32 sequences", "step", 32, 64, 256),
    Size("LSTM 64, a step backward", "step back", 32, 256, 64),
    Size("LSTM 64, gradient of weights", "weights", 256, 384, 64),
)


@compiled_fast
def run_forward(packed: bool, sgemm: int, times: int, a: Any, b: Any, panels: Any, out: Any) -> None:
    for _ in range(times):
        if packed:
            product_transposed(sgemm, a, b, False, out)
        else:
            blas_product_transposed(sgemm, a, b, ZERO, out)


@compiled_fast
def run_backward(packed: bool, sgemm: int, times: int, a: Any, b: Any, panels: Any, out: Any) -> None:
    for _ in range(times):
        if packed:
            product(sgemm, a, b, False, out)
        else:
            blas_product(sgemm, a, b, ZERO, out)


@compiled_fast
def run_weights(packed: bool, sgemm: int, times: int, a: Any, b: Any, panels: Any, out: Any) -> None:
    for _ in range(times):
        if packed:
            transposed_product(sgemm, a, b, True, out)
        else:
            blas_transposed_product(sgemm, a, b, ONE, out)


@compiled_fast
def run_columns(packed: bool, sgemm: int, times: int, a: Any, b: Any, panels: Any, out: Any) -> None:
    for _ in range(times):
        if packed:
            transposed_columns(sgemm, a, 0, len(out), b, out)
        else:
            blas_transposed_columns(sgemm, a, 0, len(out), b, ZERO, out)


@compiled_fast
def run_step(packed: bool, sgemm: int, times: int, a: Any, b: Any, panels: Any, out: Any) -> None:
    for _ in range(times):
        if packed:
            add_transposed(sgemm, a, b, panels, out)
        else:
            blas_product_transposed(sgemm, a, b, ONE, out)


@compiled_fast
def run_step_back(packed: bool, sgemm: int, times: int, a: Any, b: Any, panels: Any, out: Any) -> None:
    for _ in range(times):
        if packed:
            multiply(sgemm, a, b, panels, out)
        else:
            blas_product(sgemm, a, b, ZERO, out)


RUNS = {
    "forward": run_forward,
    "backward": run_backward,
    "weights": run_weights,
    "columns": run_columns,
    "step": run_step,
    "step back": run_step_back,
}


def operands(size: Size) -> tuple[Any, ...]:
    """Return a, b, panels and out of a product."""
    rng = np.random.default_rng(0)
    m, k, n = size.m, size.k, size.n

    def empty(rows: int, columns: int) -> Any:
        return torch.empty(rows, columns).numpy()  # aligned to a cache line, as the arrays of a learner

    def numbers(rows: int, columns: int) -> Any:
        array = empty(rows, columns)
        array[:] = rng.standard_normal((rows, columns), np.float32) * np.float32(1e-3)
        return array

    out = empty(m, n)
    out[:] = 0.0
    if size.kind in ("forward", "step"):
        a, b = numbers(m, k), numbers(n, k)
        return a, b, panels_of_transposed(b, USE_PACKED_GEMM), out
    if size.kind in ("backward", "step back"):
        a, b = numbers(m, k), numbers(k, n)
        return a, b, panels_of(b, USE_PACKED_GEMM), out
    a = numbers(k, m * 2 if size.kind == "columns" else m)
    return a, numbers(k, n), empty(0, 0).reshape(0), out


def measured(size: Size, repeats: int, seconds: float) -> tuple[float, float, list[float]]:
    """Return GFLOP/s packed and with BLAS, the median of the repeats, and the ratios."""
    run, arrays = RUNS[size.kind], operands(size)

    def spent(packed: bool, times: int) -> float:
        began = time.thread_time()
        run(packed, SGEMM, times, *arrays)
        return time.thread_time() - began

    spent(True, 2), spent(False, 2)
    once = max(spent(False, 8) / 8, 1e-7)
    times = max(4, int(seconds / once))
    work = 2e-9 * size.m * size.k * size.n * times
    pairs = [(work / spent(True, times), work / spent(False, times)) for _ in range(repeats)]
    return median(p for p, _ in pairs), median(b for _, b in pairs), [p / b for p, b in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.02, help="that each measurement takes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.mm(torch.ones(4, 4), torch.ones(4, 4))
    if not USE_PACKED_GEMM:
        raise SystemExit("this processor has no vectors for packed products: BLAS computes them all")
    print(f"{processor()}, vectors of {LANES} float32, one thread\n")
    print(f"{'product':<50}{'m x k x n':>17}{'packed':>9}{'BLAS':>7}  ratio")
    for size in SIZES:
        packed, blas, ratios = measured(size, options.repeats, options.seconds)
        shape = f"{size.m} x {size.k} x {size.n}"
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{size.what:<50}{shape:>17}{packed:>9.0f}{blas:>7.0f}  {spread}")


if __name__ == "__main__":
    main()

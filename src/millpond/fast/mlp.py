"""Networks with two hidden layers and ReLU in compiled code: rows forward and backward, and gradients of weights.

The plain versions are the actor and the critics of `millpond.learners.sac`; flat parameters hold each layer's weights, then
its bias. Threads share a batch by rows, and after that weights by rows of each matrix.

B rows   H hidden
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.fast.products import dense_relu, product, transposed_columns
from millpond.fast.simd import WIDTH, add_eight, load_eight, multiply_add_eight, store_eight
from millpond.fast.simd_math import spread_eight, sum_eight, where_positive_eight

Floats = npt.NDArray[np.float32]
ZERO = np.float32(0.0)


class MLPLayout(NamedTuple):
    """Sizes of a network with two hidden layers, and where its parameters begin in the flat ones."""

    inputs: int
    hidden: int
    outputs: int
    weight1: int
    bias1: int
    weight2: int
    bias2: int
    weight3: int
    bias3: int


class MLPMemory(NamedTuple):
    """Activations of a network and gradients before its activations. Threads write different rows."""

    hidden1: Floats  # [B, H]
    hidden2: Floats  # [B, H]
    output: Floats  # [B, outputs]
    gradient1: Floats  # [B, H]
    gradient2: Floats  # [B, H]


@compiled_fast
def matrix(flat: Floats, begin: int, rows: int, columns: int) -> Floats:
    return flat[begin : begin + rows * columns].reshape(rows, columns)


@compiled_fast
def mlp_forward(
    sgemm: int, layout: MLPLayout, flat: Floats, inputs: Floats, begin: int, end: int, out: MLPMemory
) -> None:
    """Compute the rows begin:end of all layers."""
    hidden = layout.hidden
    weight1 = matrix(flat, layout.weight1, hidden, layout.inputs)
    dense_relu(sgemm, inputs[begin:end], weight1, flat[layout.bias1 : layout.bias1 + hidden], out.hidden1[begin:end])
    weight2 = matrix(flat, layout.weight2, hidden, hidden)
    dense_relu(
        sgemm, out.hidden1[begin:end], weight2, flat[layout.bias2 : layout.bias2 + hidden], out.hidden2[begin:end]
    )
    weight3 = flat[layout.weight3 : layout.weight3 + layout.outputs * hidden]
    for row in range(begin, end):
        line = out.hidden2[row]
        for output in range(layout.outputs):
            sums = spread_eight(ZERO)
            for k in range(0, hidden, WIDTH):
                sums = multiply_add_eight(load_eight(line, k), load_eight(weight3, output * hidden + k), sums)
            out.output[row, output] = sum_eight(sums) + flat[layout.bias3 + output]


@compiled_fast
def mask(active: Floats, gradient: Floats) -> None:
    """Set the gradient to 0 where ReLU's output is not positive; rows of one length."""
    for row in range(len(gradient)):
        line, values = gradient[row], active[row]
        for k in range(0, len(line), WIDTH):
            store_eight(where_positive_eight(load_eight(values, k), load_eight(line, k)), line, k)


@compiled_fast
def mlp_backward(
    sgemm: int, layout: MLPLayout, flat: Floats, upstream: Floats, begin: int, end: int, memory: MLPMemory
) -> None:
    """Compute the rows begin:end of both hidden layers' gradients from upstream [B, outputs]."""
    hidden = layout.hidden
    weight3 = flat[layout.weight3 : layout.weight3 + layout.outputs * hidden]
    for row in range(begin, end):
        line, active = memory.gradient2[row], memory.hidden2[row]
        for k in range(0, hidden, WIDTH):
            total = spread_eight(ZERO)
            for output in range(layout.outputs):
                weight = load_eight(weight3, output * hidden + k)
                total = multiply_add_eight(spread_eight(upstream[row, output]), weight, total)
            store_eight(where_positive_eight(load_eight(active, k), total), line, k)
    weight2 = matrix(flat, layout.weight2, hidden, hidden)
    product(sgemm, memory.gradient2[begin:end], weight2, False, memory.gradient1[begin:end])
    mask(memory.hidden1[begin:end], memory.gradient1[begin:end])


@compiled_fast
def column_sums(values: Floats, begin: int, end: int, out: Floats) -> None:
    """out[begin:end] = the sums of these columns of values [B, n]; both multiples of eight."""
    for k in range(begin, end, WIDTH):
        sums = spread_eight(ZERO)
        for row in range(len(values)):
            sums = add_eight(sums, load_eight(values[row], k))
        store_eight(sums, out, k)


@compiled_fast
def weight_gradients(
    sgemm: int,
    layout: MLPLayout,
    inputs: Floats,
    memory: MLPMemory,
    upstream: Floats,
    thread: int,
    threads: int,
    grad: Floats,
) -> None:
    """Write this thread's part of the gradients of all parameters; upstream [B, outputs]."""
    hidden, columns = layout.hidden, layout.inputs
    begin, end = hidden * thread // threads // WIDTH * WIDTH, hidden * (thread + 1) // threads // WIDTH * WIDTH
    if end > begin:
        count = end - begin
        out = matrix(grad, layout.weight1 + begin * columns, count, columns)
        transposed_columns(sgemm, memory.gradient1, begin, end, inputs, out)
        out = matrix(grad, layout.weight2 + begin * hidden, count, hidden)
        transposed_columns(sgemm, memory.gradient2, begin, end, memory.hidden1, out)
        column_sums(memory.gradient1, begin, end, grad[layout.bias1 : layout.bias1 + hidden])
        column_sums(memory.gradient2, begin, end, grad[layout.bias2 : layout.bias2 + hidden])
        for output in range(layout.outputs):
            line = grad[layout.weight3 + output * hidden : layout.weight3 + (output + 1) * hidden]
            for k in range(begin, end, WIDTH):
                sums = spread_eight(ZERO)
                for row in range(len(upstream)):
                    active = load_eight(memory.hidden2[row], k)
                    sums = multiply_add_eight(spread_eight(upstream[row, output]), active, sums)
                store_eight(sums, line, k)
    if thread == 0:
        for output in range(layout.outputs):
            total = ZERO
            for row in range(len(upstream)):
                total += upstream[row, output]
            grad[layout.bias3 + output] = total

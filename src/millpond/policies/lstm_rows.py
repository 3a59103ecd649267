"""An LSTM over whole rows, forth and back, and over one step, each in one compiled call.

The products are BLAS's, or, where that pays, of our own with weights that are packed once (`packed`); the passes over the
gates are those of `lstm_kernels`. Where torch's BLAS cannot be called from compiled code, `lstm` goes through the steps
itself.

T steps  B sequences  I inputs  H hidden
"""

from __future__ import annotations

import numpy as np

from millpond.compiled import compiled_fast
from millpond.policies.lstm_kernels import ZERO, Flags, Floats, gates_backward, gates_forward, step_forward
from millpond.policies.packed import (
    PANEL,
    PAYS,
    add_of_transposed,
    add_transposed,
    multiply,
    panels_of,
    panels_of_transposed,
)

NO_PANELS = np.empty(0, np.float32)
BLOCK = 384  # sequence steps whose gates are in hand at once: they stay in the cache, and products are long enough


@compiled_fast
def copy_unless(reset: Flags, state: Floats, out: Floats) -> None:
    """out [B, H] = state, or zero where `reset` [B]."""
    for row in range(len(reset)):
        if reset[row]:
            out[row] = ZERO
        else:
            for k in range(state.shape[1]):
                out[row, k] = state[row, k]


@compiled_fast
def is_packed(inputs: int, hidden: int) -> bool:
    """Whether products of an LSTM of these sizes are our own."""
    return PAYS and inputs % PANEL == 0 and hidden % PANEL == 0


@compiled_fast
def rows_forward(
    sgemm: int,
    inputs: Floats,
    hidden0: Floats,
    cell0: Floats,
    reset: Flags,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    hidden: Floats,
    gates: Floats,
    cell: Floats,
) -> None:
    """inputs [T, B, I], reset [T, B], weights [4H, I] and [4H, H] -> hidden and cell [T, B, H], gates [T, B, 4H]."""
    steps, batch = reset.shape
    carried = np.empty_like(hidden0)  # the hidden state that the next step begins with
    copy_unless(reset[0], hidden0, carried)
    packed = is_packed(inputs.shape[2], hidden0.shape[1])
    input_panels, hidden_panels = panels_of_transposed(w_input, packed), panels_of_transposed(w_hidden, packed)
    block = max(1, BLOCK // batch)
    for start in range(0, steps, block):
        stop = min(steps, start + block)
        length = (stop - start) * batch
        sums = gates[start:stop].reshape(length, gates.shape[2])
        for row in range(length):
            sums[row] = bias
        add_transposed(sgemm, inputs[start:stop].reshape(length, inputs.shape[2]), w_input, input_panels, sums)
        for t in range(start, stop):
            add_transposed(sgemm, carried, w_hidden, hidden_panels, gates[t])
            before = cell[t - 1] if t else cell0
            gates_forward(gates[t], before, reset[t], reset[min(t + 1, steps - 1)], cell[t], hidden[t], carried)


@compiled_fast
def rows_backward(
    sgemm: int,
    d_output: Floats,
    hidden: Floats,
    gates: Floats,
    cell: Floats,
    inputs: Floats,
    hidden0: Floats,
    cell0: Floats,
    reset: Flags,
    w_input: Floats,
    w_hidden: Floats,
    d_inputs: Floats,
    d_hidden0: Floats,
    d_cell: Floats,
    d_w_input: Floats,
    d_w_hidden: Floats,
    d_bias: Floats,
    d_gates: Floats,
    began: Floats,
) -> None:
    """The way back from d_output [T, B, H]. `d_cell` and the gradients of weights come as zeros; all are written to.

    `d_inputs` may have the memory of `inputs`. `d_gates` [K, B, 4H] and `began` [K, B, H] are for the K steps that are
    in hand at once.
    """
    steps, batch = reset.shape
    size, most = hidden0.shape[1], len(d_gates)
    never = np.zeros(batch, np.bool_)
    packed = is_packed(inputs.shape[2], size)
    input_panels, hidden_panels = panels_of(w_input, packed), panels_of(w_hidden, packed)
    step_panels = np.empty(most * batch * max(inputs.shape[2], size) if packed else 0, np.float32)
    d_hidden0[:] = ZERO  # of the hidden state that the step in hand hands on; at the end, of the first
    for stop in range(steps, 0, -most):
        start = max(0, stop - most)
        length = (stop - start) * batch
        for t in range(stop - 1, start - 1, -1):
            reset_after = reset[t + 1] if t + 1 < steps else never
            before, d_sums = cell[t - 1] if t else cell0, d_gates[t - start]
            gates_backward(gates[t], before, cell[t], reset[t], reset_after, d_output[t], d_hidden0, d_cell, d_sums)
            multiply(sgemm, d_sums, w_hidden, hidden_panels, d_hidden0)
            copy_unless(reset[t], hidden[t - 1] if t else hidden0, began[t - start])
        sums = d_gates[: stop - start].reshape(length, 4 * size)
        given = inputs[start:stop].reshape(length, inputs.shape[2])
        add_of_transposed(sgemm, sums, given, step_panels, d_w_input)
        multiply(sgemm, sums, w_input, input_panels, d_inputs[start:stop].reshape(length, inputs.shape[2]))
        add_of_transposed(sgemm, sums, began[: stop - start].reshape(length, size), step_panels, d_w_hidden)
        for row in range(length):
            for k in range(4 * size):
                d_bias[k] += sums[row, k]
    copy_unless(reset[0], d_hidden0, d_hidden0)


@compiled_fast
def piece_forward(
    sgemm: int,
    first: int,
    last: int,
    inputs: Floats,
    hidden0: Floats,
    cell0: Floats,
    reset: Flags,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    hidden: Floats,
    kept_inputs: Floats,
    kept_reset: Flags,
    kept_hidden: Floats,
    gates: Floats,
    cell: Floats,
) -> None:
    """`rows_forward` of the sequences first..last-1 out of all: into `hidden`, and into what is kept for the way back.

    What is kept is of these sequences only, [T, b, ...], so that a block of steps is one piece of memory.
    """
    alone = last - first == reset.shape[1]  # what is kept are then the given arrays themselves
    if not alone:
        kept_inputs[:] = inputs[:, first:last]
        kept_reset[:] = reset[:, first:last]
    begin = hidden0[first:last], cell0[first:last]
    rows_forward(sgemm, kept_inputs, *begin, kept_reset, w_input, w_hidden, bias, kept_hidden, gates, cell)
    if not alone:
        hidden[:, first:last] = kept_hidden


@compiled_fast
def piece_backward(
    sgemm: int,
    first: int,
    last: int,
    d_output: Floats,
    hidden0: Floats,
    cell0: Floats,
    w_input: Floats,
    w_hidden: Floats,
    inputs: Floats,
    reset: Flags,
    hidden: Floats,
    gates: Floats,
    cell: Floats,
    d_inputs: Floats,
    d_hidden0: Floats,
    d_cell: Floats,
    d_w_input: Floats,
    d_w_hidden: Floats,
    d_bias: Floats,
) -> None:
    """`rows_backward` of the same sequences, from what was kept of them; gradients of weights are of these only."""
    steps, batch = reset.shape
    block = min(steps, max(1, BLOCK // batch))
    d_gates = np.empty((block, batch, gates.shape[2]), np.float32)
    began = np.empty((block, batch, hidden.shape[2]), np.float32)
    alone = batch == d_output.shape[1]
    d_hidden = d_output if alone else np.ascontiguousarray(d_output[:, first:last])
    d_features = d_inputs if alone else np.empty_like(inputs)
    kept = hidden, gates, cell, inputs, hidden0[first:last], cell0[first:last], reset
    found = d_features, d_hidden0[first:last], d_cell[first:last], d_w_input, d_w_hidden, d_bias
    rows_backward(sgemm, d_hidden, *kept, w_input, w_hidden, *found, d_gates, began)
    if not alone:
        d_inputs[:, first:last] = d_features


@compiled_fast
def act_forward(
    sgemm: int,
    inputs: Floats,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    input_panels: Floats,
    hidden_panels: Floats,
    state: Floats,
    after: Floats,
) -> None:
    """One step of acting: inputs [B, I]; `state` and `after` are [B, 2, H], hidden and cell. Panels are the weights,
    packed and transposed, or empty.
    """
    batch, size = inputs.shape[0], state.shape[2]
    most = min(batch, BLOCK)
    gates, carried = np.empty((most, 4 * size), np.float32), np.empty((most, size), np.float32)
    for start in range(0, batch, most):
        stop = min(batch, start + most)
        sums, hidden = gates[: stop - start], carried[: stop - start]
        for row in range(stop - start):
            sums[row] = bias
            hidden[row] = state[start + row, 0]
        add_transposed(sgemm, inputs[start:stop], w_input, input_panels, sums)
        add_transposed(sgemm, hidden, w_hidden, hidden_panels, sums)
        step_forward(sums, state[start:stop], after[start:stop])

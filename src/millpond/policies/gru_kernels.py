"""The element-wise part of a GRU, one step of a batch in one pass. B sequences, H hidden; float32, contiguous.

Saved gates [B, 4H]: candidate, reset gate, update gate, and the candidate's share of the hidden state. The sums from
the inputs [B, 3H] are those of candidate, reset, update; from the hidden state [B, 3H] those of reset, update,
candidate. So the gradients of both are three neighbouring quarters of one array. The plain version is in `gru.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.policies.activations import fast_sigmoid, fast_tanh

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
ONE = np.float32(1.0)
ZERO = np.float32(0.0)


@compiled_fast
def gates_forward(
    from_inputs: Floats,
    from_hidden: Floats,
    bias: Floats,
    carried: Floats,
    reset_after: Flags,
    gates: Floats,
    hidden: Floats,
) -> None:
    """Writes `gates` and `hidden` [B, H]; `carried` is the hidden state before and becomes that of the next step, void
    where `reset_after`."""
    size = carried.shape[1]
    for row in range(carried.shape[0]):
        n, r = gates[row, :size], gates[row, size : 2 * size]
        z, share = gates[row, 2 * size : 3 * size], gates[row, 3 * size :]
        in_n, in_r, in_z = from_inputs[row, :size], from_inputs[row, size : 2 * size], from_inputs[row, 2 * size :]
        hid_r, hid_z, hid_n = from_hidden[row, :size], from_hidden[row, size : 2 * size], from_hidden[row, 2 * size :]
        old, h = carried[row], hidden[row]
        for k in range(size):
            r[k] = fast_sigmoid(in_r[k] + hid_r[k])
        for k in range(size):
            z[k] = fast_sigmoid(in_z[k] + hid_z[k])
        for k in range(size):
            share[k] = hid_n[k] + bias[k]
        for k in range(size):
            n[k] = fast_tanh(in_n[k] + r[k] * share[k])
        for k in range(size):
            h[k] = n[k] + z[k] * (old[k] - n[k])
        if reset_after[row]:
            old[:] = ZERO
        else:
            for k in range(size):
                old[k] = h[k]


@compiled_fast
def gates_backward(
    gates: Floats, before: Floats, reset: Flags, d_hidden: Floats, d_before: Floats, d_gates: Floats
) -> None:
    """`d_hidden` is the gradient of this step's hidden state, `before` the one that it began with (void where `reset`).

    Writes `d_gates` [B, 4H]: gradients of the sums of candidate, reset, update, and of the candidate's share of the
    hidden state; and `d_before`: what reaches the hidden state before without going through the gates.
    """
    size = d_hidden.shape[1]
    nothing = np.zeros(size, np.float32)
    for row in range(d_hidden.shape[0]):
        n, r = gates[row, :size], gates[row, size : 2 * size]
        z, share = gates[row, 2 * size : 3 * size], gates[row, 3 * size :]
        dn, dr = d_gates[row, :size], d_gates[row, size : 2 * size]
        dz, d_share = d_gates[row, 2 * size : 3 * size], d_gates[row, 3 * size :]
        dh, direct = d_hidden[row], d_before[row]
        old = nothing if reset[row] else before[row]
        for k in range(size):
            dn[k] = dh[k] * (ONE - z[k]) * (ONE - n[k] * n[k])
        for k in range(size):
            dz[k] = dh[k] * (old[k] - n[k]) * z[k] * (ONE - z[k])
        for k in range(size):
            dr[k] = dn[k] * share[k] * r[k] * (ONE - r[k])
        for k in range(size):
            d_share[k] = dn[k] * r[k]
        for k in range(size):
            direct[k] = dh[k] * z[k]

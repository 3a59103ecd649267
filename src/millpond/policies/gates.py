"""The gates of recurrent cores: pure functions, forward and backward. B sequences  H hidden"""

from __future__ import annotations

import torch
from torch import Tensor


def lstm_gates(sums: Tensor, cell_before: Tensor, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums [B, 4H] and the cell before [B, H] -> activated gates, cell, hidden."""
    i, f, g, o = sums.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cell = f * cell_before.masked_fill(reset[:, None], 0) + i.to(cell_before.dtype) * g
    hidden = (o * cell.tanh()).to(sums.dtype)
    return torch.cat((i, f, g, o), 1), cell, hidden


def lstm_gates_backward(
    gates: Tensor, cell_before: Tensor, cell: Tensor, reset: Tensor, d_hidden: Tensor, d_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of hidden and cell [B, H] -> gradients of the sums [B, 4H] and of the cell before [B, H]."""
    i, f, g, o = gates.to(cell.dtype).chunk(4, 1)
    tanh_cell = cell.tanh()
    d_cell = d_cell + d_hidden * o * (1 - tanh_cell * tanh_cell)
    before = cell_before.masked_fill(reset[:, None], 0)
    di, df = d_cell * g * i * (1 - i), d_cell * before * f * (1 - f)
    dg, do = d_cell * i * (1 - g * g), d_hidden * tanh_cell * o * (1 - o)
    return torch.cat((di, df, dg, do), 1), (d_cell * f).masked_fill(reset[:, None], 0)


def gru_gates(from_inputs: Tensor, from_hidden: Tensor, bias: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Sums [B, 3H] twice, the candidate's bias [H], the hidden state before [B, H] -> saved gates [B, 4H], hidden."""
    in_n, in_r, in_z = from_inputs.chunk(3, 1)
    hid_r, hid_z, hid_n = from_hidden.chunk(3, 1)
    r, z, share = (in_r + hid_r).sigmoid(), (in_z + hid_z).sigmoid(), hid_n + bias
    n = (in_n + r * share).tanh()
    return torch.cat((n, r, z, share), 1), n + z * (before - n)


def gru_gates_backward(gates: Tensor, before: Tensor, d_hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of hidden [B, H] -> gradients of the sums [B, 4H], and of the hidden state before, past the gates."""
    n, r, z, share = gates.chunk(4, 1)
    dn = d_hidden * (1 - z) * (1 - n * n)
    dz = d_hidden * (before - n) * z * (1 - z)
    return torch.cat((dn, dn * share * r * (1 - r), dz, dn * r), 1), d_hidden * z


def mingru_gates(sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums [..., 3H] -> share of the state that is kept, what is added to it, and the highway gate: each [..., H]."""
    candidate, update, highway = sums.chunk(3, -1)
    z = update.sigmoid()
    return 1 - z, z * positive(candidate), highway.sigmoid()


def positive(candidate: Tensor) -> Tensor:
    """Return c + 0.5 where c >= 0, else sigmoid(c): continuous, increasing, positive."""
    return torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())

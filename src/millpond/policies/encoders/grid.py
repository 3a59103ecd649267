"""Encoder of a grid whose cells hold one of a few kinds.

    features = sum over cells c of table[c, kind of c]

This is a linear layer over one-hot cells, computed by table lookup. Kind 0, the empty cell, contributes nothing: its
share is in the bias of `ObservationEncoder`.

N observations  C cells  K kinds except empty  H hidden
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.envs.spec import Part
from millpond.policies.encoders import device_sums
from millpond.policies.errors import PolicyError
from millpond.policies.parts import check_largest


def grid_sum(cells: Tensor, table: Tensor) -> Tensor:
    """cells [N, C], table [C, K, H] -> [N, H]."""
    if cells.device.type != "cpu":
        summed: Tensor = device_sums.grid_sum(cells, table)  # it checks the codes itself
        return summed
    return F.embedding_bag(*_rows(cells, table), mode="sum")


def plain_grid_sum(cells: Tensor, table: Tensor) -> Tensor:
    """Compute `grid_sum` by operations that every runtime has, with more memory."""
    return F.embedding(*_rows(cells, table)).sum(1)


def _rows(cells: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row of each cell [N, C], and the table as rows, with a row of zeros for the empty kind of each cell."""
    with_empty = F.pad(table, (0, 0, 1, 0))
    first_rows = torch.arange(0, with_empty.shape[0] * with_empty.shape[1], with_empty.shape[1], device=cells.device)
    return cells.long() + first_rows, with_empty.flatten(0, 1)


def check_kinds(largest: int, kinds: int) -> None:
    """Raise PolicyError if a cell's code is beyond the table."""
    if largest > kinds:
        raise PolicyError(
            f"a grid cell has code {largest}, but the policy was built for codes 0..{kinds}; build it with "
            f"cell_kinds={largest + 1} or more, or let the environment declare the largest code with the part"
        )


class GridEncoder(nn.Module):
    """Codes of cells [N, height, width] -> [N, H]."""

    look_up = staticmethod(grid_sum)  # exported policies replace it by `plain_grid_sum`

    def __init__(self, part: Part, hidden_size: int, cell_kinds: int) -> None:
        super().__init__()
        if part.dtype != "uint8":
            raise PolicyError(f"observation part {part.name!r} is a grid of {part.dtype}; cells must be uint8 codes")
        high = part.high
        kinds = cell_kinds if high is None else int(high) + 1
        if not 2 <= kinds <= 256:
            raise PolicyError(f"observation part {part.name!r}: {kinds} kinds of cells; there must be 2 to 256")
        self.table = nn.Parameter(torch.empty(prod(part.shape), kinds - 1, hidden_size))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise as an orthogonal linear layer over one-hot cells, scaled for one nonzero kind per cell."""
        cells, kinds, hidden = self.table.shape
        flat = torch.empty(hidden, cells * kinds)
        nn.init.orthogonal_(flat, 2**0.5 * kinds**0.5, generator=generator)
        with torch.no_grad():
            self.table.copy_(flat.t().reshape(cells, kinds, hidden))

    def forward(self, cells: Tensor) -> Tensor:
        flat, kinds = cells.flatten(1), self.table.shape[1]
        if cells.device.type == "cpu":
            check_largest(flat, kinds, check_kinds, f"a grid cell's code is above {kinds}, the largest known")
        return self.look_up(flat, self.table)

"""Random inputs of cores and encoders."""

from __future__ import annotations

import torch
from torch import Tensor

H = 24  # hidden size of the tables


def with_resets(generator: torch.Generator, steps: int, batch: int) -> Tensor:
    """Return random resets [T, B]; some at the first and the last step, one sequence with none, one with all."""
    reset = torch.rand(steps, batch, generator=generator) < 0.3
    reset[0, 0] = reset[-1, 1] = True
    reset[:, 2] = False
    reset[:, 3] = True
    return reset


def cells_and_table(count: int = 700) -> tuple[Tensor, Tensor]:
    """Return cells [N, 30] of eight kinds, half of them empty, and a table."""
    generator = torch.Generator().manual_seed(0)
    cells = torch.randint(0, 8, (count, 30), generator=generator, dtype=torch.uint8)
    cells[torch.rand(count, 30, generator=generator) < 0.5] = 0
    return cells, torch.randn(30, 7, H, generator=generator, requires_grad=True)


def tokens_and_tables(count: int = 700) -> tuple[Tensor, ...]:
    """Return tokens [N, 40, 3], most of them padding, and three tables."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 255, (count, 40, 3), generator=generator, dtype=torch.uint8)
    tokens[torch.rand(count, 40, generator=generator) < 0.6] = 0xFF
    tokens[0] = 0xFF  # nothing to see
    shapes = (256, 4096, 4096)
    return tokens, *(torch.randn(rows, H, generator=generator, requires_grad=True) for rows in shapes)

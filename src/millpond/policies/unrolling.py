"""What the cores share on their way back through a row. T steps  B sequences  H hidden."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 1_024  # sequence steps whose gates are in hand at once: 2 MB at H = 128, and products are long enough


def blocks_backward(steps: int, batch: int) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of steps, last first, of about BLOCK sequence steps each."""
    length = max(1, BLOCK // batch)
    for stop in range(steps, 0, -length):
        yield max(0, stop - length), stop


def carried_states(hidden: Tensor, hidden0: Tensor, reset: Tensor, start: int, stop: int) -> Tensor:
    """The hidden states that steps start..stop-1 began with: those of the step before, or zero where it was reset."""
    if start:
        before = hidden[start - 1 : stop - 1]
    else:
        before = torch.cat((hidden0[None], hidden[: stop - 1]))
    return before.masked_fill(reset[start:stop, :, None], 0)

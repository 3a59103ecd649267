"""Rows gathered as sequences equal torch indexing, for any type and size of a step."""

from __future__ import annotations

import pytest
import torch

from millpond.rollout.picking import pick_sequences

CPU = torch.device("cpu")
ROWS, STEPS, AGENTS = 6, 5, 3


@pytest.mark.parametrize("shape", [(), (2,), (4, 7)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float32, torch.float64])
def test_gathered_sequences_equal_plain_indexing(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    stored = torch.randint(0, 100, (ROWS, STEPS, AGENTS, *shape), generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = torch.tensor([4, 0, 4, 5])
    found = pick_sequences(stored, rows, CPU)
    torch.testing.assert_close(found, stored[rows].transpose(1, 2).flatten(0, 1), rtol=0, atol=0)
    assert found.transpose(0, 1).is_contiguous(), "time is first in memory"


@pytest.mark.parametrize("rows", [[0, ROWS], [-1]])
def test_row_out_of_range_is_an_error(rows: list[int]) -> None:
    with pytest.raises(IndexError):
        pick_sequences(torch.zeros(ROWS, STEPS, AGENTS), torch.tensor(rows), CPU)


def test_gather_from_the_first_rows_of_a_larger_buffer() -> None:
    stored = torch.arange(ROWS * STEPS * AGENTS, dtype=torch.float32).view(ROWS, STEPS, AGENTS)
    found = pick_sequences(stored[:4], torch.tensor([3, 1]), CPU)
    torch.testing.assert_close(found, stored[[3, 1]].transpose(1, 2).flatten(0, 1))

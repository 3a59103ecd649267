"""Compiled table lookups of grids and tokens against plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from millpond.envs.spec import Part
from millpond.fast.tables import FastGrid, FastTokens, SumCells, SumTokens
from millpond.policies import PolicyError
from millpond.policies.encoders.grid import GridEncoder, grid_sum
from millpond.policies.encoders.tokens import TokenEncoder, token_sum
from tests.support.policy_inputs import cells_and_table, tokens_and_tables


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("fast", "plain", "inputs"),
    [(SumCells.apply, grid_sum, cells_and_table()), (SumTokens.apply, token_sum, tokens_and_tables())],
    ids=["grid", "tokens"],
)
def test_lookups_equal_plain_torch_on_any_number_of_threads(
    fast: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: tuple[Tensor, ...], threads: int
) -> None:
    torch.set_num_threads(threads)
    ours, theirs = fast(*inputs), plain(*inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(9))
    tables = list(inputs[1:])
    for left, right in zip(
        torch.autograd.grad((ours * weight).sum(), tables),
        torch.autograd.grad((theirs * weight).sum(), tables),
        strict=True,
    ):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


def grid_with_code(code: int) -> tuple[Any, Tensor]:
    cells = torch.zeros(2, 3, 3, dtype=torch.uint8)
    cells[1, 2, 2] = code
    return FastGrid(GridEncoder(Part("cells", "grid", (3, 3), "uint8"), 24, cell_kinds=8)), cells


def tokens_with_feature(feature: int) -> tuple[Any, Tensor]:
    tokens = torch.full((2, 3, 3), 0xFF, dtype=torch.uint8)
    tokens[1, 0] = torch.tensor([0, feature, 255])
    return FastTokens(TokenEncoder(Part("tokens", "tokens", (3, 3), "uint8", high=19), 24)), tokens


@pytest.mark.parametrize(("make", "largest"), [(grid_with_code, 7), (tokens_with_feature, 19)])
def test_codes_beyond_the_tables_are_refused(make: Callable[[int], tuple[Any, Tensor]], largest: int) -> None:
    encoder, observation = make(largest)
    encoder(observation)
    encoder, observation = make(largest + 1)
    with pytest.raises(PolicyError, match=rf" {largest + 1}, but the policy was built for \w+ 0\.\.{largest}"):
        encoder(observation)

"""Sums of table rows on a device: one launch each way, without a list of tokens or cells. Observations are not gathered.

A code beyond the tables counts as nothing, and sets `fine` to 0, which is asserted without waiting for the device.

N observations  M tokens  C cells  K kinds except empty  F features  H hidden
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from millpond.devices.kernels import device_kernel
from millpond.envs.spec import TOKEN_PADDING

TRITON = "millpond.fast.triton.sums"
BLOCK = 1_024  # observations that the plain versions read together


@device_kernel(f"{TRITON}:grid_forward")
def grid_forward(cells: Tensor, table: Tensor, fine: Tensor, out: Tensor) -> None:
    """cells [N, C], table [C, K, H]: write out [N, H]; kind 0 adds nothing."""
    codes = cells.long()
    known = codes <= table.shape[1]
    fine.copy_(known.all().view(1))
    with_empty = F.pad(table, (0, 0, 1, 0))
    first_rows = torch.arange(len(table), device=cells.device) * with_empty.shape[1]
    out.copy_(F.embedding_bag(codes * known + first_rows, with_empty.flatten(0, 1), mode="sum"))


@device_kernel(f"{TRITON}:grid_backward")
def grid_backward(d_sum: Tensor, cells: Tensor, d_table: Tensor) -> None:
    """d_sum [N, H], cells [N, C]: add to d_table [C, K, H]."""
    places, kinds, size = d_table.shape
    first_rows = torch.arange(places, device=cells.device) * (kinds + 1)
    for some, d_some in zip(torch.split(cells, BLOCK), torch.split(d_sum, BLOCK), strict=True):
        one_hot = d_sum.new_zeros(len(some), places * (kinds + 1)).scatter_(1, some.long() + first_rows, 1.0)
        d_table += (one_hot.t() @ d_some).view(places, kinds + 1, size)[:, 1:]


@device_kernel(f"{TRITON}:token_forward")
def token_forward(tokens: Tensor, where: Tensor, low: Tensor, high: Tensor, fine: Tensor, out: Tensor) -> None:
    """tokens [N, M, 3], where [256, H], low and high [F * 16, H]: write out [N, H]."""
    out.zero_()
    for some, part in zip(torch.split(tokens, BLOCK), torch.split(out, BLOCK), strict=True):
        n, place, at_low, at_high, known = known_tokens(some, len(low))
        fine.mul_(known)
        part.index_add_(0, n, where[place] * (low[at_low] + high[at_high]))


@device_kernel(f"{TRITON}:token_backward")
def token_backward(
    d_sum: Tensor,
    tokens: Tensor,
    where: Tensor,
    low: Tensor,
    high: Tensor,
    d_where: Tensor,
    d_low: Tensor,
    d_high: Tensor,
) -> None:
    """d_sum [N, H]: add to the gradients of the three tables."""
    for some, d_some in zip(torch.split(tokens, BLOCK), torch.split(d_sum, BLOCK), strict=True):
        n, place, at_low, at_high, _ = known_tokens(some, len(low))
        d_shares = d_some[n]
        d_where.index_add_(0, place, d_shares * (low[at_low] + high[at_high]))
        d_values = d_shares * where[place]
        d_low.index_add_(0, at_low, d_values)
        d_high.index_add_(0, at_high, d_values)


def known_tokens(tokens: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return observations, places, rows of `low` and of `high` [R] of known tokens, and if all that are real are known."""
    real = tokens[:, :, 0] != TOKEN_PADDING
    known = tokens[:, :, 1].long() * 16 < rows
    n, m = (real & known).nonzero(as_tuple=True)
    place, feature, value = tokens[n, m].long().unbind(1)
    return n, place, feature * 16 + value % 16, feature * 16 + value // 16, (known | ~real).all()


@torch.library.custom_op("millpond::device_grid_sum", mutates_args=())
def grid_sum(cells: Tensor, table: Tensor) -> Tensor:
    """cells [N, C], table [C, K, H] -> [N, H]."""
    fine = torch.ones(1, dtype=torch.int32, device=cells.device)
    out = table.new_empty(len(cells), table.shape[-1])
    grid_forward(cells.contiguous(), table, fine, out)
    torch._assert_async(fine, f"a grid cell's code is above {table.shape[1]}, the largest known")
    return out


@grid_sum.register_fake
def _(cells: Tensor, table: Tensor) -> Tensor:
    return table.new_empty(len(cells), table.shape[-1])


@torch.library.custom_op("millpond::device_grid_sum_backward", mutates_args=())
def grid_sum_backward(d_sum: Tensor, cells: Tensor, table: Tensor) -> Tensor:
    """Gradient of the table from that of the sums [N, H]."""
    d_table = torch.zeros_like(table)
    grid_backward(d_sum.contiguous(), cells.contiguous(), d_table)
    return d_table


@grid_sum_backward.register_fake
def _(d_sum: Tensor, cells: Tensor, table: Tensor) -> Tensor:
    return torch.empty_like(table)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, d_sum: Tensor) -> tuple[Tensor | None, ...]:
    return None, grid_sum_backward(d_sum, *ctx.saved_tensors)


grid_sum.register_autograd(_backward, setup_context=_save)


def token_sum(tokens: Tensor, where: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Compute `tokens.token_sum`."""
    fine = torch.ones(1, dtype=torch.int32, device=tokens.device)
    out = where.new_empty(len(tokens), where.shape[1])
    token_forward(tokens.contiguous(), where, low, high, fine, out)
    torch._assert_async(fine, f"a token's feature is above {len(low) // 16 - 1}, the largest known")
    return out


def token_sum_backward(
    d_sum: Tensor, tokens: Tensor, where: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `tokens.token_sum_backward`."""
    d_where, d_low, d_high = torch.zeros_like(where), torch.zeros_like(low), torch.zeros_like(high)
    token_backward(d_sum.contiguous(), tokens.contiguous(), where, low, high, d_where, d_low, d_high)
    return d_where, d_low, d_high

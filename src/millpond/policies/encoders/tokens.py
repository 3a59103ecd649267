"""Encoder of MettaGrid's tokens: (place, feature, value), each a byte; place 0xFF is padding, 0xFE is no place.

    features = U sum over tokens of  where[place] * (low[feature, value % 16] + high[feature, value // 16])

Values are looked up, not scaled, because many are names (of object types, of actions), and in two halves, because most
rows of a table of all 256 would rarely be visited. The tables are as long as the environment has features: the optimizer
iterates over all of them at every step. The product lets a token mean something else at another place; it is a linear
layer over (place, feature, value) as a tensor of rank H instead of a full one. Only real tokens cost anything, some 25
of 200.

N observations  M tokens  F features  H hidden  R real tokens of all observations
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from millpond.envs.spec import TOKEN_PADDING, Part
from millpond.policies.encoders import device_sums
from millpond.policies.errors import PolicyError
from millpond.policies.parts import check_largest

FEATURES = 256  # if the environment does not say how many it has
BLOCK = 256  # observations whose tokens are looked up together: each takes some vectors of memory
TYPICAL_TOKENS = 24  # per observation, for the scale of the first weights


def _real_tokens(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """tokens [N, M, 3] -> their observations, rows of `where`, of `low` and of `high`, each [R]."""
    n, m = (tokens[:, :, 0] != TOKEN_PADDING).nonzero(as_tuple=True)
    place, feature, value = tokens[n, m].long().unbind(1)
    return n, place, feature * 16 + value % 16, feature * 16 + value // 16


# An operation with its own backward pass, since only the tokens need to be saved for it, and since torch.compile cannot
# trace the search for real tokens, whose number varies.
@torch.library.custom_op("millpond::token_sum", mutates_args=())
def token_sum(tokens: Tensor, where: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """tokens [N, M, 3], where [256, H], low and high [F * 16, H] -> [N, H]."""
    if tokens.device.type != "cpu":
        return device_sums.token_sum(tokens, where, low, high)  # it checks the features itself
    summed = where.new_zeros(tokens.shape[0], where.shape[1])
    for block, out in zip(torch.split(tokens, BLOCK), torch.split(summed, BLOCK), strict=True):
        n, place, at_low, at_high = _real_tokens(block)
        out.index_add_(0, n, where[place] * (low[at_low] + high[at_high]))
    return summed


@token_sum.register_fake
def _(tokens: Tensor, where: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return where.new_empty(tokens.shape[0], where.shape[1])


@torch.library.custom_op("millpond::token_sum_backward", mutates_args=())
def token_sum_backward(
    d_sum: Tensor, tokens: Tensor, where: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the three tables from that of the sums [N, H]."""
    if tokens.device.type != "cpu":
        return device_sums.token_sum_backward(d_sum, tokens, where, low, high)
    d_where, d_low, d_high = torch.zeros_like(where), torch.zeros_like(low), torch.zeros_like(high)
    for block, d_out in zip(torch.split(tokens, BLOCK), torch.split(d_sum, BLOCK), strict=True):
        n, place, at_low, at_high = _real_tokens(block)
        d_shares = d_out[n]
        d_where.index_add_(0, place, d_shares * (low[at_low] + high[at_high]))
        d_values = d_shares * where[place]
        d_low.index_add_(0, at_low, d_values)
        d_high.index_add_(0, at_high, d_values)
    return d_where, d_low, d_high


@token_sum_backward.register_fake
def _(d_sum: Tensor, tokens: Tensor, where: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(where), torch.empty_like(low), torch.empty_like(high)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, d_sum: Tensor) -> tuple[Tensor | None, ...]:
    return None, *token_sum_backward(d_sum, *ctx.saved_tensors)


token_sum.register_autograd(_backward, setup_context=_save)


def plain_token_sum(tokens: Tensor, where: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Compute `token_sum` by operations that every runtime has, over padding too, with more memory."""
    real = tokens[:, :, :1] != TOKEN_PADDING
    place, feature, value = (tokens.long() * real).unbind(2)  # whatever padding holds, it is inside the tables
    shares = where[place] * (low[feature * 16 + value % 16] + high[feature * 16 + value // 16])
    return (shares * real).sum(1)


def check_features(largest: int, last: int) -> None:
    """Raise PolicyError if a token's feature is beyond the tables."""
    if largest > last:
        raise PolicyError(
            f"a token has feature {largest}, but the policy was built for features 0..{last}, as the environment's "
            "observation part declares by `high`; set it to the largest feature, or leave it out for all 256"
        )


class TokenEncoder(nn.Module):
    """Tokens [N, M, 3] -> [N, H]."""

    look_up = staticmethod(token_sum)  # exported policies replace it by `plain_token_sum`

    def __init__(self, part: Part, hidden_size: int) -> None:
        super().__init__()
        if part.dtype != "uint8" or len(part.shape) != 2 or part.shape[1] != 3:
            raise PolicyError(
                f"observation part {part.name!r} is {part.dtype} of shape {part.shape}; tokens must be uint8 of shape "
                "(tokens, 3): place, feature, value"
            )
        features = FEATURES if part.high is None else int(part.high) + 1
        if not 1 <= features <= FEATURES:
            raise PolicyError(f"observation part {part.name!r}: {features} features; there must be 1 to {FEATURES}")
        self.where = nn.Parameter(torch.empty(256, hidden_size))
        self.low = nn.Parameter(torch.empty(features * 16, hidden_size))
        self.high = nn.Parameter(torch.empty(features * 16, hidden_size))
        self.linear = nn.Linear(hidden_size, hidden_size, bias=False)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.where, generator=generator)
        nn.init.normal_(self.low, std=0.5, generator=generator)
        nn.init.normal_(self.high, std=0.5, generator=generator)
        nn.init.orthogonal_(self.linear.weight, (2 / TYPICAL_TOKENS) ** 0.5, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        last = self.low.shape[0] // 16 - 1
        if tokens.device.type == "cpu":
            features = tokens[:, :, 1].masked_fill(tokens[:, :, 0] == TOKEN_PADDING, 0)
            check_largest(features, last, check_features, f"a token's feature is above {last}, the largest known")
        summed: Tensor = self.linear(self.look_up(tokens, self.where, self.low, self.high))
        return summed

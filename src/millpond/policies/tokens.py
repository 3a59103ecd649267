"""MettaGrid's tokens: (place, feature, value), each a byte; place 0xFF is padding, 0xFE is nowhere in particular.

    features = U sum over tokens of  where[place] * (low[feature, value % 16] + high[feature, value // 16])

Values are looked up, not scaled, because many are names (of object types, of actions), and in two halves, because a
table of all 256 would rarely be visited. The tables are as long as the environment has features: the optimiser goes through
all of them at every step. The product says that a thing means something else at another place; it is
what a linear layer over (place, feature, value) would compute, as a tensor of rank H instead of a full one.
Only real tokens cost anything, some 25 of 200.

N observations  M tokens  F features  H hidden
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast, inlined
from millpond.envs.spec import TOKEN_PADDING, Part
from millpond.policies.eights import (
    WIDTH,
    add_eight,
    load_eight,
    multiply_add_eight,
    multiply_eight,
    store_eight,
)
from millpond.policies.errors import PolicyError
from millpond.policies.precision import is_fused_for, is_fused_now
from millpond.policies.threads import in_threads

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
ZERO = np.float32(0.0)
PADDED = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # eight bytes of padding
LEAST = 512  # observations for which another thread is worth waking
FEATURES = 256  # where the environment does not say how many it has
USUAL = 24  # tokens that an observation has, for the scale of the first weights


@inlined
def in_words(tokens: Bytes) -> npt.NDArray[np.uint64]:
    """All bytes of tokens [N, M, 3] one behind the other, eight to a word; what is left over is left out."""
    return tokens.reshape(tokens.size)[: tokens.size // 8 * 8].view(np.uint64)


@inlined
def real_tokens(tokens: Bytes, words: npt.NDArray[np.uint64], n: int, found: npt.NDArray[np.int64]) -> int:
    """Where the real ones of tokens[n] [M, 3] are, into `found` [M + 1], and how many; without a branch for each.

    Observations mostly end in tokens that are padding to the last byte; these are passed over word by word.
    """
    last = tokens.shape[1]
    if last % 8 == 0:  # or words would not begin where an observation does
        first, word = n * last * 3 // 8, (n + 1) * last * 3 // 8
        while word > first and words[word - 1] == PADDED:
            word -= 1
        last = ((word - first) * 8 + 2) // 3
    count = 0
    for m in range(last):
        found[count] = m
        count += tokens[n, m, 0] != TOKEN_PADDING
    return count


@compiled_fast
def sum_tokens(tokens: Bytes, where: Floats, low: Floats, high: Floats, out: Floats, start: int, stop: int) -> int:
    """tokens [N, M, 3], where [256, H], low and high [F * 16, H] -> out[start:stop] of [N, H].

    Returns the largest feature; those beyond the tables are not looked up.
    """
    size, features, largest = where.shape[1], low.shape[0] // 16, 0
    whole = size // WIDTH * WIDTH
    found, words = np.empty(tokens.shape[1] + 1, np.int64), in_words(tokens)
    for n in range(start, stop):
        total = out[n]
        total[:] = ZERO
        for k in range(real_tokens(tokens, words, n, found)):
            place, feature, value = tokens[n, found[k]]
            largest = max(largest, feature)
            if feature >= features:
                continue
            at_low, at_high = feature * 16 + (value & 15), feature * 16 + (value >> 4)
            p, a, b = place * size, at_low * size, at_high * size
            for h in range(0, whole, WIDTH):
                both = add_eight(load_eight(low, a + h), load_eight(high, b + h))
                store_eight(multiply_add_eight(load_eight(where, p + h), both, load_eight(total, h)), total, h)
            for h in range(whole, size):
                total[h] += where[place, h] * (low[at_low, h] + high[at_high, h])
    return largest


@compiled_fast
def spread_tokens(
    tokens: Bytes,
    where: Floats,
    low: Floats,
    high: Floats,
    d_out: Floats,
    d_where: Floats,
    d_low: Floats,
    d_high: Floats,
    start: int,
    stop: int,
) -> None:
    """The way back, for columns start..stop-1 of the three tables."""
    size = where.shape[1]
    whole = start + (stop - start) // WIDTH * WIDTH
    found, words = np.empty(tokens.shape[1] + 1, np.int64), in_words(tokens)
    for n in range(tokens.shape[0]):
        for k in range(real_tokens(tokens, words, n, found)):
            place, feature, value = tokens[n, found[k]]
            at_low, at_high = feature * 16 + (value & 15), feature * 16 + (value >> 4)
            p, a, b = place * size, at_low * size, at_high * size
            for h in range(start, whole, WIDTH):
                above = load_eight(d_out, n * size + h)
                both = add_eight(load_eight(low, a + h), load_eight(high, b + h))
                share = multiply_eight(above, load_eight(where, p + h))
                store_eight(multiply_add_eight(above, both, load_eight(d_where, p + h)), d_where, p + h)
                store_eight(add_eight(load_eight(d_low, a + h), share), d_low, a + h)
                store_eight(add_eight(load_eight(d_high, b + h), share), d_high, b + h)
            for h in range(whole, stop):
                d_where[place, h] += d_out[n, h] * (low[at_low, h] + high[at_high, h])
                d_low[at_low, h] += d_out[n, h] * where[place, h]
                d_high[at_high, h] += d_out[n, h] * where[place, h]


def token_sum_plain(tokens: Tensor, where: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """tokens [N, M, 3], where [256, H], low and high [F * 16, H] -> [N, H], on any device."""
    n, m = (tokens[:, :, 0] != TOKEN_PADDING).nonzero(as_tuple=True)
    place, feature, value = tokens[n, m].long().unbind(1)
    shares = where[place] * (low[feature * 16 + value % 16] + high[feature * 16 + value // 16])
    return where.new_zeros(tokens.shape[0], where.shape[1]).index_add(0, n, shares)


def check_features(largest: int, features: int) -> None:
    if largest >= features:
        raise PolicyError(
            f"a token has feature {largest}, but the policy was built for features 0..{features - 1}, as the environment's "
            "observation part says by `high`; set it to the largest feature, or leave it out for all 256"
        )


def _summed(tokens: Tensor, where: Tensor, low: Tensor, high: Tensor) -> Tensor:
    out = where.new_empty(tokens.shape[0], where.shape[1])
    tables = where.detach().numpy(), low.detach().numpy(), high.detach().numpy()
    arrays = tokens.numpy(), *tables, out.numpy()
    largest = in_threads(lambda start, stop: sum_tokens(*arrays, start, stop), tokens.shape[0], LEAST)
    check_features(max(largest), low.shape[0] // 16)
    return out


@torch.library.custom_op("millpond::token_sum", mutates_args=())
def token_sum(tokens: Tensor, where: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The same on the CPU in float32, in one pass."""
    return _summed(tokens, where, low, high)


@token_sum.register_fake
def _(tokens: Tensor, where: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return where.new_empty(tokens.shape[0], where.shape[1])


@torch.library.custom_op("millpond::token_sum_backward", mutates_args=())
def token_sum_backward(
    d_out: Tensor, tokens: Tensor, where: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    d_where, d_low, d_high = torch.zeros_like(where), torch.zeros_like(low), torch.zeros_like(high)
    tables = where.numpy(), low.numpy(), high.numpy()
    gradients = d_where.numpy(), d_low.numpy(), d_high.numpy()
    arrays = tokens.numpy(), *tables, d_out.contiguous().numpy(), *gradients
    columns = where.shape[1]
    least = columns if tokens.shape[0] < LEAST else 32
    in_threads(lambda start, stop: spread_tokens(*arrays, start, stop), columns, least)
    return d_where, d_low, d_high


@token_sum_backward.register_fake
def _(d_out: Tensor, tokens: Tensor, where: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(where), torch.empty_like(low), torch.empty_like(high)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
    return None, *token_sum_backward(d_out, *ctx.saved_tensors)


token_sum.register_autograd(_backward, setup_context=_save)


class TokenEncoder(nn.Module):
    """Tokens [N, M, 3] -> [N, H]."""

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
        nn.init.orthogonal_(self.linear.weight, (2 / USUAL) ** 0.5, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        tables = self.where, self.low, self.high
        if is_fused_now(self.where):
            summed = _summed(tokens.contiguous(), *tables)
        elif is_fused_for(self.where):
            summed = token_sum(tokens.contiguous(), *tables)
        else:
            count = self.low.shape[0] // 16
            known = (tokens[:, :, 1] <= count - 1) | (tokens[:, :, 0] == TOKEN_PADDING)
            torch._assert_async(known.all(), f"a token's feature is beyond {count - 1}, the largest that is known")
            summed = token_sum_plain(tokens, *tables)
        features: Tensor = self.linear(summed)
        return features

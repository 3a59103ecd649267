"""Small parts of acting; the definitions are in `millpond.policies.device_steps`. N observations  A logits  D numbers"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _draw_choice(
    logits, mask, draws, action, log_prob, logits_row, mask_row, choices, choice, first, size, lowest,
    MASK: tl.constexpr, DRAWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, WIDTH)
    used = k < size
    x = tl.load(logits + n * logits_row + first + k, mask=used, other=0.0).to(log_prob.dtype.element_ty)
    if MASK:
        x = tl.where(tl.load(mask + n * mask_row + first + k, mask=used, other=0) != 0, x, lowest)
    x = tl.where(used, x, float("-inf"))
    largest = tl.max(x, 0)
    log_probs = x - largest - tl.log(tl.sum(tl.where(used, tl.exp(x - largest), 0.0), 0))
    if DRAWS:
        draw = tl.load(draws + n * choices + choice)
        wide = draws.dtype.element_ty
        shares = tl.where(used, tl.exp(log_probs.to(wide)), tl.zeros((WIDTH,), wide))
        below = (tl.cumsum(shares, 0) <= draw * tl.sum(shares, 0)) & used
        taken = tl.minimum(tl.sum(below.to(tl.int32), 0), size - 1)
    else:
        taken = tl.argmax(x, 0).to(tl.int32)
    chosen = tl.sum(tl.where(k == taken, tl.where(used, log_probs, 0.0), 0.0), 0)
    if choice > 0:
        chosen += tl.load(log_prob + n)
    tl.store(action + n * choices + choice, taken)
    tl.store(log_prob + n, chosen)


def draw_choice(
    logits: Tensor,
    mask: Tensor | None,
    draws: Tensor | None,
    choice: int,
    first: int,
    size: int,
    action: Tensor,
    log_prob: Tensor,
) -> None:
    lowest = torch.finfo(log_prob.dtype).min
    _draw_choice[(len(logits),)](
        logits, logits if mask is None else mask, log_prob if draws is None else draws, action, log_prob,
        logits.stride(0), 0 if mask is None else mask.stride(0), action.shape[1], choice, first, size, lowest,
        MASK=mask is not None, DRAWS=draws is not None, WIDTH=max(2, triton.next_power_of_2(size)),
    )  # fmt: skip


@triton.jit
def _normalise(numbers, mean, variance, floor, clip, out, count, D: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = at < count
    d, stored = at % D, out.dtype.element_ty
    deviation = tl.maximum(tl.sqrt(tl.load(variance + d, mask=used, other=1.0)), floor).to(stored)
    x = (tl.load(numbers + at, mask=used, other=0.0) - tl.load(mean + d, mask=used, other=0.0).to(stored)) / deviation
    tl.store(out + at, tl.minimum(tl.maximum(x, -clip), clip), mask=used)


def normalise(numbers: Tensor, mean: Tensor, variance: Tensor, floor: float, clip: float, out: Tensor) -> None:
    _normalise[(triton.cdiv(numbers.numel(), BLOCK),)](
        numbers, mean, variance, floor, clip, out, numbers.numel(), D=numbers.shape[1], BLOCK=BLOCK
    )


@triton.jit
def _rescale(normalised, mean, variance, relative, lowest, out, count, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = at < count
    centre, stored = tl.load(mean), out.dtype.element_ty
    deviation = tl.maximum(tl.sqrt(tl.load(variance)), tl.maximum(tl.abs(centre) * relative, lowest))
    x = tl.load(normalised + at * stride, mask=used, other=0.0)
    tl.store(out + at, centre.to(stored) + deviation.to(stored) * x, mask=used)


def rescale(normalised: Tensor, mean: Tensor, variance: Tensor, relative: float, lowest: float, out: Tensor) -> None:
    _rescale[(triton.cdiv(len(out), BLOCK),)](
        normalised, mean, variance, relative, lowest, out, len(out), normalised.stride(0), BLOCK=BLOCK
    )

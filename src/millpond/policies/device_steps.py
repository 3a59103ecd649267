"""Small parts of acting on a device, in one launch each: choices, normalised inputs, values in units of the rewards.

The definitions are in `millpond.policies.heads`, `normalizer` and `value_scale`. Nothing here has gradients.

N observations  A logits of all choices together  C choices  D numbers
"""

from __future__ import annotations

import torch
from torch import Tensor

from millpond.devices.kernels import device_kernel

TRITON = "millpond.fast.triton.steps"


@device_kernel(f"{TRITON}:draw_choice")
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
    """logits and mask [N, A], draws [N, C] from [0, 1): write column `choice` of action [N, C]; add to log_prob [N].

    The choice has `size` logits, from `first` on; without draws the most likely action is taken. The first choice sets
    log_prob.
    """
    some = slice(first, first + size)
    numbers = logits[:, some].to(log_prob.dtype)
    if mask is not None:
        numbers = numbers.masked_fill(~mask[:, some], torch.finfo(numbers.dtype).min)
    log_probs = numbers.log_softmax(-1)
    if draws is None:
        taken = log_probs.argmax(-1, keepdim=True)
    else:
        cumulative = log_probs.to(draws.dtype).exp().cumsum(-1)
        below = cumulative <= draws[:, choice, None] * cumulative[:, -1:]
        taken = below.sum(-1, keepdim=True).clamp(max=size - 1)
    action[:, choice] = taken[:, 0]
    chosen = log_probs.gather(-1, taken)[:, 0]
    log_prob.copy_(chosen if choice == 0 else log_prob + chosen)


@device_kernel(f"{TRITON}:normalise")
def normalise_into(numbers: Tensor, mean: Tensor, variance: Tensor, floor: float, clip: float, out: Tensor) -> None:
    """numbers [N, D], mean and variance [D]: write (numbers - mean) / deviation [N, D], clipped."""
    deviation = variance.sqrt().clamp(min=floor).to(out.dtype)
    out.copy_(((numbers - mean.to(out.dtype)) / deviation).clamp(-clip, clip))


@device_kernel(f"{TRITON}:rescale")
def rescale_into(
    normalised: Tensor, mean: Tensor, variance: Tensor, relative: float, lowest: float, out: Tensor
) -> None:
    """normalised [N], mean and variance []: write mean + deviation * normalised [N], the deviation at least as given."""
    deviation = torch.maximum(variance.sqrt(), (mean.abs() * relative).clamp(min=lowest))
    out.copy_(mean.to(out.dtype) + deviation.to(out.dtype) * normalised)


@torch.library.custom_op("millpond::draw_choices", mutates_args=())
def draw_choices(logits: Tensor, mask: Tensor | None, draws: Tensor | None, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Return action [N, C] and log_prob [N]."""
    action = torch.empty(len(logits), len(sizes), dtype=torch.int32, device=logits.device)
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    log_prob = torch.empty(len(logits), dtype=wide, device=logits.device)
    first = 0
    for choice, size in enumerate(sizes):
        draw_choice(logits, mask, draws, choice, first, size, action, log_prob)
        first += size
    return action, log_prob


@draw_choices.register_fake
def _(logits: Tensor, mask: Tensor | None, draws: Tensor | None, sizes: list[int]) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    new = logits.new_empty
    return new(len(logits), len(sizes), dtype=torch.int32), new(len(logits), dtype=wide)


@torch.library.custom_op("millpond::normalise", mutates_args=())
def normalised(numbers: Tensor, mean: Tensor, variance: Tensor, floor: float, clip: float) -> Tensor:
    """Return numbers [N, D], normalised."""
    out = torch.empty_like(numbers, memory_format=torch.contiguous_format)
    normalise_into(numbers.contiguous(), mean, variance, floor, clip, out)
    return out


@normalised.register_fake
def _(numbers: Tensor, mean: Tensor, variance: Tensor, floor: float, clip: float) -> Tensor:
    return torch.empty_like(numbers, memory_format=torch.contiguous_format)


@torch.library.custom_op("millpond::rescale", mutates_args=())
def rescaled(normalised: Tensor, mean: Tensor, variance: Tensor, relative: float, lowest: float) -> Tensor:
    """Return values [N] in units of the rewards."""
    out = normalised.new_empty(len(normalised))
    rescale_into(normalised, mean, variance, relative, lowest, out)
    return out


@rescaled.register_fake
def _(normalised: Tensor, mean: Tensor, variance: Tensor, relative: float, lowest: float) -> Tensor:
    return normalised.new_empty(len(normalised))

"""Running mean and deviation of observations, part of the policy and saved with it. N observations  D numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from millpond.policies.device_steps import normalised

FLOOR = 0.01  # minimum deviation: a number that never changed must not explode when it first does
CLIP = 5.0

AllReduce = Callable[[Tensor], object]


class Normalizer(nn.Module):
    """(x - mean) / max(deviation, FLOOR), clipped to [-clip, clip].

    It changes only in `update`, which is called between iterations, so that rows unroll as they were collected.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, size: int, clip: float = CLIP) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))

    def forward(self, numbers: Tensor) -> Tensor:
        if numbers.device.type != "cpu":
            scaled: Tensor = normalised(numbers, self.mean, self.variance, FLOOR, self.clip)
            return scaled
        deviation = self.variance.sqrt().clamp(min=FLOOR).to(numbers.dtype)
        return ((numbers - self.mean.to(numbers.dtype)) / deviation).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, numbers: Tensor, all_reduce: AllReduce | None = None) -> None:
        """Add numbers [N, D] to the statistics, exactly as if all numbers so far were added at once.

        `all_reduce` sums a tensor over ranks in place, so that all ranks have the same statistics.
        """
        # Sums about the mean so far: additive over ranks, and exact if mean and deviation differ widely.
        away = numbers.to(self.mean.dtype) - self.mean.to(numbers.device)  # rows may be on another device
        sums = torch.cat((away.new_full((1,), len(away)), away.sum(0), away.square().sum(0))).to(self.mean.device)
        if all_reduce is not None:
            all_reduce(sums)
        new, first, second = sums[0], *sums[1:].chunk(2)
        total = self.count + new
        shift = first / total.clamp(min=1.0)
        before = self.variance * self.count
        variance = ((before + second) / total.clamp(min=1.0) - shift.square()).clamp(min=0.0)
        self.variance.copy_(torch.where(total > 0, variance, self.variance))  # without numbers nothing changes
        self.mean.add_(shift)
        self.count.copy_(total)

    @torch.no_grad()
    def set_moments(self, mean: Any, deviation: Any, count: int) -> None:
        """Set statistics that were computed elsewhere over `count` observations."""
        self.mean.copy_(torch.as_tensor(mean))
        self.variance.copy_(torch.as_tensor(deviation).square())
        self.count.fill_(count)

"""Running mean and deviation of returns, part of the policy and saved with it: PopArt (van Hasselt et al., 2016).

    value = mean + deviation * n

n is what the value's layer gives, and what its loss compares; values are in units of the rewards everywhere else.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from millpond.policies.device_steps import rescaled
from millpond.policies.normalizer import AllReduce

RATE = 0.03  # of the exponential mean, per update: it covers about the last 33 iterations
MIN_DEVIATION = 1e-8  # if all returns are 0
MIN_RELATIVE_DEVIATION = 1e-5  # of |mean|: float32 does not resolve much less


class ValueScale(nn.Module):
    """Normalised values n -> values in units of the rewards.

    It changes only in `update`, once per iteration. Whoever calls that rescales the layer that gives n.
    """

    weight: Tensor  # of all updates so far; that of the last is 1
    mean: Tensor
    variance: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("variance", torch.ones((), dtype=torch.float64))

    def deviation(self) -> Tensor:
        """Return the deviation [], never 0: at least a tiny share of the mean."""
        lowest = (self.mean.abs() * MIN_RELATIVE_DEVIATION).clamp(min=MIN_DEVIATION)
        return torch.maximum(self.variance.sqrt(), lowest)

    def forward(self, normalised: Tensor) -> Tensor:
        if normalised.device.type != "cpu" and not torch.is_grad_enabled() and normalised.dim() == 1:
            scaled: Tensor = rescaled(normalised, self.mean, self.variance, MIN_RELATIVE_DEVIATION, MIN_DEVIATION)
            return scaled
        return self.mean.to(normalised.dtype) + self.deviation().to(normalised.dtype) * normalised

    @torch.no_grad()
    def update(self, target: Tensor, alive: Tensor, all_reduce: AllReduce | None = None) -> None:
        """Move the statistics towards those of an iteration's targets at valid steps (both of one shape, any).

            weight <- 1 + (1 - RATE) weight         share = 1 / weight
            m <- m + share (mean - m)         v <- (1 - share) (v + share (mean - m)^2) + share variance

        This is the exponential mean of first and second moments without the bias of its start: the first update takes its
        targets' statistics, share 1. `all_reduce` sums a tensor over ranks in place, so that all have the same statistics.
        """
        # Sums about the mean so far: additive over ranks, and exact if mean and deviation differ widely.
        away = torch.where(alive, target.to(self.mean.dtype) - self.mean.to(target.device), 0.0)
        sums = torch.stack((alive.sum().to(away.dtype), away.sum(), away.square().sum())).to(self.mean.device)
        if all_reduce is not None:
            all_reduce(sums)
        count = sums[0].clamp(min=1)
        shift = sums[1] / count
        variance = (sums[2] / count - shift.square()).clamp(min=0.0)
        known = (sums[0] > 0).to(sums.dtype)  # without any valid step nothing changes
        weight = 1 + (1 - RATE) * self.weight
        share = known / weight
        self.weight.copy_(torch.where(known > 0, weight, self.weight))
        self.variance.copy_((1 - share) * (self.variance + share * shift.square()) + share * variance)
        self.mean.add_(share * shift)

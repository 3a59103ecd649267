"""The losses of PPO: pure functions of tensors, every mean over the steps that count.

S steps (any shape)   `weight` [S]: 0 where the agent was not alive, else the row's importance weight
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.kernels.ppo_loss_compiled import ENTROPY, POLICY, VALUE, losses_and_gradients

AllReduce = Callable[[Tensor], object]


@dataclass(frozen=True)
class PPOLoss:
    """The loss to minimise, and what it is made of; all are scalars on the device."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    entropy: Tensor,
    weight: Tensor,
    *,
    clip_coef: float,
    vf_clip_coef: float | None,
    vf_coef: float,
    ent_coef: float,
    denominator: Tensor | float | None = None,
) -> PPOLoss:
    """Clipped policy loss, clipped value loss with the usual 0.5, entropy as a bonus (Schulman et al., 2017).

        L = policy + vf_coef * value - ent_coef * entropy

    A minibatch in parts passes the whole minibatch's number of living steps as `denominator`, so that the parts'
    gradients add up to exactly the gradient of the whole.
    """
    given = (log_prob, old_log_prob, advantage, value, old_value, target, entropy, weight)
    fused = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in given)
    if fused and not torch.compiler.is_compiling():
        coefficients = clip_coef, vf_clip_coef, vf_coef, ent_coef
        total, means = _Fused.apply(*given, denominator, coefficients)  # type: ignore[no-untyped-call]
        return PPOLoss(total, *means.unbind())
    counted = weight > 0
    steps = counted.sum() if denominator is None else denominator
    log_ratio = torch.where(counted, log_prob - old_log_prob, 0.0)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy = -(torch.minimum(ratio * advantage, clipped * advantage) * weight).sum() / steps
    value_loss = (_value_error(value, old_value, target, vf_clip_coef) * weight).sum() / steps
    mean_entropy = torch.where(counted, entropy, 0.0).sum() / steps
    with torch.no_grad():
        # E[(r - 1) - log r], the low-variance estimate that is never negative (Schulman, 2020)
        approx_kl = torch.where(counted, ratio - 1 - log_ratio, 0.0).sum() / steps
        clip_fraction = (((ratio - 1).abs() > clip_coef) & counted).sum() / steps
    total = policy + vf_coef * value_loss - ent_coef * mean_entropy
    return PPOLoss(total, policy.detach(), value_loss.detach(), mean_entropy.detach(), approx_kl, clip_fraction)


class _Fused(torch.autograd.Function):
    """The compiled loop as one step of torch's graph: in plain torch it is some forty, forth and back."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        *tensors, denominator, (clip, vf_clip, vf_coef, ent_coef) = given
        weight = tensors[-1]
        steps = float((weight > 0).sum() if denominator is None else denominator)
        gradients = [torch.empty(weight.shape) for _ in range(3)]
        arrays: list[Any] = [tensor.detach().reshape(-1).numpy() for tensor in tensors]
        found = (gradient.view(-1).numpy() for gradient in gradients)
        coefficients = steps, clip, inf if vf_clip is None else vf_clip, vf_coef, ent_coef
        means = losses_and_gradients(*arrays, *coefficients, *found)  # type: ignore[call-arg]
        ctx.gradients = gradients
        parts = torch.from_numpy(means.astype(np.float32))
        total = torch.tensor(means[POLICY] + vf_coef * means[VALUE] - ent_coef * means[ENTROPY], dtype=torch.float32)
        ctx.mark_non_differentiable(parts)
        return total, parts

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        d_log_prob, d_value, d_entropy = (gradient * d_total for gradient in ctx.gradients)
        return d_log_prob, None, None, d_value, None, None, d_entropy, None, None, None


def _value_error(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    squared = (value - target).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        squared = torch.maximum(squared, (near - target).square())
    return 0.5 * squared


def normalise(advantage: Tensor, alive: Tensor, all_reduce: AllReduce | None = None) -> Tensor:
    """To mean 0 and standard deviation 1 over the steps that count, of all ranks; the others stay 0."""
    mean, variance = mean_and_variance(advantage, alive, all_reduce)
    return torch.where(alive, (advantage - mean) / (variance.sqrt() + 1e-8), 0.0)


def explained_variance(value: Tensor, target: Tensor, alive: Tensor, all_reduce: AllReduce | None = None) -> Tensor:
    """1 - Var(target - value) / Var(target): 1 is perfect, 0 is as good as the mean, below that worse."""
    _, variance = mean_and_variance(target, alive, all_reduce)
    _, unexplained = mean_and_variance(target - value, alive, all_reduce)
    return torch.where(variance > 0, 1 - unexplained / variance.clamp(min=1e-12), 0.0)


def mean_and_variance(values: Tensor, alive: Tensor, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor]:
    """Over the steps that count. `all_reduce` adds a tensor up over ranks in place: sums and counts are what ranks share."""
    sums = torch.stack((alive.sum().double(), torch.where(alive, values, 0.0).sum().double()))
    if all_reduce is not None:
        all_reduce(sums)
    count = sums[0].clamp(min=1)
    mean = (sums[1] / count).to(values.dtype)
    squares = torch.where(alive, (values - mean).square(), 0.0).sum().double()
    if all_reduce is not None:
        all_reduce(squares)
    return mean, (squares / count).to(values.dtype)

"""Losses of a reward network. Pure functions: tensors in, one loss out.

    # B episodes per batch   K sampled steps per episode   T steps of an episode

`valid` [B, K] is false in empty places, where an episode has fewer than K steps; None: all places are filled.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

TEMPERATURE = 0.1  # of preferences: with a lead of this much progress a step is preferred with probability 0.73


def rrd_loss(reward: Tensor, mean_return: Tensor, valid: Tensor | None = None) -> Tensor:
    """Randomized return decomposition (Ren et al., 2022): the mean of K steps estimates the mean of all T.

        L = mean_B (mean_K r - R / T)^2

    reward [B, K], mean_return [B] = R / T. Its expectation is the loss on whole episodes plus the variance of the mean of
    K steps, so it also pulls an episode's rewards together; `lrd_loss` does not.
    """
    mean, _, _ = _moments(reward, valid)
    return (mean - mean_return).square().mean()


def lrd_loss(reward: Tensor, mean_return: Tensor, length: Tensor, valid: Tensor | None = None) -> Tensor:
    """Unbiased return decomposition: `rrd_loss` minus the estimated variance of the mean of K steps.

        L = mean_B [ (mean_K r - R / T)^2 - Var_K(r) / K * (1 - K / T) ]

    Var_K has the denominator K - 1. Steps are sampled without replacement, so (1 - K / T) is the finite population
    correction, and the expectation over all samples is exactly (mean_T r - R / T)^2. A single loss may be negative.
    length [B] is T.
    """
    mean, variance, count = _moments(reward, valid)
    return ((mean - mean_return).square() - variance * (1 / count - 1 / length)).mean()


def decomposition_loss(reward: Tensor, mean_return: Tensor) -> Tensor:
    """The loss on whole episodes that both estimate, reward [B, T]. L = mean_B (mean_T r - R / T)^2"""
    return (reward.mean(1) - mean_return).square().mean()


def progress_loss(progress: Tensor, target: Tensor, end: Tensor, valid: Tensor | None = None) -> Tensor:
    """Progress by regression, and by preferences of Bradley and Terry (1952): P(a beats b) = sigmoid((p_a - p_b) / tau).

        regression    (p - t / (T - 1))^2
        order         of two steps of an episode the later beats the earlier: the segment between them beats itself reversed
        truncation    the end of an episode beats any step of another one, weighted by how early that step is

    progress [B, K] of the sampled steps, target [B, K] their true fraction, end [B] the progress at the last step.
    """
    weight = torch.ones_like(progress) if valid is None else valid.to(progress.dtype)
    regression = (progress - target).square()
    half = progress.shape[1] // 2
    first, second = slice(0, half), slice(half, 2 * half)
    order = _preference((progress[:, first] - progress[:, second]) * torch.sign(target[:, first] - target[:, second]))
    truncation = _preference(end.roll(1)[:, None] - progress) * (1 - target)
    pairs = weight[:, first] * weight[:, second]
    return _weighted_mean(regression, weight) + TEMPERATURE * (
        _weighted_mean(order, pairs) + _weighted_mean(truncation, weight)
    )


def other_task_loss(progress: Tensor, other: Tensor) -> Tensor:
    """Steps of another task have no progress in this one, and lose against this task's steps. Both [B, K]."""
    return (
        other.square().mean() + TEMPERATURE * _preference(progress.flatten()[: other.numel()] - other.flatten()).mean()
    )


def success_loss(logit: Tensor, success: Tensor) -> Tensor:
    """Binary cross-entropy with equal weight of both classes: logit [N], success [N] is 1 where the task is solved."""
    weight = torch.where(success > 0.5, 0.5 / success.sum().clamp(min=1), 0.5 / (1 - success).sum().clamp(min=1))
    return (functional.binary_cross_entropy_with_logits(logit, success, reduction="none") * weight).sum()


def _preference(lead: Tensor) -> Tensor:
    """-log sigmoid(lead / tau)"""
    return functional.softplus(-lead / TEMPERATURE)


def _weighted_mean(value: Tensor, weight: Tensor) -> Tensor:
    return (value * weight).sum() / weight.sum().clamp(min=1)


def _moments(reward: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor | int]:
    """Mean and variance over the sampled steps [B], and their number. A single step has variance 0."""
    if valid is None:
        count = reward.shape[1]
        variance, mean = torch.var_mean(reward, 1, correction=min(1, count - 1))
        return mean, variance, count
    counts = valid.sum(1).to(reward.dtype)
    mean = (reward * valid).sum(1) / counts
    squares = (reward - mean[:, None]).square() * valid
    return mean, squares.sum(1) / (counts - 1).clamp(min=1), counts

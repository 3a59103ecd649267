"""What a reward network is trained on. Pure functions: tensors in, one loss out.

    # B episodes in a batch   K steps drawn of each   T steps an episode has

`drawn` [B, K] is false where an episode has fewer than K steps and the place is empty; None: all places are filled.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

TEMPERATURE = 0.1  # of preferences: a lead of this much progress is believed with 73 %


def rrd_loss(reward: Tensor, mean_return: Tensor, drawn: Tensor | None = None) -> Tensor:
    """Randomized return decomposition (Ren et al., 2022): the mean of K steps stands for the mean of all T.

        L = mean_B (mean_K r - R / T)^2

    reward [B, K], mean_return [B] = R / T. Its expectation is the loss on whole episodes plus the variance of the mean of
    K steps, so it also pulls an episode's rewards together; `lrd_loss` does not.
    """
    mean, _, _ = _moments(reward, drawn)
    return (mean - mean_return).square().mean()


def lrd_loss(reward: Tensor, mean_return: Tensor, length: Tensor, drawn: Tensor | None = None) -> Tensor:
    """The same without its bias: the variance of the mean is estimated from the K steps and taken off.

        L = mean_B [ (mean_K r - R / T)^2 - Var_K(r) / K * (1 - K / T) ]

    Var_K has the denominator K - 1. Steps are drawn without replacement, so (1 - K / T) is the finite population's
    correction, and the expectation over all draws is exactly (mean_T r - R / T)^2. A single loss may be negative.
    length [B] is T.
    """
    mean, variance, count = _moments(reward, drawn)
    return ((mean - mean_return).square() - variance * (1 / count - 1 / length)).mean()


def decomposition_loss(reward: Tensor, mean_return: Tensor) -> Tensor:
    """What both stand for: the loss on whole episodes, reward [B, T]. L = mean_B (mean_T r - R / T)^2"""
    return (reward.mean(1) - mean_return).square().mean()


def progress_loss(progress: Tensor, target: Tensor, end: Tensor, drawn: Tensor | None = None) -> Tensor:
    """Progress by regression, and by preferences of Bradley and Terry (1952): P(a beats b) = sigmoid((p_a - p_b) / tau).

        regression    (p - t / (T - 1))^2
        order         of two steps of an episode the later beats the earlier: the segment between them beats itself reversed
        truncation    the end of an episode beats the place where another one was cut, the more so the earlier the cut

    progress [B, K] of the drawn steps, target [B, K] their true fraction, end [B] the progress at the last step.
    """
    place = torch.ones_like(progress) if drawn is None else drawn.to(progress.dtype)
    regression = (progress - target).square()
    half = progress.shape[1] // 2
    first, second = slice(0, half), slice(half, 2 * half)
    order = _preference((progress[:, first] - progress[:, second]) * torch.sign(target[:, first] - target[:, second]))
    cut = _preference(end.roll(1)[:, None] - progress) * (1 - target)
    pairs = place[:, first] * place[:, second]
    return _mean(regression, place) + TEMPERATURE * (_mean(order, pairs) + _mean(cut, place))


def other_task_loss(progress: Tensor, other: Tensor) -> Tensor:
    """Steps of another task have made no progress in this one, and lose against this one's. Both [B, K]."""
    return (
        other.square().mean() + TEMPERATURE * _preference(progress.flatten()[: other.numel()] - other.flatten()).mean()
    )


def success_loss(logit: Tensor, success: Tensor) -> Tensor:
    """A classifier of steps: logit [N], success [N] is 1 where a task is done. Both classes weigh the same."""
    weight = torch.where(success > 0.5, 0.5 / success.sum().clamp(min=1), 0.5 / (1 - success).sum().clamp(min=1))
    return (functional.binary_cross_entropy_with_logits(logit, success, reduction="none") * weight).sum()


def _preference(lead: Tensor) -> Tensor:
    """-log sigmoid(lead / tau)"""
    return functional.softplus(-lead / TEMPERATURE)


def _mean(value: Tensor, weight: Tensor) -> Tensor:
    return (value * weight).sum() / weight.sum().clamp(min=1)


def _moments(reward: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor, Tensor | int]:
    """Mean and variance over the drawn steps [B], and how many there are. A single step has the variance 0."""
    if drawn is None:
        count = reward.shape[1]
        variance, mean = torch.var_mean(reward, 1, correction=min(1, count - 1))
        return mean, variance, count
    counts = drawn.sum(1).to(reward.dtype)
    mean = (reward * drawn).sum(1) / counts
    away = (reward - mean[:, None]).square() * drawn
    return mean, away.sum(1) / (counts - 1).clamp(min=1), counts

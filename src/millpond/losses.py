"""The losses of PPO: pure functions of tensors, every mean over valid steps.

S steps (any shape)   `weight` [S]: 0 where the agent was not alive, else the row's importance weight
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from millpond.devices import precise_dtype

AllReduce = Callable[[Tensor], object]
METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


@dataclass(frozen=True)
class Scale:
    """Mean and deviation by which numbers are normalised: floats, or scalars on the device."""

    mean: Tensor | float
    deviation: Tensor | float

    def normalise(self, numbers: Tensor) -> Tensor:
        """Return (numbers - mean) / deviation."""
        return (numbers - self.mean) / self.deviation


@dataclass(frozen=True)
class GTD:
    """A critic by gradient TD(lambda): coefficients of its auxiliary head's loss, and of that head's weights in it.

    `residual` returns the lambda-weighted temporal differences of values [b, T, a] of the rows [b], with gradients.
    """

    aux_coef: float
    aux_decay: float
    residual: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of the loss and of clipping at this point of the run.

    Advantages, and values with their targets, are normalised by the scales before the loss; None: they are left unchanged.
    Importance weights of rows multiply the policy loss and, if `weights_value`, the value loss.
    """

    clip_coef: float
    vf_clip_coef: float | None
    vf_coef: float
    ent_coef: float
    max_grad_norm: float
    advantage_scale: Scale | None = None
    value_scale: Scale | None = None
    weights_value: bool = True
    log_ratio_clamp: float | None = None
    gtd: GTD | None = None  # None: the squared error to the targets
    on_device: Tensor | None = None  # the numbers among them, of `trainers.ppo.device_loss.NUMBERS`; None on the CPU


@dataclass(frozen=True)
class PPOLoss:
    """The loss to minimise, and its components; all are scalars on the device."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor

    def metrics(self) -> dict[str, Tensor]:
        """Return the components by the names under which they are recorded."""
        values = self.policy, self.value, self.entropy, self.approx_kl, self.clip_fraction
        return dict(zip(METRICS, values, strict=True))


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
    weights_value: bool = True,
    log_ratio_clamp: float | None = None,
    denominator: Tensor | float | None = None,
) -> PPOLoss:
    """Clipped policy loss, clipped value loss with the usual 0.5, entropy as a bonus (Schulman et al., 2017).

        L = policy + vf_coef * value - ent_coef * entropy

    The weights multiply the policy loss and, if `weights_value`, the value loss. `log_ratio_clamp` bounds the logarithm of the
    probability ratio; a step beyond it has no gradient of its policy loss. A micro-batch passes the number of valid
    steps of the whole minibatch as `denominator`, so that the gradients of all micro-batches add up to exactly that of the
    minibatch.
    """
    valid = weight > 0
    steps = valid.sum() if denominator is None else denominator
    log_ratio = torch.where(valid, log_prob - old_log_prob, 0.0)
    if log_ratio_clamp is not None:
        log_ratio = log_ratio.clamp(-log_ratio_clamp, log_ratio_clamp)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy = -(torch.minimum(ratio * advantage, clipped * advantage) * weight).sum() / steps
    value_weight = weight if weights_value else valid.to(weight.dtype)
    value_loss = (_value_error(value, old_value, target, vf_clip_coef) * value_weight).sum() / steps
    mean_entropy = torch.where(valid, entropy, 0.0).sum() / steps
    with torch.no_grad():
        # E[(r - 1) - log r]: a low-variance estimate that is never negative (Schulman, 2020)
        approx_kl = torch.where(valid, ratio - 1 - log_ratio, 0.0).sum() / steps
        clip_fraction = (((ratio - 1).abs() > clip_coef) & valid).sum() / steps
    total = policy + vf_coef * value_loss - ent_coef * mean_entropy
    return PPOLoss(total, policy.detach(), value_loss.detach(), mean_entropy.detach(), approx_kl, clip_fraction)


def _value_error(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    squared = (value - target).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        squared = torch.maximum(squared, (near - target).square())
    return 0.5 * squared


def gtd_lambda_loss(delta: Tensor, value: Tensor, correction: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient TD(lambda) with an auxiliary head (Sutton et al., 2009; with a regularised correction, Ghiassian et al., 2020).

        critic = sum w_t (h_t D_t - (D_t - h_t) V_t)      gradients: of D_t in the first product, of V_t in the second
        aux    = sum w_t (D_t - h_t)^2 / 2                gradient: of h_t

    `delta` D_t is the lambda-weighted sum of temporal differences, with gradients through all values in it; `correction` h_t
    is the auxiliary head's estimate of it. All are of one shape; the weights sum to 1 over a minibatch.
    """
    fixed, estimate = delta.detach(), correction.detach()
    critic = (weight * (estimate * delta - (fixed - estimate) * value)).sum()
    return critic, (weight * (fixed - correction).square()).sum() / 2


def normalise(advantage: Tensor, alive: Tensor, all_reduce: AllReduce | None = None) -> Tensor:
    """Scale to mean 0 and standard deviation 1 over the valid steps of all ranks; other steps are 0."""
    return torch.where(alive, scale_of(advantage, alive, all_reduce).normalise(advantage), 0.0)


def scale_of(advantage: Tensor, alive: Tensor, all_reduce: AllReduce | None = None) -> Scale:
    """Return mean and deviation over the valid steps of all ranks."""
    mean, variance = mean_and_variance(advantage, alive, all_reduce)
    return Scale(mean, variance.sqrt() + 1e-8)


def explained_variance(value: Tensor, target: Tensor, alive: Tensor, all_reduce: AllReduce | None = None) -> Tensor:
    """Return 1 - Var(target - value) / Var(target): 1 is perfect, 0 is as good as the mean, below that worse."""
    _, variance = mean_and_variance(target, alive, all_reduce)
    _, unexplained = mean_and_variance(target - value, alive, all_reduce)
    return torch.where(variance > 0, 1 - unexplained / variance.clamp(min=1e-12), 0.0)


def mean_and_variance(values: Tensor, alive: Tensor, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor]:
    """Return both over the valid steps. `all_reduce` sums a tensor over ranks in place: one message with three sums."""
    wide = precise_dtype(values.device)
    if all_reduce is not None:
        valid = torch.where(alive, values, 0.0).to(wide)
        moments = torch.stack((alive.sum().to(wide), valid.sum(), valid.square().sum()))
        all_reduce(moments)
        total = moments[0].clamp(min=1)
        centre = moments[1] / total
        spread = (moments[2] / total - centre.square()).clamp(min=0.0)
        return centre.to(values.dtype), spread.to(values.dtype)
    sums = torch.stack((alive.sum().to(wide), torch.where(alive, values, 0.0).sum().to(wide)))
    count = sums[0].clamp(min=1)
    mean = (sums[1] / count).to(values.dtype)
    squares = torch.where(alive, (values - mean).square(), 0.0).sum().to(wide)
    return mean, (squares / count).to(values.dtype)

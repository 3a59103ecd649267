"""PPO's losses and their gradients on the CPU in float32, in one compiled pass. The plain version: `millpond.losses.ppo_loss`.

S steps
"""

from __future__ import annotations

from math import exp, inf
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.compiled import compiled
from millpond.losses import METRICS, Coefficients, Scale

Floats = npt.NDArray[np.float32]
LossArguments = tuple[float, float, float, float, float, float, float, float, float, float, float]
POLICY, VALUE, ENTROPY, KL, CLIPPED = range(5)


@compiled
def ppo_losses(
    log_prob: Floats,
    old_log_prob: Floats,
    advantage: Floats,
    value: Floats,
    old_value: Floats,
    target: Floats,
    entropy: Floats,
    weight: Floats,
    steps: float,
    clip_coef: float,
    vf_clip_coef: float,
    vf_coef: float,
    ent_coef: float,
    weights_value: float,
    log_ratio_clamp: float,
    advantage_mean: float,
    advantage_factor: float,
    value_mean: float,
    value_factor: float,
    d_log_prob: Floats,
    d_value: Floats,
    d_entropy: Floats,
) -> npt.NDArray[np.float64]:
    """Return means over `steps` of policy loss, value loss, entropy, approximate KL and clipped steps; arrays are [S].

    Advantages, old values and targets are normalised here, as (x - mean) * factor; `value` is normalised already, as the
    network gives it. Gradients are those of policy + vf_coef * value - ent_coef * entropy. An infinite `vf_clip_coef` does
    not clip, and beyond +- `log_ratio_clamp` a step has no gradient of its policy loss. Weights multiply the value loss, too,
    unless `weights_value` is 0. Comparisons are in a form that preserves a NaN.
    """
    sums = np.zeros(5)
    for s in range(len(weight)):
        d_log_prob[s] = d_value[s] = d_entropy[s] = 0.0
        if not weight[s] > 0.0:
            continue
        share = weight[s] / steps
        value_share = share if weights_value > 0.0 else 1.0 / steps
        log_ratio, slope = np.float64(log_prob[s] - old_log_prob[s]), 1.0
        if log_ratio > log_ratio_clamp or log_ratio < -log_ratio_clamp:
            log_ratio, slope = np.float64(log_ratio_clamp if log_ratio > 0.0 else -log_ratio_clamp), 0.0
        ratio = exp(log_ratio)
        advantage_s = np.float32((advantage[s] - advantage_mean) * advantage_factor)
        bounded = 1.0 - clip_coef if ratio < 1.0 - clip_coef else 1.0 + clip_coef if ratio > 1.0 + clip_coef else ratio
        if bounded * advantage_s < ratio * advantage_s:
            sums[POLICY] -= share * bounded * advantage_s
        else:
            sums[POLICY] -= share * ratio * advantage_s
            d_log_prob[s] = -share * ratio * advantage_s * slope
        target_s = np.float32((target[s] - value_mean) * value_factor)
        old_value_s = np.float32((old_value[s] - value_mean) * value_factor)
        error, moved = np.float64(value[s] - target_s), np.float64(value[s] - old_value_s)
        if moved > vf_clip_coef or moved < -vf_clip_coef:
            near = old_value_s + (vf_clip_coef if moved > 0 else -vf_clip_coef) - target_s
            if near * near > error * error:
                sums[VALUE] += value_share * 0.5 * near * near
            else:
                sums[VALUE] += value_share * 0.5 * error * error
                d_value[s] = vf_coef * value_share * error
        else:
            sums[VALUE] += value_share * 0.5 * error * error
            d_value[s] = vf_coef * value_share * error
        sums[ENTROPY] += entropy[s] / steps
        d_entropy[s] = -ent_coef / steps
        sums[KL] += (ratio - 1.0 - log_ratio) / steps
        if abs(ratio - 1.0) > clip_coef:
            sums[CLIPPED] += 1.0 / steps
    return sums


def loss_arguments(coefficients: Coefficients, valid_steps: float) -> LossArguments:
    """Return the arguments `steps` to `value_factor` of `ppo_losses`."""
    limit = inf if coefficients.vf_clip_coef is None else coefficients.vf_clip_coef
    weights = valid_steps, coefficients.clip_coef, limit, coefficients.vf_coef, coefficients.ent_coef
    weights_value = 1.0 if coefficients.weights_value else 0.0
    return (
        *weights,
        weights_value,
        inf if coefficients.log_ratio_clamp is None else coefficients.log_ratio_clamp,
        *_mean_and_factor(coefficients.advantage_scale),
        *_mean_and_factor(coefficients.value_scale),
    )


def _mean_and_factor(scale: Scale | None) -> tuple[float, float]:
    return (0.0, 1.0) if scale is None else (float(scale.mean), 1.0 / float(scale.deviation))


def as_metrics(means: npt.NDArray[np.float64]) -> dict[str, Tensor]:
    """Return the means of `ppo_losses` by the names under which they are recorded."""
    return dict(zip(METRICS, torch.from_numpy(means.astype(np.float32)).unbind(), strict=True))


class PPOLosses(torch.autograd.Function):
    """`ppo_losses` as one node of torch's graph, which is some forty in plain torch.

    Seven float32 tensors and the weight, as for `ppo_losses`, and the loss arguments -> total, means [5].
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        *tensors, arguments = inputs
        ctx.gradients = [torch.empty(tensors[-1].shape) for _ in range(3)]
        arrays: list[Any] = [tensor.detach().reshape(-1).numpy() for tensor in tensors]
        out = (gradient.view(-1).numpy() for gradient in ctx.gradients)
        means = ppo_losses(*arrays, *arguments, *out)
        vf_coef, ent_coef = arguments[3:5]
        total = torch.tensor(means[POLICY] + vf_coef * means[VALUE] - ent_coef * means[ENTROPY], dtype=torch.float32)
        metrics = torch.from_numpy(means)
        ctx.mark_non_differentiable(metrics)
        return total, metrics

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        d_log_prob, d_value, d_entropy = (gradient * d_total for gradient in ctx.gradients)
        return d_log_prob, None, None, d_value, None, None, d_entropy, None, None

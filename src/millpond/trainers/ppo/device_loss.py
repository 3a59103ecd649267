"""The loss of PPO on a device in few launches: one kernel gives all terms and all gradients, one sum adds the terms up.

The definition is `millpond.losses.ppo_loss`. Coefficients are on the device, so that a captured graph follows schedules.

S steps (any shape)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.devices.kernels import device_kernel
from millpond.devices.staging import BlockField, Uploads
from millpond.losses import METRICS, Coefficients, PPOLoss
from millpond.rollout.sampling import Draw

NUMBERS = ("clip_coef", "vf_clip_coef", "vf_coef", "ent_coef", "log_ratio_clamp", "max_grad_norm")


class DrawUploads:
    """Rows of a minibatch, their importance weights and the coefficients, sent to a device in one copy."""

    def __init__(self, rows: int, device: torch.device) -> None:
        fields = {"rows": BlockField((rows,), np.int64), "weight": BlockField((rows,), np.float32)}
        self.staging = Uploads({**fields, "numbers": BlockField((len(NUMBERS),), np.float32)}, device)

    def send(self, draw: Draw, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, weights and numbers on the device, always in the same memory. A bound that is None is infinite."""
        self.staging.open()
        arrays, tensors = self.staging.arrays, self.staging.tensors
        arrays["rows"][:], arrays["weight"][:] = draw.rows, draw.weight
        values = (getattr(coefficients, name) for name in NUMBERS)
        arrays["numbers"][:] = [np.inf if value is None else value for value in values]
        self.staging.send()
        return tensors["rows"], tensors["weight"], tensors["numbers"]

    def release(self) -> None:
        """Mark that everything which reads them is queued."""
        self.staging.release()


@device_kernel("millpond.fast.triton.losses:ppo_terms")
def ppo_terms(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    entropy: Tensor,
    weight: Tensor,
    numbers: Tensor,
    steps: Tensor,
    weights_value: bool,
    terms: Tensor,
    grads: Tensor,
) -> None:
    """All [S]; numbers of `NUMBERS`, steps []: write the terms of `METRICS` [5, S], divided by `steps`, and gradients [3, S].

    Gradients of the loss are those of log_prob, value and entropy.
    """
    clip, vf_clip, vf_coef, ent_coef, clamp, _ = numbers.unbind()
    valid = weight > 0
    log_ratio = torch.where(valid, log_prob - old_log_prob, 0.0)
    within = log_ratio.abs() <= clamp
    log_ratio = torch.minimum(torch.maximum(log_ratio, -clamp), clamp)
    ratio = log_ratio.exp()
    clipped = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
    gain, clipped_gain = ratio * advantage, clipped * advantage
    value_weight = weight if weights_value else valid.to(weight.dtype)
    change = value - old_value
    near = old_value + torch.minimum(torch.maximum(change, -vf_clip), vf_clip)
    error = torch.where(vf_clip.isinf(), value, near) - target
    worse = error.square() > (value - target).square()
    terms[0] = -torch.minimum(gain, clipped_gain) * weight / steps
    terms[1] = 0.5 * torch.maximum((value - target).square(), error.square()) * value_weight / steps
    terms[2] = torch.where(valid, entropy, 0.0) / steps
    terms[3] = torch.where(valid, ratio - 1 - log_ratio, 0.0) / steps
    terms[4] = (((ratio - 1).abs() > clip) & valid).to(terms.dtype) / steps
    grads[0] = torch.where(valid & within & (gain <= clipped_gain), -gain * weight / steps, 0.0)
    d_value = torch.where(worse, error * (change.abs() <= vf_clip), value - target)
    grads[1] = vf_coef * d_value * value_weight / steps
    grads[2] = torch.where(valid, -ent_coef / steps, 0.0)


@torch.library.custom_op("millpond::device_ppo_loss", mutates_args=())
def loss_and_gradients(
    log_prob: Tensor,
    value: Tensor,
    entropy: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    old_value: Tensor,
    target: Tensor,
    weight: Tensor,
    numbers: Tensor,
    steps: Tensor,
    weights_value: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss [], the terms [5] and the gradients [3, S]."""
    some = log_prob, old_log_prob, advantage, value, old_value, target, entropy, weight
    flat = [tensor.contiguous().flatten() for tensor in some]
    terms, grads = log_prob.new_empty(5, log_prob.numel()), log_prob.new_empty(3, log_prob.numel())
    ppo_terms(*flat, numbers, steps, weights_value, terms, grads)
    sums = terms.sum(1)
    total = torch.addcmul(torch.addcmul(sums[0], sums[1], numbers[2]), sums[2], numbers[3], value=-1)
    return total, sums, grads


@loss_and_gradients.register_fake
def _(log_prob: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    new = log_prob.new_empty
    return new(()), new(5), new(3, log_prob.numel())


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.shape = inputs[0].shape
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[2])


def _backward(ctx: Any, d_total: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
    if d_total is None:
        return (None,) * 11
    (grads,) = ctx.saved_tensors
    return *(grads * d_total).view(3, *ctx.shape).unbind(), *(None,) * 8


loss_and_gradients.register_autograd(_backward, setup_context=_save)


def ppo_loss_on_device(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    entropy: Tensor,
    weight: Tensor,
    numbers: Tensor,
    steps: Tensor,
    *,
    weights_value: bool,
) -> PPOLoss:
    """Compute `millpond.losses.ppo_loss` for tensors of one shape; `numbers` are those of `NUMBERS`."""
    total, sums, _ = loss_and_gradients(
        log_prob, value, entropy, old_log_prob, advantage, old_value, target, weight, numbers, steps, weights_value
    )
    terms = sums.detach().unbind()
    assert len(terms) == len(METRICS)
    return PPOLoss(total, *terms)

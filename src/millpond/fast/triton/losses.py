"""The terms of PPO's loss and their gradients; the definition is in `millpond.trainers.ppo.device_loss`. S steps"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _ppo_terms(
    log_prob, old_log_prob, advantage, value, old_value, target, entropy, weight, numbers, steps, terms, grads, count,
    WEIGHTS_VALUE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = at < count
    clip, vf_clip, vf_coef = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    ent_coef, clamp, total = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(steps).to(terms.dtype.element_ty)
    w = tl.load(weight + at, mask=used, other=0.0)
    valid = w > 0
    difference = tl.load(log_prob + at, mask=used, other=0.0) - tl.load(old_log_prob + at, mask=used, other=0.0)
    log_ratio = tl.where(valid, difference, 0.0)
    within = tl.abs(log_ratio) <= clamp
    log_ratio = tl.minimum(tl.maximum(log_ratio, -clamp), clamp)
    ratio = tl.exp(log_ratio)
    a = tl.load(advantage + at, mask=used, other=0.0)
    gain, clipped_gain = ratio * a, tl.minimum(tl.maximum(ratio, 1.0 - clip), 1.0 + clip) * a
    v, old = tl.load(value + at, mask=used, other=0.0), tl.load(old_value + at, mask=used, other=0.0)
    goal = tl.load(target + at, mask=used, other=0.0)
    value_weight = w
    if not WEIGHTS_VALUE:
        value_weight = tl.where(valid, 1.0, 0.0)
    near = old + tl.minimum(tl.maximum(v - old, -vf_clip), vf_clip)
    error = tl.where(vf_clip == float("inf"), v, near) - goal
    squared, near_squared = (v - goal) * (v - goal), error * error
    e = tl.load(entropy + at, mask=used, other=0.0)
    tl.store(terms + at, -tl.minimum(gain, clipped_gain) * w / total, mask=used)
    tl.store(terms + count + at, 0.5 * tl.maximum(squared, near_squared) * value_weight / total, mask=used)
    tl.store(terms + 2 * count + at, tl.where(valid, e, 0.0) / total, mask=used)
    tl.store(terms + 3 * count + at, tl.where(valid, ratio - 1.0 - log_ratio, 0.0) / total, mask=used)
    tl.store(terms + 4 * count + at, tl.where((tl.abs(ratio - 1.0) > clip) & valid, 1.0, 0.0) / total, mask=used)
    of_policy = tl.where(valid & within & (gain <= clipped_gain), -gain * w / total, 0.0)
    of_value = tl.where(near_squared > squared, tl.where(tl.abs(v - old) <= vf_clip, error, 0.0), v - goal)
    tl.store(grads + at, of_policy, mask=used)
    tl.store(grads + count + at, vf_coef * of_value * value_weight / total, mask=used)
    tl.store(grads + 2 * count + at, tl.where(valid, -ent_coef / total, 0.0), mask=used)


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
    count = log_prob.numel()
    _ppo_terms[(triton.cdiv(count, BLOCK),)](
        log_prob, old_log_prob, advantage, value, old_value, target, entropy, weight, numbers, steps, terms, grads, count,
        WEIGHTS_VALUE=weights_value, BLOCK=BLOCK,
    )  # fmt: skip

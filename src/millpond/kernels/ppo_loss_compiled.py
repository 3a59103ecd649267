"""The compiled loop of `losses.ppo_loss`: one pass for the losses and their gradients. S steps; float32."""

from __future__ import annotations

from math import exp

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled

Floats = npt.NDArray[np.float32]
POLICY, VALUE, ENTROPY, KL, CLIPPED = range(5)


@compiled
def losses_and_gradients(
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
    d_log_prob: Floats,
    d_value: Floats,
    d_entropy: Floats,
) -> npt.NDArray[np.float64]:
    """Means over `steps` of policy loss, value loss, entropy, approximate KL and clipped steps; all given are [S].

    The gradients are those of policy + vf_coef * value - ent_coef * entropy. An infinite `vf_clip_coef` does not clip.
    Comparisons are written so that a NaN comes out where one went in.
    """
    sums = np.zeros(5)
    for s in range(len(weight)):
        d_log_prob[s] = d_value[s] = d_entropy[s] = 0.0
        if not weight[s] > 0.0:
            continue
        share = weight[s] / steps
        log_ratio = np.float64(log_prob[s] - old_log_prob[s])
        ratio = exp(log_ratio)
        bounded = 1.0 - clip_coef if ratio < 1.0 - clip_coef else 1.0 + clip_coef if ratio > 1.0 + clip_coef else ratio
        if bounded * advantage[s] < ratio * advantage[s]:
            sums[POLICY] -= share * bounded * advantage[s]
        else:
            sums[POLICY] -= share * ratio * advantage[s]
            d_log_prob[s] = -share * ratio * advantage[s]
        error, moved = np.float64(value[s] - target[s]), np.float64(value[s] - old_value[s])
        if moved > vf_clip_coef or moved < -vf_clip_coef:
            near = old_value[s] + (vf_clip_coef if moved > 0 else -vf_clip_coef) - target[s]
            if near * near > error * error:
                sums[VALUE] += share * 0.5 * near * near
            else:
                sums[VALUE] += share * 0.5 * error * error
                d_value[s] = vf_coef * share * error
        else:
            sums[VALUE] += share * 0.5 * error * error
            d_value[s] = vf_coef * share * error
        sums[ENTROPY] += entropy[s] / steps
        d_entropy[s] = -ent_coef / steps
        sums[KL] += (ratio - 1.0 - log_ratio) / steps
        if abs(ratio - 1.0) > clip_coef:
            sums[CLIPPED] += 1.0 / steps
    return sums

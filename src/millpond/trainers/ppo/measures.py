"""Measures of an iteration's rows that warnings are made from: observations, and the value's share of the gradient.

They read rows and weights and change neither; no random generator is used. Few iterations are measured, on a fixed sample of
their rows, so that this takes less than 1 % of the time of a run.

R rows   T horizon   a agents of a row   N steps of a sample   D numbers of an observation
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from millpond.devices import precise_dtype
from millpond.envs.spec import ObservationSpec
from millpond.losses import Coefficients
from millpond.policies.normalizer import FLOOR
from millpond.policies.policy import Policy
from millpond.rollout.micro_batch import Advantages, gather
from millpond.rollout.rows import TORCH, Rows
from millpond.trainers.ppo.update import scale_of_minibatch, unroll_micro_batch, unrolled_loss

EVERY = 16  # iterations between two measures of observations
GRADIENT_EVERY = 64  # iterations between two measures of the gradient; the first two are `EVERY` apart
MAX_STEPS, MAX_NUMBERS = 1_024, 2**20  # of the sample of observations
GRADIENT_STEPS = 256  # agent steps of the sample whose gradients are compared


def gradient_is_due(iteration: int) -> bool:
    """Return True for the iterations whose gradient is measured: EVERY, 2 * EVERY, and multiples of GRADIENT_EVERY.

    Not at first: the weights of actions start at a hundredth of the value's, so that the value's share is near 1.
    """
    return iteration in (EVERY, 2 * EVERY) or (iteration > 0 and iteration % GRADIENT_EVERY == 0)


def observation_ranges(rows: Rows, num_rows: int, spec: ObservationSpec) -> dict[str, Tensor]:
    """Return how much observations differ between the steps of a sample.

    observation_range         largest minus smallest value of the number that varies most; 0 if all observations are equal
    observation_range_ratio   that of the number that varies most over that of the number that varies least, of those that
                              vary; only if the observation has vectors of floats. A range below the smallest deviation
                              that the normaliser scales up counts as that deviation
    """
    sample = _sample(rows, num_rows, spec)
    metrics = {"observation_range": _ranges(sample.flatten(1)).amax()}
    vectors = [part for part in spec.parts if part.kind == "vector" and np.dtype(part.dtype).kind == "f"]
    if vectors:
        raw = sample.flatten(1).contiguous().view(torch.uint8)
        numbers = [raw[:, v.offset : v.offset + v.nbytes].contiguous().view(TORCH[v.dtype]) for v in vectors]
        ranges = torch.cat([_ranges(part) for part in numbers])
        largest = ranges.amax()
        smallest = torch.where(ranges > 0, ranges, largest).amin()
        metrics["observation_range_ratio"] = largest / smallest.clamp(min=FLOOR)
    return metrics


def _sample(rows: Rows, num_rows: int, spec: ObservationSpec) -> Tensor:
    """Return observations [N, *observation] of steps at equal distances; those of agents that were not alive are replaced."""
    steps = num_rows * rows.horizon * rows.agents_per_row
    count = max(32, min(MAX_STEPS, MAX_NUMBERS // int(np.prod(spec.shape, dtype=np.int64))))
    stride = steps // count | 1  # odd, so that it is no multiple of the length of rows or of short episodes
    shape = num_rows, rows.horizon, rows.agents_per_row
    at = torch.from_numpy(np.stack(np.unravel_index(np.arange(0, steps, stride), shape))).to(rows.device).unbind()
    observation, alive = rows["observation"][at], rows["alive"][at]
    first = observation.index_select(0, alive.int().argmax().view(1))
    return torch.where(alive.view(-1, *[1] * len(spec.shape)), observation, first)


def _ranges(numbers: Tensor) -> Tensor:
    """[N, D] -> [D]: the largest minus the smallest value, if possible in float64, in which no difference overflows."""
    low, high = torch.aminmax(numbers.byte() if numbers.dtype == torch.bool else numbers, dim=0)
    return high.to(precise_dtype(high.device)) - low.to(precise_dtype(low.device))


def value_gradient_share(
    policy: Policy, rows: Rows, advantages: Advantages, coefficients: Coefficients, max_rows: int, device: torch.device
) -> Tensor:
    """Return the value loss's share of the gradient of the encoder and the core, which the policy loss trains, too.

        |g_value| / (|g_policy| + |g_value|)        g_value is that of vf_coef * value loss

    The sample is small, and noise makes the gradient of the policy loss longer there than on a whole minibatch; the share
    on a whole minibatch is rather larger.
    """
    count = min(max_rows, -(-GRADIENT_STEPS // (rows.horizon * rows.agents_per_row)))
    if advantages.per_minibatch:
        scale = scale_of_minibatch(rows, advantages, torch.arange(count), device, None)
        coefficients = replace(coefficients, advantage_scale=scale)
    batch = gather(rows, advantages, torch.arange(count), np.ones(count, np.float32), device)
    steps = advantages.valid_steps[:count].sum().clamp(min=1).to(device)
    shared = [weight for name, weight in policy.named_parameters() if name.startswith(("encoder.", "core."))]
    unrolled = unroll_micro_batch(policy.unroll, batch)
    without_value = unrolled_loss(unrolled, batch, replace(coefficients, vf_coef=0.0), steps).total
    total = unrolled_loss(unrolled, batch, coefficients, steps).total
    of_policy = _flat(torch.autograd.grad(without_value, shared, retain_graph=True, allow_unused=True))
    of_value = _flat(torch.autograd.grad(total, shared, allow_unused=True)) - of_policy
    norms = torch.stack((of_policy.square().sum(), of_value.square().sum())).sqrt()
    return norms[1] / norms.sum().clamp(min=1e-30)


def _flat(gradients: tuple[Tensor | None, ...]) -> Tensor:
    return torch.cat(
        [gradient.flatten().to(precise_dtype(gradient.device)) for gradient in gradients if gradient is not None]
    )

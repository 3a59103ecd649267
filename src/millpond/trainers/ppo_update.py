"""From rows to gradients: advantages once an iteration, then one optimiser step for each minibatch.

R rows   T horizon   a agents of a row   b rows of a minibatch
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from millpond.kernels.advantage import advantage_numba, advantage_torch
from millpond.losses import AllReduce, explained_variance, normalise, ppo_loss
from millpond.policies.threads import in_lanes
from millpond.rollout.rows import Rows, resets
from millpond.rollout.sampling import Draw

INPUTS = ("reward", "value", "next_value", "terminated", "truncated", "final_value", "alive")
Gradients = tuple[Tensor | None, ...]
LEAST = 4  # rows for which another lane is worth waking
TRAINED = ("observation", "action", "terminated", "truncated", "alive", "log_prob", "value")


@dataclass(frozen=True)
class Estimate:
    """Advantages of an iteration's rows, raw and as they are trained on."""

    advantage: Tensor  # [R, T, a], raw: V + A is the value's target
    scaled: Tensor  # [R, T, a], normalised over the rows trained, where the config says so
    priority: np.ndarray[Any, np.dtype[np.float64]]  # [R]: the sum of |A| over a row
    explained_variance: Tensor


def estimate_advantages(
    rows: Rows,
    num_rows: int,
    *,
    gamma: float,
    lam: float,
    rho_clip: float,
    c_clip: float,
    normalize: bool,
    bootstrap_truncation: bool = True,
    add_up: AllReduce | None = None,
) -> Estimate:
    """Advantages of the first `num_rows` rows. Right after collection the policy is the one that acted: all ratios are 1.

    Without `bootstrap_truncation` a truncated step is taken for a terminated one, to see what that does. `add_up` adds a
    tensor up over ranks, so that statistics are of all their rows.
    """
    arrays: dict[str, Any] = {name: rows[name][:num_rows] for name in INPUTS}
    if not bootstrap_truncation:
        arrays["terminated"] = arrays["terminated"] | arrays["truncated"]
    numbers: dict[str, Any] = {"gamma": gamma, "lam": lam, "rho_clip": rho_clip, "c_clip": c_clip}
    advantage = rows["advantage"][:num_rows]
    if rows.device.type == "cpu":
        advantage_numba(**{name: array.numpy() for name, array in arrays.items()}, **numbers, out=advantage.numpy())
    else:
        advantage.copy_(advantage_torch(**arrays, **numbers))
    alive = arrays["alive"]
    target = advantage + arrays["value"]
    return Estimate(
        advantage,
        normalise(advantage, alive, add_up) if normalize else advantage,
        advantage.abs().sum(dim=(1, 2)).double().cpu().numpy(),
        explained_variance(arrays["value"], target, alive, add_up),
    )


@dataclass(frozen=True)
class Coefficients:
    """What the loss is weighed with, at this point of the run."""

    clip_coef: float
    vf_clip_coef: float | None
    vf_coef: float
    ent_coef: float
    max_grad_norm: float


@dataclass(frozen=True)
class Step:
    """What one optimiser step did; scalars on the device, means over `agent_steps` living steps."""

    metrics: dict[str, Tensor]
    agent_steps: Tensor


def train_minibatch(
    unroll: Callable[..., Any],
    parameters: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    rows: Rows,
    estimate: Estimate,
    draw: Draw,
    coefficients: Coefficients,
    *,
    part_rows: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    in_parallel: bool = True,
    add_up: AllReduce | None = None,
) -> Step:
    """One gradient over the drawn rows, in parts of at most `part_rows`, and one step of the optimiser.

    `unroll` is the policy's own, compiled or not, and `parameters` are what it learns. On the CPU each lane takes a
    share of the rows, unless `in_parallel` says not to. `add_up` adds a tensor up over ranks: all of them divide by the
    living steps of all, so that their gradients add up to that of all rows together.
    """
    picked = torch.from_numpy(draw.rows)
    living = rows["alive"].index_select(0, picked.to(rows.device)).sum().to(device)
    if add_up is not None:
        add_up(living)
    living = living.clamp(min=1)

    def share(first: int, start: int, stop: int) -> tuple[dict[str, Tensor], Gradients]:
        part = slice(first + start, first + stop)
        losses = _part_loss(
            unroll, rows, estimate, picked[part], draw.weight[part], coefficients, living, device, autocast
        )
        return losses, torch.autograd.grad(losses.pop("total"), parameters, allow_unused=True)

    optimizer.zero_grad(set_to_none=True)
    sums: dict[str, Tensor] = {}
    for first in range(0, len(picked), part_rows):
        count = min(part_rows, len(picked) - first)
        lanes = in_parallel and device.type == "cpu"
        shares = in_lanes(partial(share, first), count, LEAST) if lanes else [share(first, 0, count)]
        for losses, gradients in shares:
            _add(parameters, gradients, sums, losses)
    if add_up is not None:
        _add_up_together(add_up, [*(p.grad for p in parameters if p.grad is not None), *sums.values()])
    sums["grad_norm"] = nn.utils.clip_grad_norm_(parameters, coefficients.max_grad_norm)
    optimizer.step()
    return Step(sums, living)


def _add(
    parameters: list[nn.Parameter], gradients: Gradients, sums: dict[str, Tensor], losses: dict[str, Tensor]
) -> None:
    """Add what one lane found, always in the order of the rows, so that a run repeats."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient.contiguous() if parameter.grad is None else parameter.grad.add_(gradient)
    for name, value in losses.items():
        sums[name] = sums[name] + value if name in sums else value


def _add_up_together(add_up: AllReduce, tensors: list[Tensor]) -> None:
    """Add many tensors up over ranks in one go: there are dozens of small ones, and each journey costs."""
    joined = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    add_up(joined)
    for tensor, summed in zip(tensors, torch.split(joined, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.detach().copy_(summed.view_as(tensor))


def _part_loss(
    unroll: Callable[..., Any],
    rows: Rows,
    estimate: Estimate,
    picked: Tensor,
    weight: np.ndarray[Any, np.dtype[np.float32]],
    coefficients: Coefficients,
    living: Tensor,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> dict[str, Tensor]:
    names = [*TRAINED, *(name for name in ("initial_state", "action_mask") if name in rows.fields)]
    batch = rows.sequences(names, picked, device)
    agents = rows.agents_per_row
    chosen = picked.to(rows.device)
    advantage, raw = (
        array.index_select(0, chosen).transpose(1, 2).flatten(0, 1).to(device)
        for array in (estimate.scaled, estimate.advantage)
    )
    alive = batch["alive"]
    weights = torch.from_numpy(weight).to(device).repeat_interleave(agents)[:, None] * alive
    state = batch.get("initial_state")
    if state is None:
        state = torch.zeros((len(alive), 0, 0), device=device)
    with autocast():
        unrolled = unroll(
            batch["observation"],
            state,
            resets(batch["terminated"], batch["truncated"]),
            batch["action"],
            action_mask=batch.get("action_mask"),
        )
    loss = ppo_loss(
        unrolled.log_prob.float(),
        batch["log_prob"],
        advantage,
        unrolled.value.float(),
        batch["value"],
        raw + batch["value"],
        unrolled.entropy.float(),
        weights,
        clip_coef=coefficients.clip_coef,
        vf_clip_coef=coefficients.vf_clip_coef,
        vf_coef=coefficients.vf_coef,
        ent_coef=coefficients.ent_coef,
        denominator=living,
    )
    return {
        "total": loss.total,
        "policy_loss": loss.policy,
        "value_loss": loss.value,
        "entropy": loss.entropy,
        "approx_kl": loss.approx_kl,
        "clip_fraction": loss.clip_fraction,
    }

"""From rows to gradients: advantages once an iteration, then one optimiser step for each minibatch.

R rows   T horizon   a agents of a row   b rows of a minibatch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.kernels.advantage import advantage_numba, advantage_torch
from millpond.losses import AllReduce, explained_variance, normalise, ppo_loss
from millpond.policies.acting import is_encoder_compiled
from millpond.policies.lstm import LEAST as LEAST_SEQUENCES
from millpond.policies.threads import one_each, pieces, torch_in_one_thread, torch_threads
from millpond.rollout.rows import Rows
from millpond.rollout.sampling import Draw
from millpond.trainers.common.clipping import clip_gradients
from millpond.trainers.ppo.compiled_rows import Gradients, RowsCall, can_take, policy_of
from millpond.trainers.ppo.micro_batch import Coefficients, Estimate, Part

Losses = tuple[dict[str, Tensor], Gradients]  # what is recorded of them, and their gradients
INPUTS = ("reward", "value", "next_value", "terminated", "truncated", "final_value", "alive")
LEAST = 1024  # steps of sequences for which another thread is worth waking


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
    all_reduce: AllReduce | None = None,
) -> Estimate:
    """Advantages of the first `num_rows` rows. Right after collection the policy is the one that acted: all ratios are 1.

    Without `bootstrap_truncation` a truncated step is taken for a terminated one, to see what that does. `all_reduce` adds a
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
        normalise(advantage, alive, all_reduce) if normalize else advantage,
        advantage.abs().sum(dim=(1, 2)).double().cpu().numpy(),
        explained_variance(arrays["value"], target, alive, all_reduce),
        alive.sum(dim=(1, 2)),
    )


@dataclass(frozen=True)
class Step:
    """What one optimiser step did; scalars on the device, means over `agent_steps` living steps."""

    metrics: dict[str, Tensor]
    agent_steps: Tensor


def least_rows(unroll: Callable[..., Any], horizon: int, agents_per_row: int, device: torch.device) -> int:
    """Rows that a thread must have at least: few where all that it does is compiled."""
    policy = policy_of(unroll)
    if policy is not None and can_take(policy, device) and is_encoder_compiled(policy):
        return -(-LEAST_SEQUENCES // agents_per_row)
    return -(-LEAST // (horizon * agents_per_row))


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
    all_reduce: AllReduce | None = None,
    kept: dict[tuple[int, int], RowsCall] | None = None,
) -> Step:
    """One gradient over the drawn rows, in parts of at most `part_rows`, and one step of the optimiser.

    `unroll` is the policy's own, compiled or not, and `parameters` are what it learns. On the CPU each thread takes a
    share of the rows, unless `in_parallel` says not to. `all_reduce` adds a tensor up over ranks: all of them divide by the
    living steps of all, so that their gradients add up to that of all rows together. `kept`, where it is given, keeps
    what threads work in from one minibatch to the next.
    """

    def make_call(thread: int, some: Tensor, weight: npt.NDArray[np.float32]) -> Callable[[], Losses]:
        call = None if kept is None else kept.get((thread, len(some)))
        if call is not None:
            call.retake(rows, estimate, some, weight, coefficients, float(living))
            return call
        part = Part.of(rows, estimate, some, weight, device)
        made = gradient_call(unroll, parameters, part, coefficients, living, autocast)
        if kept is not None and isinstance(made, RowsCall) and made.encoder is not None:
            kept[thread, len(some)] = made
        return made

    in_threads = in_parallel and device.type == "cpu"
    least = least_rows(unroll, rows.horizon, rows.agents_per_row, device)
    picked = torch.from_numpy(draw.rows)
    with torch_in_one_thread() if in_threads else nullcontext():
        living = estimate.living.index_select(0, picked.to(rows.device)).sum().to(device)
        if all_reduce is not None:
            all_reduce(living)
        living = living.clamp(min=1)
        calls = []
        for first in range(0, len(picked), part_rows):
            count = min(part_rows, len(picked) - first)
            edges = pieces(count, least) if in_threads else [(0, count)]
            shares = [slice(first + start, first + stop) for start, stop in edges]
            calls.append([partial(make_call, k, picked[at], draw.weight[at]) for k, at in enumerate(shares)])
        metrics = take_step(calls, parameters, optimizer, coefficients.max_grad_norm, in_threads, all_reduce)
    return Step(metrics, living)


def take_step(
    parts: Sequence[Sequence[Callable[[], Callable[[], Losses]]]],
    parameters: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    max_grad_norm: float,
    in_threads: bool,
    all_reduce: AllReduce | None = None,
) -> dict[str, Tensor]:
    """One step of the optimiser with the gradients of all parts, one after the other, each in its threads' shares; what
    is recorded of it. A share is made ready, by its maker, when its thread is about to begin.
    """
    sums = dict[str, Tensor]()
    for parameter in parameters:
        parameter.grad = None
    with torch_in_one_thread() if in_threads else nullcontext():
        for makers in parts:
            calls = (make() for make in makers)
            for losses, gradients in one_each(calls, len(makers)) if in_threads else (call() for call in calls):
                _add(parameters, gradients, sums, losses)
        if all_reduce is not None:
            _all_reduce_together(all_reduce, [*(p.grad for p in parameters if p.grad is not None), *sums.values()])
        sums["grad_norm"] = clip_gradients(parameters, max_grad_norm)
        with torch_threads(1) if parameters[0].device.type == "cpu" else nullcontext():  # waking others takes longer
            optimizer.step()
    return sums


def _add(
    parameters: list[nn.Parameter], gradients: Gradients, sums: dict[str, Tensor], losses: dict[str, Tensor]
) -> None:
    """Add what one thread found, always in the order of the rows, so that a run repeats."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient.contiguous() if parameter.grad is None else parameter.grad.add_(gradient)
    for name, value in losses.items():
        sums[name] = sums[name] + value if name in sums else value


def _all_reduce_together(all_reduce: AllReduce, tensors: list[Tensor]) -> None:
    """Add many tensors up over ranks in one go: there are dozens of small ones, and each journey costs."""
    joined = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    all_reduce(joined)
    for tensor, summed in zip(tensors, torch.split(joined, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.detach().copy_(summed.view_as(tensor))


def gradient_call(
    unroll: Callable[..., Any],
    parameters: list[nn.Parameter],
    part: Part,
    coefficients: Coefficients,
    living: Tensor,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[[], Losses]:
    """A call, for any thread, that gives what is recorded of a part's losses, and their gradients; means are over
    `living` steps."""
    policy = policy_of(unroll)
    with autocast():
        if policy is not None and can_take(policy, living.device):
            return RowsCall(policy, parameters, part, coefficients, float(living))

    def with_torch() -> Losses:
        with autocast():  # each thread's own
            losses = part_loss(unroll, part, coefficients, living)
            return losses, torch.autograd.grad(losses.pop("total"), parameters, allow_unused=True)

    return with_torch


def part_loss(unroll: Callable[..., Any], part: Part, coefficients: Coefficients, living: Tensor) -> dict[str, Tensor]:
    batch = part.batch
    mask = batch.get("action_mask")
    unrolled = unroll(part.take_observations(), part.state, part.reset, batch["action"], action_mask=mask)
    loss = ppo_loss(
        unrolled.log_prob.float().t(),
        part.log_prob.t(),
        part.advantage.t(),
        unrolled.value.float().t(),
        part.value.t(),
        part.target.t(),
        unrolled.entropy.float().t(),
        part.weight.t(),
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

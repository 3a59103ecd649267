"""The PPO update: one optimizer step per minibatch.

    gather -> unroll -> loss -> backward -> clip -> step

`Updater` is the plain way from rows to gradients; `millpond.fast.updater` is another, which computes the same.

R rows   T horizon   a agents of a row   b rows of a minibatch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from millpond.losses import AllReduce, Coefficients, PPOLoss, Scale, gtd_lambda_loss, ppo_loss, scale_of
from millpond.policies import Policy
from millpond.rollout.micro_batch import Advantages, MicroBatch, gather, newest
from millpond.rollout.rows import Rows, by_row
from millpond.rollout.sampling import Draw
from millpond.threads import torch_threads
from millpond.trainers.ppo.device_loss import ppo_loss_on_device
from millpond.trainers.ppo.device_update import DeviceUpdate
from millpond.trainers.ppo.schedule_free import follow_value_scale

POWERS = {"exp_avg": 1, "exp_avg_sq": 2, "momentum": 1}  # of the gradients, in the optimizers' moments


def update_value_scale(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    rows: Rows,
    advantages: Advantages,
    all_reduce: AllReduce | None = None,
) -> None:
    """Add the targets of an iteration's rows to the statistics of returns. Values stay as they are.

    Gradients of the value's layer change by a factor; so do the optimizer's means of them, and those of their squares by its
    square. Otherwise Adam's steps would be too small or too large until it has forgotten the gradients before.
    """
    count, before = len(advantages.raw), policy.value_layer.bias.detach()[-1].clone()
    factor = policy.update_value_scale(advantages.raw + rows["value"][:count], rows["alive"][:count], all_reduce)
    for parameter in policy.value_layer.parameters():
        for name, power in POWERS.items():
            moment = optimizer.state.get(parameter, {}).get(name)
            if moment is not None:
                moment[-1].mul_(factor.to(moment.dtype) ** power)
    follow_value_scale(optimizer, policy.value_layer, before, factor.to(before.dtype))


def value_scale_of(policy: Policy) -> Scale:
    """Return the statistics of returns by which values are normalised in the loss."""
    scale = policy.value_scale
    assert scale is not None
    return Scale(scale.mean.float(), scale.deviation().float())


@dataclass(frozen=True)
class Step:
    """Result of one optimizer step; scalars on the device, means over `agent_steps` valid steps."""

    metrics: dict[str, Tensor]
    agent_steps: Tensor


class GradientsOfRows(Protocol):
    """The way from rows to gradients."""

    parameters: list[nn.Parameter]

    def backward(
        self,
        rows: Rows,
        advantages: Advantages,
        picked: Tensor,
        weight: Any,
        coefficients: Coefficients,
        valid_steps: Tensor,
    ) -> list[dict[str, Tensor]]:
        """Add the gradients of the rows `picked` [b] to `parameters`; return the metrics of each share of them.

        Their importance weights [b] are an array, or a tensor on the device.

        Means are over `valid_steps`, those of the whole minibatch, so that metrics and gradients of all shares add up. If
        the rows have a `ratio`, the policy's newest ratios and values are written back to them.
        """

    def shares(self, num_rows: int, horizon: int, agents_per_row: int) -> list[tuple[int, int]]:
        """Return the ranges of rows that are gathered and trained on separately, one per thread."""

    def backward_of(
        self, shares: Sequence[MicroBatch], coefficients: Coefficients, valid_steps: Tensor
    ) -> list[dict[str, Tensor]]:
        """Do the same for shares of rows that are gathered already. Their observations are taken."""

    def clip(self, max_norm: Any) -> Tensor:
        """Scale gradients down to `max_norm` if their norm is larger; return the norm before."""

    def clip_and_step(self, optimizer: torch.optim.Optimizer, max_norm: Any) -> Tensor:
        """Clip the gradients and take a step of the optimizer; return their norm before."""


class Updater:
    """Gradients in plain PyTorch, on any device."""

    def __init__(
        self,
        policy: Any,
        *,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        compiled: bool = False,
    ) -> None:
        self.parameters: list[nn.Parameter] = list(policy.parameters())
        self.unroll = torch.compile(policy.unroll) if compiled else policy.unroll
        self.device, self.autocast = device, autocast
        correction = getattr(policy, "correction", None)
        self.correction_weights = [] if correction is None else list(correction.parameters())

    def backward(
        self,
        rows: Rows,
        advantages: Advantages,
        picked: Tensor,
        weight: Any,
        coefficients: Coefficients,
        valid_steps: Tensor,
    ) -> list[dict[str, Tensor]]:
        """Add the gradients of the rows `picked` to `parameters`: gather, unroll, loss, backward."""
        micro_batch = gather(rows, advantages, picked, weight, self.device)
        metrics, unrolled = self._backward(micro_batch, coefficients, valid_steps, rows, picked)
        if "ratio" in rows.fields:
            ratio, value = newest(unrolled, micro_batch)
            rows.write_back(picked, by_row(ratio, rows), by_row(value, rows))
        return [metrics]

    def shares(self, num_rows: int, horizon: int, agents_per_row: int) -> list[tuple[int, int]]:
        return [(0, num_rows)]

    def backward_of(
        self, shares: Sequence[MicroBatch], coefficients: Coefficients, valid_steps: Tensor
    ) -> list[dict[str, Tensor]]:
        return [self._backward(micro_batch, coefficients, valid_steps)[0] for micro_batch in shares]

    def _backward(
        self,
        micro_batch: MicroBatch,
        coefficients: Coefficients,
        valid_steps: Tensor,
        rows: Rows | None = None,
        picked: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], Any]:
        """Add the gradients of gathered rows; return metrics, and the unrolled policy."""
        with self.autocast():
            unrolled = unroll_micro_batch(self.unroll, micro_batch)
            if coefficients.gtd is not None:  # the loss of the squared error has no weight
                without_value = replace(coefficients, vf_coef=0.0, on_device=None)
                loss = unrolled_loss(unrolled, micro_batch, without_value, valid_steps)
                assert rows is not None
                assert picked is not None
                total, metrics = self._gtd_loss(unrolled, micro_batch, coefficients, valid_steps, rows, picked)
                total, metrics = loss.total + total, loss.metrics() | metrics
            else:
                loss = unrolled_loss(unrolled, micro_batch, coefficients, valid_steps)
                total, metrics = loss.total, loss.metrics()
        total.backward()  # type: ignore[no-untyped-call]
        return metrics, unrolled

    def _gtd_loss(
        self,
        unrolled: Any,
        micro_batch: MicroBatch,
        coefficients: Coefficients,
        valid_steps: Tensor,
        rows: Rows,
        picked: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses of a critic by gradient TD(lambda) and of its auxiliary head, weighted, and metrics."""
        gtd = coefficients.gtd
        assert gtd is not None
        value, correction, weight = (
            by_row(sequences.float(), rows) for sequences in (unrolled.value, unrolled.correction, micro_batch.weight)
        )
        delta = gtd.residual(picked, value)
        counted = weight if coefficients.weights_value else (weight > 0).to(weight.dtype)
        share = (micro_batch.weight > 0).sum() / valid_steps  # of the minibatch; shares add up to 1
        critic, aux = gtd_lambda_loss(delta, value, correction, counted / valid_steps)
        weights = torch.cat([parameter.flatten() for parameter in self.correction_weights])
        aux = aux + gtd.aux_decay * share * weights.square().mean() / 2
        error = (delta.detach().square() * counted).sum() / (2 * valid_steps)
        metrics = {"value_loss": error, "gtd_aux_loss": aux.detach()}
        return coefficients.vf_coef * critic + gtd.aux_coef * aux, metrics

    def clip(self, max_norm: float | Tensor) -> Tensor:
        if self.parameters[0].device.type == "cpu":
            return nn.utils.clip_grad_norm_(self.parameters, float(max_norm))
        return clip_together([parameter.grad for parameter in self.parameters if parameter.grad is not None], max_norm)

    def clip_and_step(self, optimizer: torch.optim.Optimizer, max_norm: float | Tensor) -> Tensor:
        norm = self.clip(max_norm)
        optimizer.step()
        return norm


def clip_together(grads: list[Tensor], max_norm: float | Tensor) -> Tensor:
    """Do what `clip_grad_norm_` does, for all gradients in a few launches."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    torch._foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def unroll_micro_batch(unroll: Callable[..., Any], micro_batch: MicroBatch) -> Any:
    """Unroll the policy over gathered rows; their observations are taken."""
    return unroll(
        micro_batch.take_observation(),
        micro_batch.state,
        micro_batch.reset,
        micro_batch.action,
        action_mask=micro_batch.action_mask,
    )


def unrolled_loss(unrolled: Any, micro_batch: MicroBatch, coefficients: Coefficients, valid_steps: Tensor) -> PPOLoss:
    """Return the loss of an unrolled policy; means are over `valid_steps`."""

    def scaled(numbers: Tensor, scale: Scale | None) -> Tensor:
        return numbers.t() if scale is None else scale.normalise(numbers.t())

    if coefficients.on_device is not None:
        return ppo_loss_on_device(
            unrolled.log_prob.float().t(),
            micro_batch.log_prob.t(),
            scaled(micro_batch.advantage, coefficients.advantage_scale),
            scaled(unrolled.value.float(), coefficients.value_scale),
            scaled(micro_batch.value, coefficients.value_scale),
            scaled(micro_batch.target, coefficients.value_scale),
            unrolled.entropy.float().t(),
            micro_batch.weight.t(),
            coefficients.on_device,
            valid_steps,
            weights_value=coefficients.weights_value,
        )
    return ppo_loss(
        unrolled.log_prob.float().t(),
        micro_batch.log_prob.t(),
        scaled(micro_batch.advantage, coefficients.advantage_scale),
        scaled(unrolled.value.float(), coefficients.value_scale),
        scaled(micro_batch.value, coefficients.value_scale),
        scaled(micro_batch.target, coefficients.value_scale),
        unrolled.entropy.float().t(),
        micro_batch.weight.t(),
        clip_coef=coefficients.clip_coef,
        vf_clip_coef=coefficients.vf_clip_coef,
        vf_coef=coefficients.vf_coef,
        ent_coef=coefficients.ent_coef,
        weights_value=coefficients.weights_value,
        log_ratio_clamp=coefficients.log_ratio_clamp,
        denominator=valid_steps,
    )


def train_minibatch(
    updater: GradientsOfRows,
    optimizer: torch.optim.Optimizer,
    rows: Rows,
    advantages: Advantages,
    draw: Draw,
    coefficients: Coefficients,
    *,
    micro_batch_rows: int,
    device: torch.device,
    all_reduce: AllReduce | None = None,
    on_device: DeviceUpdate | None = None,
) -> Step:
    """Compute the gradient of the drawn rows, in micro-batches of at most `micro_batch_rows`, and take one optimizer step.

    `all_reduce` sums a tensor over ranks: each rank divides by the valid steps of all, so that their gradients add up to
    that of all rows together. On a device `on_device` sends the draw and the coefficients.
    """
    if on_device is not None:

        def body(advantages: Advantages, coefficients: Coefficients, picked: Tensor, weight: Any) -> Trained:
            picked = picked if rows.device == device else torch.from_numpy(draw.rows)
            return _train(
                updater, optimizer, rows, advantages, picked, weight, coefficients, micro_batch_rows, all_reduce
            )

        return Step(*on_device(draw, advantages, coefficients, body))
    picked = torch.from_numpy(draw.rows)
    return Step(
        *_train(updater, optimizer, rows, advantages, picked, draw.weight, coefficients, micro_batch_rows, all_reduce)
    )


Trained = tuple[dict[str, Tensor], Tensor]  # metrics, valid steps


def _train(
    updater: GradientsOfRows,
    optimizer: torch.optim.Optimizer,
    rows: Rows,
    advantages: Advantages,
    picked: Tensor,
    weight: Any,
    coefficients: Coefficients,
    micro_batch_rows: int,
    all_reduce: AllReduce | None,
) -> Trained:
    """Train on the rows `picked` with their importance weights."""
    device = updater.parameters[0].device
    own_steps = advantages.valid_steps.index_select(0, picked.to(rows.device)).sum().to(device)
    # Over ranks: each divides by the same number, and the sum is divided by all valid steps, which come in the same message.
    divisor = own_steps.clamp(min=1)
    if all_reduce is not None:
        divisor = torch.full_like(own_steps, len(picked) * rows.horizon * rows.agents_per_row)
    if advantages.per_minibatch:
        scale = scale_of_minibatch(rows, advantages, picked, device, all_reduce)
        coefficients = replace(coefficients, advantage_scale=scale)
    for parameter in updater.parameters:
        parameter.grad = None
    metrics = dict[str, Tensor]()
    for first in range(0, len(picked), micro_batch_rows):
        some = slice(first, first + micro_batch_rows)
        for share in updater.backward(rows, advantages, picked[some], weight[some], coefficients, divisor):
            for name, value in share.items():
                metrics[name] = metrics[name] + value if name in metrics else value
    numbers = coefficients.on_device
    max_grad_norm = coefficients.max_grad_norm if numbers is None else numbers[-1]
    values, summed = [*metrics.values()], None
    if all_reduce is not None:
        summed = all_reduce, own_steps, divisor
    metrics["grad_norm"] = take_step(updater, optimizer, max_grad_norm, values, summed)
    return metrics, divisor if all_reduce is None else own_steps.clamp(min=1)


def scale_of_minibatch(
    rows: Rows, advantages: Advantages, picked: Tensor, device: torch.device, all_reduce: AllReduce | None
) -> Scale:
    """Return mean and deviation of the advantages over the valid steps of all rows of a minibatch, on all ranks."""
    chosen = picked.to(rows.device)
    advantage, alive = (array.index_select(0, chosen) for array in (advantages.raw, rows["alive"]))
    return scale_of(advantage.to(device), alive.to(device), all_reduce)


def refresh_rows(
    unroll: Callable[..., Any],
    rows: Rows,
    advantages: Advantages,
    draw: Draw,
    micro_batch_rows: int,
    device: torch.device,
) -> None:
    """Store the newest ratios and values of the drawn rows, computed in one forward pass."""
    picked = torch.from_numpy(draw.rows)
    with torch.no_grad():
        for first in range(0, len(picked), micro_batch_rows):
            some = slice(first, first + micro_batch_rows)
            batch = gather(rows, advantages, picked[some], draw.weight[some], device)
            ratio, value = newest(unroll_micro_batch(unroll, batch), batch)
            rows.write_back(picked[some], by_row(ratio, rows), by_row(value, rows))


def take_step(
    updater: GradientsOfRows,
    optimizer: torch.optim.Optimizer,
    max_grad_norm: float | Tensor,
    metrics: list[Tensor],
    summed: tuple[AllReduce, Tensor, Tensor] | None = None,
) -> Tensor:
    """Clip the gradients, take one optimizer step, and return their norm.

    With `summed`, a function, valid steps and divisor of this rank, gradients and metrics become the means over the valid
    steps of all ranks, and the valid steps those of all.
    """
    # Waking other threads takes longer than these operations.
    with torch_threads(1) if updater.parameters[0].device.type == "cpu" else nullcontext():
        if summed is not None:
            all_reduce, own_steps, divisor = summed
            gradients = [parameter.grad for parameter in updater.parameters if parameter.grad is not None]
            _all_reduce_together(all_reduce, [*gradients, *metrics], own_steps, divisor)
        return updater.clip_and_step(optimizer, max_grad_norm)


def _all_reduce_together(all_reduce: AllReduce, tensors: list[Tensor], own_steps: Tensor, divisor: Tensor) -> None:
    """Turn tensors, divided by `divisor` on each rank, into means over the valid steps of all ranks, in one message.

    There are dozens of small tensors, and each message has a cost.
    """
    joined = torch.cat([*(tensor.detach().reshape(-1) for tensor in tensors), own_steps.detach().view(1).float()])
    all_reduce(joined)
    own_steps.copy_(joined[-1])
    joined.mul_(divisor / joined[-1].clamp(min=1))
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, mean in zip(tensors, torch.split(joined[:-1], sizes), strict=True):
        tensor.detach().copy_(mean.view_as(tensor))

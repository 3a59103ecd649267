"""PPO's gradients on the CPU, shared out among threads. The plain version: `millpond.trainers.ppo.update.Updater`.

Recurrent policies, and policies without memory on vectors, go from features or rows to gradients in one compiled call per
thread: `rows` and `feedforward`. For other policies torch's graph is built from compiled parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.fast.adam import sum_of_squares
from millpond.fast.encoders import array_encoder
from millpond.fast.feedforward import FeedforwardRows, is_compiled_feedforward
from millpond.fast.gather import gather_fast
from millpond.fast.images import image_shapes
from millpond.fast.limits import (
    MIN_FEEDFORWARD_STEPS_PER_THREAD,
    MIN_SEQUENCES_PER_THREAD,
    MIN_STEPS_PER_THREAD,
    image_row_threads,
)
from millpond.fast.network import is_builtin, is_compiled_after_encoder, with_compiled_parts
from millpond.fast.optimizer import CompiledAdam, is_compiled_adam, scale
from millpond.fast.ppo_loss import LossArguments, PPOLosses, as_metrics, loss_arguments
from millpond.fast.rows import Gradients, Metrics, RecurrentRows
from millpond.losses import Coefficients
from millpond.rollout.micro_batch import Advantages, MicroBatch, newest
from millpond.rollout.rows import Rows, by_row
from millpond.threads import one_each, pieces, threads_for, torch_in_one_thread

# ---- Gradients by torch's graph


class GraphRows:
    """One thread's share of rows of any policy: torch's graph, from compiled parts if the policy is built in."""

    def __init__(
        self,
        unroll: Callable[..., Any],
        parameters: list[nn.Parameter],
        micro_batch: MicroBatch,
        arguments: LossArguments,
        autocast: bool,
        *,
        keeps_results: bool = False,
    ) -> None:
        """`keeps_results`: ratios and values of a call can be read after it."""
        self.unroll, self.parameters, self.micro_batch = unroll, parameters, micro_batch
        self.arguments, self.autocast, self.keeps_results = arguments, autocast, keeps_results
        self._results: tuple[Tensor, Tensor] | None = None

    def results(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return probability ratios and values [b, T, a] of the last call."""
        assert self._results is not None
        ratio, value = self._results
        return by_row(ratio, rows), by_row(value, rows)

    def __call__(self) -> tuple[Metrics, Gradients]:
        """Return metrics, and gradients of `parameters`."""
        batch = self.micro_batch
        casting: AbstractContextManager[Any] = nullcontext()
        if self.autocast:
            casting = torch.autocast("cpu", dtype=torch.bfloat16)
        with casting:  # it is per thread
            observation, mask = batch.take_observation(), batch.action_mask
            unrolled = self.unroll(observation, batch.state, batch.reset, batch.action, action_mask=mask)
            del observation  # not needed in the backward pass
            if self.keeps_results:
                self._results = newest(unrolled, batch)
            value, (mean, factor) = unrolled.value.float().t(), self.arguments[-2:]
            if (mean, factor) != (0.0, 1.0):  # the loss takes the value as the network gives it
                value = (value - mean) * factor
            total, means = PPOLosses.apply(  # type: ignore[no-untyped-call]
                unrolled.log_prob.float().t(),
                batch.log_prob.t(),
                batch.advantage.t(),
                value,
                batch.value.t(),
                batch.target.t(),
                unrolled.entropy.float().t(),
                batch.weight.t(),
                self.arguments,
            )
            return as_metrics(means.numpy()), torch.autograd.grad(total, self.parameters, allow_unused=True)


Share = RecurrentRows | FeedforwardRows | GraphRows


def _write_back(share: Share, rows: Rows, picked: Tensor) -> tuple[Metrics, Gradients]:
    """Run a share, and store the ratios and values that it computed in its rows, which no other share has."""
    computed = share()
    rows.write_back(picked, *share.results(rows))
    return computed


# ---- The updater


class FastUpdater:
    """Gradients of rows, shared out among threads."""

    def __init__(self, policy: Any, *, autocast: bool) -> None:
        self.policy, self.autocast = policy, autocast
        self.parameters: list[nn.Parameter] = list(policy.parameters())
        self._network = with_compiled_parts(policy, autocast) if is_builtin(policy) else policy
        self._whole_rows = is_compiled_after_encoder(policy, autocast)
        self._compiled_throughout = self._whole_rows and array_encoder(policy.encoder) is not None
        self._feedforward = is_builtin(policy) and not autocast and is_compiled_feedforward(policy)
        self._images = image_shapes(policy)
        self._cached: dict[tuple[int, int, bool], RecurrentRows] = {}  # by thread, number of rows, and what is kept
        self._cached_feedforward: dict[int, FeedforwardRows] = {}  # by thread
        self._adam: CompiledAdam | None = None

    def shares(self, num_rows: int, horizon: int, agents_per_row: int) -> list[tuple[int, int]]:
        """Return the ranges of rows that threads share, which may be small if everything is compiled."""
        min_rows = -(-MIN_STEPS_PER_THREAD // (horizon * agents_per_row))
        if self._feedforward:
            min_rows = -(-MIN_FEEDFORWARD_STEPS_PER_THREAD // (horizon * agents_per_row))
        elif self._compiled_throughout:
            min_rows = -(-MIN_SEQUENCES_PER_THREAD // agents_per_row)
        if self._images:
            threads = threads_for(num_rows, 1)
            threads = image_row_threads(self._images, num_rows, horizon * agents_per_row, threads)
            min_rows = num_rows // threads
        return pieces(num_rows, min_rows)

    def backward(
        self,
        rows: Rows,
        advantages: Advantages,
        picked: Tensor,
        weight: npt.NDArray[np.float32],
        coefficients: Coefficients,
        valid_steps: Tensor,
    ) -> list[Metrics]:
        """Add the gradients of the rows `picked` [b] to `parameters`; return the metrics of each thread's share."""
        arguments, writes_back = loss_arguments(coefficients, float(valid_steps)), "ratio" in rows.fields

        def make(thread: int, start: int, stop: int) -> Callable[[], tuple[Metrics, Gradients]]:
            share = gathered(thread, start, stop)
            return partial(_write_back, share, rows, picked[start:stop]) if writes_back else share

        def gathered(thread: int, start: int, stop: int) -> Share:
            some = slice(start, stop)
            if self._feedforward:
                return self._feedforward_of(thread).of_rows(rows, advantages, picked[some], weight[some], arguments)
            cached = self._cached.get((thread, stop - start, writes_back))
            if cached is not None:
                cached.refill(rows, advantages, picked[some], weight[some], arguments)
                return cached
            batch = gather_fast(rows, advantages, picked[some], weight[some])
            share = self._share(batch, arguments, keeps_results=writes_back)
            if self._compiled_throughout:
                assert isinstance(share, RecurrentRows)
                self._cached[thread, stop - start, writes_back] = share
            return share

        with torch_in_one_thread():
            edges = self.shares(len(picked), rows.horizon, rows.agents_per_row)
            # Each share is gathered while the threads before it compute already.
            return self._run((make(thread, *edge) for thread, edge in enumerate(edges)), len(edges))

    def backward_of(
        self, shares: Sequence[MicroBatch], coefficients: Coefficients, valid_steps: Tensor
    ) -> list[Metrics]:
        """Add the gradients of shares of rows that are gathered already. Their observations are taken."""
        arguments = loss_arguments(coefficients, float(valid_steps))
        with torch_in_one_thread():
            made = (self._share(share, arguments, thread) for thread, share in enumerate(shares))
            return self._run(made, len(shares))

    def clip(self, max_norm: float) -> Tensor:
        """Scale gradients down to `max_norm` if their norm is larger; return the norm before. A NaN spreads to all."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        arrays: list[Any] = [gradient.view(-1).numpy() for gradient in gradients]
        norm = sum(sum_of_squares(array, 0, len(array)) for array in arrays) ** 0.5
        if not norm <= max_norm:
            for array in arrays:
                scale(array, np.float32(max_norm / (norm + 1e-6)))
        return torch.tensor(norm, dtype=torch.float32)

    def clip_and_step(self, optimizer: torch.optim.Optimizer, max_norm: float) -> Tensor:
        """Clip the gradients and take a step of the optimizer; return their norm before. Adam's step is compiled, too."""
        norm = self.clip(max_norm)
        if self._adam is None or self._adam.optimizer is not optimizer:
            self._adam = CompiledAdam(optimizer) if is_compiled_adam(optimizer) else None
        if self._adam is None:
            optimizer.step()
        else:
            self._adam.step()
        return norm

    def _feedforward_of(self, thread: int) -> FeedforwardRows:
        if thread not in self._cached_feedforward:
            self._cached_feedforward[thread] = FeedforwardRows(self.policy, self.parameters)
        return self._cached_feedforward[thread]

    def _share(
        self, micro_batch: MicroBatch, arguments: LossArguments, thread: int = 0, *, keeps_results: bool = False
    ) -> Share:
        if self._feedforward:
            return self._feedforward_of(thread).of_micro_batch(micro_batch, arguments)
        if self._whole_rows:
            parts = self.policy, self._network.encoder, self.parameters
            return RecurrentRows(*parts, micro_batch, arguments, keeps_results=keeps_results)
        network = self._network.unroll, self.parameters
        return GraphRows(*network, micro_batch, arguments, self.autocast, keeps_results=keeps_results)

    def _run(self, shares: Iterator[Callable[[], tuple[Metrics, Gradients]]], count: int) -> list[Metrics]:
        """Run each share in a thread, and add gradients in the order of the rows, so that a run is reproducible."""
        results = []
        for metrics, gradients in one_each(shares, count):
            results.append(metrics)
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient.contiguous() if parameter.grad is None else parameter.grad.add_(gradient)
        return results

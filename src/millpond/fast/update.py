"""PPO's gradients on the CPU, shared out among threads. The plain version: `millpond.trainers.ppo.update.Updater`.

Rows of an LSTM with choices go from features to gradients in one compiled call per thread: core, heads, loss, and the
backward pass of all. Between two products of a small network torch spends more time on arranging operations than on computing
them, and holds the GIL meanwhile. For other policies torch's graph is built from compiled parts.

T steps  B sequences, b of a thread's share  H hidden  A logits  C choices  N = T * b
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.fast.adam import CompiledAdam, is_compiled_adam, scale, sum_of_squares
from millpond.fast.choices import evaluate_choices, evaluate_choices_backward
from millpond.fast.encoders import ArrayEncoder, array_encoder
from millpond.fast.feedforward import FeedforwardRows, is_compiled_feedforward
from millpond.fast.gather import gather_fast, gather_states, refill
from millpond.fast.gemm import SGEMM, add_product, add_product_transposed, add_transposed_product
from millpond.fast.limits import (
    LSTM_BLOCK,
    MIN_FEEDFORWARD_STEPS_PER_THREAD,
    MIN_SEQUENCES_PER_THREAD,
    MIN_STEPS_PER_THREAD,
)
from millpond.fast.lstm import ONE, ZERO, Flags, Floats, rows_backward, rows_forward
from millpond.fast.network import is_builtin, is_compiled_after_encoder, with_compiled_parts
from millpond.fast.ppo_loss import LossArguments, PPOLosses, as_metrics, loss_arguments, ppo_losses
from millpond.losses import Coefficients
from millpond.policies.cores import LSTM
from millpond.policies.heads import ChoiceHead
from millpond.policies.policy import Policy
from millpond.rollout.micro_batch import Advantages, MicroBatch
from millpond.rollout.rows import Rows
from millpond.threads import in_threads, one_each, pieces, torch_in_one_thread

Array = npt.NDArray[Any]
Metrics = dict[str, Tensor]
Gradients = tuple[Tensor | None, ...]
ALL_ALLOWED = np.zeros((0, 0, 0), np.bool_)
NO_MEMORY = np.zeros((0, 0, 0), np.float32)


# ---- From features to gradients in one compiled call


class Arrays(NamedTuple):
    """Stored arrays of the sequences, each [T, B, ...]; `allowed` [0, 0, 0] if every action is."""

    reset: Flags
    action: npt.NDArray[np.int32]  # [T, B, C]
    allowed: Flags  # [T, B, A]
    log_prob: Floats
    advantage: Floats
    value: Floats
    target: Floats
    weight: Floats


class Weights(NamedTuple):
    """Weights of the core and the output layer; or their gradients."""

    w_input: Floats
    w_hidden: Floats
    bias: Floats
    w_output: Floats
    b_output: Floats


class Memory(NamedTuple):
    """Memory of a thread, each [T, b, ...] but the last two, which are for one block of K steps [K, b, ...]."""

    inputs: Floats
    hidden: Floats
    gates: Floats
    cell: Floats
    d_hidden: Floats
    d_inputs: Floats  # may be the memory of `inputs`
    d_gates: Floats
    began: Floats


@compiled_fast
def rows_gradients(
    sgemm: int,
    first: int,
    last: int,
    features: Floats,
    hidden0: Floats,
    cell0: Floats,
    batch_arrays: Arrays,
    weights: Weights,
    sizes: npt.NDArray[np.int64],
    arguments: LossArguments,
    value_trains_core: bool,
    memory: Memory,
    d_features: Floats,
    gradients: Weights,
) -> npt.NDArray[np.float64]:
    """Return the losses' means [5] of the sequences first..last-1; write gradients to `d_features` and `gradients`.

    `gradients` are zero on entry, and of these sequences only. If a thread has all sequences, `memory` holds `features` and
    `d_features` themselves.
    """
    steps, batch, size = features.shape[0], last - first, hidden0.shape[1]
    alone = batch == features.shape[1]
    count, logits_count = steps * batch, weights.w_output.shape[0] - 1
    if not alone:
        memory.inputs[:] = features[:, first:last]
    reset = np.ascontiguousarray(batch_arrays.reset[:, first:last])
    state = hidden0[first:last], cell0[first:last]
    layer = weights.w_input, weights.w_hidden, weights.bias
    rows_forward(sgemm, memory.inputs, *state, reset, *layer, memory.hidden, memory.gates, memory.cell)
    flat = memory.hidden.reshape(count, size)
    numbers = np.empty((count, logits_count + 1), np.float32)
    for n in range(count):
        numbers[n] = weights.b_output
    add_product_transposed(sgemm, flat, weights.w_output, ONE, numbers)

    logits, value = np.ascontiguousarray(numbers[:, :logits_count]), np.ascontiguousarray(numbers[:, logits_count])
    action = np.ascontiguousarray(batch_arrays.action[:, first:last]).reshape(count, batch_arrays.action.shape[2])
    allowed = np.empty((0, 0), np.bool_)
    if batch_arrays.allowed.shape[0] > 0:
        allowed = np.ascontiguousarray(batch_arrays.allowed[:, first:last]).reshape(count, logits_count)
    log_prob, entropy = np.empty(count, np.float32), np.empty(count, np.float32)
    log_probs, probs = np.empty_like(logits), np.empty_like(logits)
    evaluate_choices(logits, allowed, sizes, action, log_prob, entropy, log_probs, probs)
    d_log_prob, d_value, d_entropy = np.empty_like(log_prob), np.empty_like(log_prob), np.empty_like(log_prob)
    means = ppo_losses(
        log_prob,
        np.ascontiguousarray(batch_arrays.log_prob[:, first:last]).reshape(count),
        np.ascontiguousarray(batch_arrays.advantage[:, first:last]).reshape(count),
        value,
        np.ascontiguousarray(batch_arrays.value[:, first:last]).reshape(count),
        np.ascontiguousarray(batch_arrays.target[:, first:last]).reshape(count),
        entropy,
        np.ascontiguousarray(batch_arrays.weight[:, first:last]).reshape(count),
        *arguments,
        d_log_prob,
        d_value,
        d_entropy,
    )
    evaluate_choices_backward(log_probs, probs, allowed, sizes, action, d_log_prob, d_entropy, logits)
    for n in range(count):
        for k in range(logits_count):
            numbers[n, k] = logits[n, k]
        numbers[n, logits_count] = d_value[n]
        for k in range(logits_count + 1):
            gradients.b_output[k] += numbers[n, k]
    add_transposed_product(sgemm, numbers, flat, ONE, gradients.w_output)
    if not value_trains_core:
        numbers[:, logits_count] = 0.0
    add_product(sgemm, numbers, weights.w_output, ZERO, memory.d_hidden.reshape(count, size))

    d_hidden0, d_cell0 = np.empty((batch, size), np.float32), np.zeros((batch, size), np.float32)
    saved = memory.hidden, memory.gates, memory.cell, memory.inputs, *state, reset
    outputs = memory.d_inputs, d_hidden0, d_cell0, gradients.w_input, gradients.w_hidden, gradients.bias
    workspace = memory.d_gates, memory.began
    rows_backward(sgemm, memory.d_hidden, *saved, weights.w_input, weights.w_hidden, *outputs, *workspace)
    if not alone:
        d_features[:, first:last] = memory.d_inputs
    return means


class LSTMRows:
    """One thread's share of rows of an LSTM with choices: from observations to gradients.

    It is made in the thread that shares rows out, so that the call itself is compiled, or torch's, and hardly takes the GIL.
    """

    def __init__(
        self,
        policy: Policy,
        torch_encoder: nn.Module,
        parameters: list[nn.Parameter],
        micro_batch: MicroBatch,
        arguments: LossArguments,
    ) -> None:
        core, head, output = policy.core, policy.head, policy.output
        assert isinstance(core, LSTM)
        assert isinstance(head, ChoiceHead)
        self.parameters, self.micro_batch, self.arguments = parameters, micro_batch, arguments
        self.torch_encoder, self.value_trains_core = torch_encoder, policy.value_trains_core
        self.encoder = array_encoder(policy.encoder)
        self.after_encoder = (core.w_input, core.w_hidden, core.bias, output.weight, output.bias)
        self.weights = Weights(*(weight.detach().numpy() for weight in self.after_encoder))
        self.sequences, self.steps = micro_batch.reset.shape
        self.choice_sizes = np.array(head.sizes, np.int64)
        choices, mask = (self.steps, self.sequences, len(head.sizes)), micro_batch.action_mask
        stored = micro_batch.log_prob, micro_batch.advantage, micro_batch.value, micro_batch.target, micro_batch.weight
        self.arrays = Arrays(
            _time_first(micro_batch.reset),
            _time_first(micro_batch.action).reshape(choices),
            ALL_ALLOWED if mask is None else _time_first(mask),
            *map(_time_first, stored),
        )
        self.state: tuple[Array, Array] = _state(micro_batch, 0), _state(micro_batch, 1)
        self.memory: Memory | None = None  # of a thread that has all sequences

    def refill(
        self,
        rows: Rows,
        advantages: Advantages,
        picked: Tensor,
        weight: npt.NDArray[np.float32],
        arguments: LossArguments,
    ) -> None:
        """Take other rows, as many, into the memory of those before. Only if the encoder is compiled."""
        refill(self.micro_batch, rows, advantages, picked, weight)
        gather_states(picked.numpy(), rows["initial_state"].numpy(), *self.state)
        self.arguments = arguments

    def __call__(self) -> tuple[Metrics, Gradients]:
        """Return metrics, and gradients of `parameters`."""
        by_parameter: dict[int, Tensor | None] = {}
        if self.encoder is None:
            means, gradients = self._with_torch_encoder(by_parameter)
        else:
            means, gradients = self._with_array_encoder(self.encoder, by_parameter)
        for parameter, gradient in zip(self.after_encoder, gradients, strict=True):
            by_parameter[id(parameter)] = torch.from_numpy(gradient)
        return as_metrics(means), tuple(by_parameter.get(id(parameter)) for parameter in self.parameters)

    def _with_array_encoder(
        self, encoder: ArrayEncoder, by_parameter: dict[int, Tensor | None]
    ) -> tuple[Array, Weights]:
        assert self.micro_batch.observation is not None
        observations = _time_first(self.micro_batch.observation)
        observations = observations.reshape(-1, *observations.shape[2:])
        features, *others = encoder.forward(observations)
        means, gradients, d_features = self._after_encoder(features)
        encoded = encoder.backward(observations, (features, *others), d_features.numpy())
        by_parameter.update(zip(map(id, encoder.parameters), map(torch.from_numpy, encoded), strict=True))
        return means, gradients

    def _with_torch_encoder(self, by_parameter: dict[int, Tensor | None]) -> tuple[Array, Weights]:
        features = self.torch_encoder(self.micro_batch.take_observation().transpose(0, 1).flatten(0, 1))
        means, gradients, d_features = self._after_encoder(features.detach().numpy())
        after_encoder = {id(weight) for weight in self.after_encoder}
        learned = [parameter for parameter in self.parameters if id(parameter) not in after_encoder]
        encoded = torch.autograd.grad(features, learned, d_features, allow_unused=True) if learned else ()
        by_parameter.update(zip(map(id, learned), encoded, strict=True))
        return means, gradients

    def _after_encoder(self, features: Floats) -> tuple[Array, Weights, Tensor]:
        """From features [T * B, H] to the losses' means, and the gradients of the weights and of the features."""
        inputs = features.reshape(self.steps, self.sequences, -1)
        d_features = torch.empty(features.shape)
        d_inputs = d_features.numpy().reshape(inputs.shape)

        def share(first: int, last: int) -> tuple[Array, Weights]:
            gradients = Weights(*map(np.zeros_like, self.weights))
            means = rows_gradients(
                SGEMM,
                first,
                last,
                inputs,
                *self.state,
                self.arrays,
                self.weights,
                self.choice_sizes,
                self.arguments,
                self.value_trains_core,
                self._memory(inputs, d_inputs, last - first),
                d_inputs,
                gradients,
            )
            return means, gradients

        # Added in the order of the sequences, so that a run is reproducible.
        (means, gradients), *others = in_threads(share, self.sequences, MIN_SEQUENCES_PER_THREAD)
        for more_means, more in others:
            means += more_means
            for gradient, addend in zip(gradients, more, strict=True):
                gradient += addend
        return means, gradients, d_features

    def _memory(self, features: Floats, d_features: Floats, count: int) -> Memory:
        """Return memory for `count` of the sequences. It is allocated by torch, whose profiler then counts it."""
        steps, sequences, size = features.shape
        block = min(steps, max(1, LSTM_BLOCK // count))

        def empty(length: int, vectors: int) -> Floats:
            return torch.empty(length, count, vectors * size).numpy()

        if count == sequences and self.memory is not None:
            return self.memory._replace(inputs=features, d_inputs=d_features)
        inputs, d_inputs = (features, d_features) if count == sequences else (empty(steps, 1),) * 2
        forward = inputs, empty(steps, 1), empty(steps, 4), empty(steps, 1)
        memory = Memory(*forward, empty(steps, 1), d_inputs, empty(block, 4), empty(block, 1))
        if count == sequences and self.encoder is not None:
            self.memory = memory._replace(inputs=NO_MEMORY, d_inputs=NO_MEMORY)  # these are new each time
        return memory


def _state(micro_batch: MicroBatch, which: int) -> Array:
    """Return the hidden state or the cell [B, H] before the first step."""
    return micro_batch.state[:, which].contiguous().numpy()


def _time_first(sequences: Tensor) -> Array:
    """[B, T, ...] -> [T, B, ...], contiguous."""
    return sequences.transpose(0, 1).contiguous().numpy()


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
    ) -> None:
        self.unroll, self.parameters, self.micro_batch = unroll, parameters, micro_batch
        self.arguments, self.autocast = arguments, autocast

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
            total, means = PPOLosses.apply(  # type: ignore[no-untyped-call]
                unrolled.log_prob.float().t(),
                batch.log_prob.t(),
                batch.advantage.t(),
                unrolled.value.float().t(),
                batch.value.t(),
                batch.target.t(),
                unrolled.entropy.float().t(),
                batch.weight.t(),
                self.arguments,
            )
            return as_metrics(means.numpy()), torch.autograd.grad(total, self.parameters, allow_unused=True)


# ---- The updater


class FastUpdater:
    """Gradients of rows, shared out among threads."""

    def __init__(self, policy: Any, *, autocast: bool) -> None:
        self.policy, self.autocast = policy, autocast
        self.parameters: list[nn.Parameter] = list(policy.parameters())
        self._network = with_compiled_parts(policy, autocast) if is_builtin(policy) else policy
        self._lstm_with_choices = is_compiled_after_encoder(policy, autocast)
        self._compiled_throughout = self._lstm_with_choices and array_encoder(policy.encoder) is not None
        self._feedforward = is_builtin(policy) and not autocast and is_compiled_feedforward(policy)
        self._cached: dict[tuple[int, int], LSTMRows] = {}  # by thread and number of rows
        self._cached_feedforward: dict[int, FeedforwardRows] = {}  # by thread
        self._adam: CompiledAdam | None = None

    def shares(self, num_rows: int, horizon: int, agents_per_row: int) -> list[tuple[int, int]]:
        """Return the ranges of rows that threads share, which may be small if everything is compiled."""
        min_rows = -(-MIN_STEPS_PER_THREAD // (horizon * agents_per_row))
        if self._feedforward:
            min_rows = -(-MIN_FEEDFORWARD_STEPS_PER_THREAD // (horizon * agents_per_row))
        elif self._compiled_throughout:
            min_rows = -(-MIN_SEQUENCES_PER_THREAD // agents_per_row)
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
        arguments = loss_arguments(coefficients, float(valid_steps))

        def make(thread: int, start: int, stop: int) -> LSTMRows | FeedforwardRows | GraphRows:
            some = slice(start, stop)
            if self._feedforward:
                return self._feedforward_of(thread).of_rows(rows, advantages, picked[some], weight[some], arguments)
            cached = self._cached.get((thread, stop - start))
            if cached is not None:
                cached.refill(rows, advantages, picked[some], weight[some], arguments)
                return cached
            share = self._share(gather_fast(rows, advantages, picked[some], weight[some]), arguments)
            if self._compiled_throughout:
                assert isinstance(share, LSTMRows)
                self._cached[thread, stop - start] = share
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
        norm = sum(map(sum_of_squares, arrays)) ** 0.5
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
        self, micro_batch: MicroBatch, arguments: LossArguments, thread: int = 0
    ) -> LSTMRows | FeedforwardRows | GraphRows:
        if self._feedforward:
            return self._feedforward_of(thread).of_micro_batch(micro_batch, arguments)
        if self._lstm_with_choices:
            return LSTMRows(self.policy, self._network.encoder, self.parameters, micro_batch, arguments)
        return GraphRows(self._network.unroll, self.parameters, micro_batch, arguments, self.autocast)

    def _run(self, shares: Iterator[Callable[[], tuple[Metrics, Gradients]]], count: int) -> list[Metrics]:
        """Run each share in a thread, and add gradients in the order of the rows, so that a run is reproducible."""
        results = []
        for metrics, gradients in one_each(shares, count):
            results.append(metrics)
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient.contiguous() if parameter.grad is None else parameter.grad.add_(gradient)
        return results

"""Rows of recurrent policies on the CPU in float32: from features to gradients in one compiled call per thread.

The call has core, output layer, head, loss, and the backward pass of all. Between two products of a small network torch
spends more time on arranging operations than on computing them, and holds the GIL meanwhile. The encoder is compiled, too, or
torch's.

T steps  B sequences, b of a thread's share  H hidden  O outputs of the head  C choices  D numbers of a vector  N = T * b
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.fast import gru, lstm
from millpond.fast.encoders import ArrayEncoder, array_encoder
from millpond.fast.gather import gather_states, refill
from millpond.fast.gemm import SGEMM
from millpond.fast.heads import (
    NO_FLOATS,
    HeadArrays,
    OutputGradients,
    TrainedSteps,
    head_arrays,
    output_gradients,
)
from millpond.fast.limits import LSTM_BLOCK, MIN_SEQUENCES_PER_THREAD
from millpond.fast.lstm import Flags, Floats
from millpond.fast.ppo_loss import LossArguments, as_metrics
from millpond.policies.cores import GRU, LSTM
from millpond.policies.policy import Policy
from millpond.rollout.micro_batch import Advantages, MicroBatch
from millpond.rollout.rows import Rows, by_row
from millpond.threads import in_threads

Array = npt.NDArray[Any]
Metrics = dict[str, Tensor]
Gradients = tuple[Tensor | None, ...]
ALL_ALLOWED = np.zeros((0, 0, 0), np.bool_)
NO_MEMORY = np.zeros((0, 0, 0), np.float32)

lstm_forward, lstm_backward = lstm.rows_forward, lstm.rows_backward
gru_forward, gru_backward = gru.rows_forward, gru.rows_backward


class Arrays(NamedTuple):
    """Stored arrays of the sequences, each [T, B, ...]. `choice` or `vector` has no columns; `allowed` [0, 0, 0] if all is.

    The last two are results, as of `TrainedSteps`; they are [0, 0] if nobody needs them.
    """

    reset: Flags
    choice: npt.NDArray[np.int32]  # [T, B, C]
    vector: Floats  # [T, B, D]
    allowed: Flags  # [T, B, O]
    log_prob: Floats
    advantage: Floats
    value: Floats
    target: Floats
    weight: Floats
    ratio: Floats
    new_value: Floats


@compiled_fast
def steps_of(arrays: Arrays, first: int, last: int) -> TrainedSteps:
    """Return the steps of the sequences first..last-1, [N, ...]."""
    count = arrays.reset.shape[0] * (last - first)
    allowed = np.empty((0, 0), np.bool_)
    if arrays.allowed.shape[0] > 0:
        allowed = np.ascontiguousarray(arrays.allowed[:, first:last]).reshape(count, arrays.allowed.shape[2])
    results = count if arrays.ratio.shape[0] > 0 else 0
    return TrainedSteps(
        np.ascontiguousarray(arrays.choice[:, first:last]).reshape(count, arrays.choice.shape[2]),
        np.ascontiguousarray(arrays.vector[:, first:last]).reshape(count, arrays.vector.shape[2]),
        allowed,
        np.ascontiguousarray(arrays.log_prob[:, first:last]).reshape(count),
        np.ascontiguousarray(arrays.advantage[:, first:last]).reshape(count),
        np.ascontiguousarray(arrays.value[:, first:last]).reshape(count),
        np.ascontiguousarray(arrays.target[:, first:last]).reshape(count),
        np.ascontiguousarray(arrays.weight[:, first:last]).reshape(count),
        np.empty(results, np.float32),
        np.empty(results, np.float32),
    )


@compiled_fast
def store_results(arrays: Arrays, first: int, last: int, steps: TrainedSteps) -> None:
    """Copy the results of the sequences first..last-1, if there are any."""
    if arrays.ratio.shape[0] > 0:
        shape = arrays.reset.shape[0], last - first
        arrays.ratio[:, first:last] = steps.ratio.reshape(shape)
        arrays.new_value[:, first:last] = steps.new_value.reshape(shape)


# ---- LSTM


class LSTMWeights(NamedTuple):
    """Weights of the core, the output layer and the head; or their gradients."""

    w_input: Floats
    w_hidden: Floats
    bias: Floats
    w_output: Floats
    b_output: Floats
    log_deviation: Floats


class LSTMMemory(NamedTuple):
    """Memory of a thread, each [T, b, ...] but the last two, which are for one block of K steps [K, b, ...]."""

    inputs: Floats
    hidden: Floats
    d_hidden: Floats
    d_inputs: Floats  # may be the memory of `inputs`
    gates: Floats
    cell: Floats
    d_gates: Floats
    began: Floats


@compiled_fast
def lstm_gradients(
    sgemm: int,
    first: int,
    last: int,
    features: Floats,
    state: Floats,
    batch_arrays: Arrays,
    weights: LSTMWeights,
    head: HeadArrays,
    arguments: LossArguments,
    value_trains_core: bool,
    memory: LSTMMemory,
    d_features: Floats,
    gradients: LSTMWeights,
) -> npt.NDArray[np.float64]:
    """Return the losses' means [5] of the sequences first..last-1; write gradients to `d_features` and `gradients`.

    state [2, B, H]. `gradients` are zero on entry, and of these sequences only. If a thread has all sequences, `memory` holds
    `features` and `d_features` themselves.
    """
    steps, batch, size = features.shape[0], last - first, state.shape[2]
    alone, count = batch == features.shape[1], steps * batch
    if not alone:
        memory.inputs[:] = features[:, first:last]
    reset = np.ascontiguousarray(batch_arrays.reset[:, first:last])
    begin = state[0, first:last], state[1, first:last]
    layer = weights.w_input, weights.w_hidden, weights.bias
    lstm_forward(sgemm, memory.inputs, *begin, reset, *layer, memory.hidden, memory.gates, memory.cell)
    trained = steps_of(batch_arrays, first, last)
    means = output_gradients(
        sgemm,
        memory.hidden.reshape(count, size),
        trained,
        weights.w_output,
        weights.b_output,
        head,
        arguments,
        value_trains_core,
        OutputGradients(gradients.w_output, gradients.b_output, gradients.log_deviation),
        memory.d_hidden.reshape(count, size),
    )
    store_results(batch_arrays, first, last, trained)
    d_hidden0, d_cell0 = np.empty((batch, size), np.float32), np.zeros((batch, size), np.float32)
    saved = memory.hidden, memory.gates, memory.cell, memory.inputs, *begin, reset
    outputs = memory.d_inputs, d_hidden0, d_cell0, gradients.w_input, gradients.w_hidden, gradients.bias
    workspace = memory.d_gates, memory.began
    lstm_backward(sgemm, memory.d_hidden, *saved, weights.w_input, weights.w_hidden, *outputs, *workspace)
    if not alone:
        d_features[:, first:last] = memory.d_inputs
    return means


# ---- GRU


class GRUWeights(NamedTuple):
    """Weights of the core, the output layer and the head; or their gradients."""

    w_input: Floats
    w_hidden: Floats
    bias: Floats
    bias_share: Floats
    w_output: Floats
    b_output: Floats
    log_deviation: Floats


class GRUMemory(NamedTuple):
    """Memory of a thread, as for an LSTM; the last three are for one block of steps."""

    inputs: Floats
    hidden: Floats
    d_hidden: Floats
    d_inputs: Floats  # may be the memory of `inputs`
    gates: Floats
    d_from_inputs: Floats  # in the forward pass, the sums from the inputs
    d_from_hidden: Floats
    began: Floats


@compiled_fast
def gru_gradients(
    sgemm: int,
    first: int,
    last: int,
    features: Floats,
    state: Floats,
    batch_arrays: Arrays,
    weights: GRUWeights,
    head: HeadArrays,
    arguments: LossArguments,
    value_trains_core: bool,
    memory: GRUMemory,
    d_features: Floats,
    gradients: GRUWeights,
) -> npt.NDArray[np.float64]:
    """`lstm_gradients` for a GRU: state [1, B, H]."""
    steps, batch, size = features.shape[0], last - first, state.shape[2]
    alone, count = batch == features.shape[1], steps * batch
    if not alone:
        memory.inputs[:] = features[:, first:last]
    reset = np.ascontiguousarray(batch_arrays.reset[:, first:last])
    begin = state[0, first:last]
    layer = weights.w_input, weights.w_hidden, weights.bias, weights.bias_share
    gru_forward(sgemm, memory.inputs, begin, reset, *layer, memory.hidden, memory.gates, memory.d_from_inputs)
    trained = steps_of(batch_arrays, first, last)
    means = output_gradients(
        sgemm,
        memory.hidden.reshape(count, size),
        trained,
        weights.w_output,
        weights.b_output,
        head,
        arguments,
        value_trains_core,
        OutputGradients(gradients.w_output, gradients.b_output, gradients.log_deviation),
        memory.d_hidden.reshape(count, size),
    )
    store_results(batch_arrays, first, last, trained)
    saved = memory.hidden, memory.gates, memory.inputs, begin, reset, weights.w_input, weights.w_hidden
    outputs = memory.d_inputs, gradients.w_input, gradients.w_hidden, gradients.bias, gradients.bias_share
    workspace = memory.d_from_inputs, memory.d_from_hidden, memory.began
    gru_backward(sgemm, memory.d_hidden, *saved, *outputs, *workspace)
    if not alone:
        d_features[:, first:last] = memory.d_inputs
    return means


# ---- A share of rows


class RecurrentRows:
    """One thread's share of rows of a recurrent policy: from observations to gradients.

    It is made in the thread that shares rows out, so that the call itself is compiled, or torch's, and hardly takes the GIL.
    """

    def __init__(
        self,
        policy: Policy,
        torch_encoder: nn.Module,
        parameters: list[nn.Parameter],
        micro_batch: MicroBatch,
        arguments: LossArguments,
        *,
        keeps_results: bool = False,
    ) -> None:
        """`keeps_results`: ratios and values of a call can be read after it."""
        core, output = policy.core, policy.output
        assert isinstance(core, LSTM | GRU)
        self.parameters, self.micro_batch, self.arguments = parameters, micro_batch, arguments
        self.torch_encoder, self.value_trains_core = torch_encoder, policy.value_trains_core
        self.encoder = array_encoder(policy.encoder)
        self.is_lstm, self.head = isinstance(core, LSTM), head_arrays(policy.head)
        biases = (core.bias,) if isinstance(core, LSTM) else (core.bias, core.bias_share)
        deviation = getattr(policy.head, "log_deviation", None)
        self.after_encoder = (core.w_input, core.w_hidden, *biases, output.weight, output.bias)
        self.after_encoder += () if deviation is None else (deviation,)
        self.weights = self._named([weight.detach().numpy() for weight in self.after_encoder])
        self.sequences, self.steps = micro_batch.reset.shape
        action, mask = _time_first(micro_batch.action).reshape(self.steps, self.sequences, -1), micro_batch.action_mask
        none: Array = np.empty((*action.shape[:2], 0), np.float32 if action.dtype == np.int32 else np.int32)
        choice, vector = (action, none) if action.dtype == np.int32 else (none, action)
        stored = micro_batch.log_prob, micro_batch.advantage, micro_batch.value, micro_batch.target, micro_batch.weight
        self.arrays = Arrays(
            _time_first(micro_batch.reset),
            choice,
            vector,
            ALL_ALLOWED if mask is None else _time_first(mask),
            *map(_time_first, stored),
            *(np.empty(micro_batch.reset.t().shape if keeps_results else (0, 0), np.float32) for _ in range(2)),
        )
        self.state: Any = micro_batch.state.transpose(0, 1).contiguous().numpy()  # [S, B, H], before the first step
        self.memory: Any = None  # of a thread that has all sequences

    def _named(self, arrays: Sequence[Array]) -> Any:
        """Return arrays like `after_encoder` by name; those of a head without a deviation are empty."""
        several = (
            [*arrays, NO_FLOATS] if len(arrays) == len(self.after_encoder) and not len(self.head.reach) else arrays
        )
        return LSTMWeights(*several) if self.is_lstm else GRUWeights(*several)

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
        gather_states(picked.numpy(), rows["initial_state"].numpy(), self.state)
        self.arguments = arguments

    def results(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return probability ratios and values [b, T, a] of the last call."""
        ratio, value = (torch.from_numpy(array).t() for array in (self.arrays.ratio, self.arrays.new_value))
        return by_row(ratio, rows), by_row(value, rows)

    def __call__(self) -> tuple[Metrics, Gradients]:
        """Return metrics, and gradients of `parameters`."""
        by_parameter: dict[int, Tensor | None] = {}
        if self.encoder is None:
            means, gradients = self._with_torch_encoder(by_parameter)
        else:
            means, gradients = self._with_array_encoder(self.encoder, by_parameter)
        for parameter, gradient in zip(self.after_encoder, gradients, strict=False):  # the last may be of no parameter
            by_parameter[id(parameter)] = torch.from_numpy(gradient)
        return as_metrics(means), tuple(by_parameter.get(id(parameter)) for parameter in self.parameters)

    def _with_array_encoder(self, encoder: ArrayEncoder, by_parameter: dict[int, Tensor | None]) -> tuple[Array, Any]:
        assert self.micro_batch.observation is not None
        observations = _time_first(self.micro_batch.observation)
        observations = observations.reshape(-1, *observations.shape[2:])
        features, *others = encoder.forward(observations)
        means, gradients, d_features = self._after_encoder(features)
        encoded = encoder.backward(observations, (features, *others), d_features.numpy())
        by_parameter.update(zip(map(id, encoder.parameters), map(torch.from_numpy, encoded), strict=True))
        return means, gradients

    def _with_torch_encoder(self, by_parameter: dict[int, Tensor | None]) -> tuple[Array, Any]:
        features = self.torch_encoder(self.micro_batch.take_observation().transpose(0, 1).flatten(0, 1))
        means, gradients, d_features = self._after_encoder(features.detach().numpy())
        after_encoder = {id(weight) for weight in self.after_encoder}
        learned = [parameter for parameter in self.parameters if id(parameter) not in after_encoder]
        encoded = torch.autograd.grad(features, learned, d_features, allow_unused=True) if learned else ()
        by_parameter.update(zip(map(id, learned), encoded, strict=True))
        return means, gradients

    def _after_encoder(self, features: Floats) -> tuple[Array, Any, Tensor]:
        """From features [T * B, H] to the losses' means, and the gradients of the weights and of the features."""
        inputs = features.reshape(self.steps, self.sequences, -1)
        d_features = torch.empty(features.shape)
        d_inputs = d_features.numpy().reshape(inputs.shape)
        kernel: Any = lstm_gradients if self.is_lstm else gru_gradients

        def share(first: int, last: int) -> tuple[Array, Any]:
            gradients = type(self.weights)(*map(np.zeros_like, self.weights))
            means = kernel(
                SGEMM,
                first,
                last,
                inputs,
                self.state,
                self.arrays,
                self.weights,
                self.head,
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

    def _memory(self, features: Floats, d_features: Floats, count: int) -> Any:
        """Return memory for `count` of the sequences. It is allocated by torch, whose profiler then counts it."""
        steps, sequences, size = features.shape
        block = min(steps, max(1, LSTM_BLOCK // count))

        def empty(length: int, vectors: int) -> Floats:
            return torch.empty(length, count, vectors * size).numpy()

        if count == sequences and self.memory is not None:
            return self.memory._replace(inputs=features, d_inputs=d_features)
        inputs, d_inputs = (features, d_features) if count == sequences else (empty(steps, 1),) * 2
        common = inputs, empty(steps, 1), empty(steps, 1), d_inputs, empty(steps, 4)
        memory: Any
        if self.is_lstm:
            memory = LSTMMemory(*common, empty(steps, 1), empty(block, 4), empty(block, 1))
        else:
            memory = GRUMemory(*common, empty(block, 3), empty(block, 3), empty(block, 1))
        if count == sequences and self.encoder is not None:
            self.memory = memory._replace(inputs=NO_MEMORY, d_inputs=NO_MEMORY)  # these are new each time
        return memory


def _time_first(sequences: Tensor) -> Array:
    """[B, T, ...] -> [T, B, ...], contiguous."""
    return sequences.transpose(0, 1).contiguous().numpy()

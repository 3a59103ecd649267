"""Policies without memory on vectors, on the CPU in float32: acting, and gradients of rows, each in one compiled call.

    features = tanh(W numbers + b)      hidden = tanh(W features + b)      outputs = W hidden + b

Networks of this kind are small: between two of their operations torch spends more time than in them. The plain version is
`millpond.policies.policy.Policy` with `core="none"`.

R rows  L = T * a steps of a row  b rows gathered  N = b * L steps  D numbers  H hidden  O outputs of the head
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.fast.activations import fast_tanh
from millpond.fast.gather import check_row
from millpond.fast.gemm import SGEMM, add_product, add_product_transposed, add_transposed_product
from millpond.fast.heads import (
    NO_FLOATS,
    ActionBuffers,
    HeadArrays,
    OutputGradients,
    TrainedSteps,
    draw_actions,
    has_compiled_head,
    head_arrays,
    output_gradients,
)
from millpond.fast.limits import FEEDFORWARD_BLOCK, MIN_OBSERVATIONS_PER_THREAD
from millpond.fast.ppo_loss import LossArguments, as_metrics
from millpond.policies.cores import Feedforward
from millpond.policies.encoders.observation import ObservationEncoder
from millpond.policies.encoders.vector import VectorEncoder
from millpond.policies.normalizer import FLOOR, Normalizer
from millpond.policies.policy import Policy
from millpond.rollout.collector import Acted
from millpond.rollout.micro_batch import Advantages, MicroBatch
from millpond.rollout.rows import Rows
from millpond.threads import in_threads, threads_for

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Metrics = dict[str, Tensor]
ONE, ZERO = np.float32(1.0), np.float32(0.0)
ALL_ALLOWED = np.zeros((0, 0), np.bool_)
ALL_ALLOWED_IN_ROWS = np.zeros((0, 0, 0), np.bool_)


class Layers(NamedTuple):
    """Weights of the three layers; or their gradients."""

    w_encoder: Floats  # [H, D]
    b_encoder: Floats
    w_core: Floats  # [H, H]
    b_core: Floats
    w_output: Floats  # [O + 1, H]
    b_output: Floats


class Scaling(NamedTuple):
    """Running statistics of a normalizer, in float32; empty arrays if there is none."""

    mean: Floats
    deviation: Floats
    clip: np.float32


class StoredSteps(NamedTuple):
    """Arrays of rows, each [R, L, ...]; `scaled` is the advantage as trained on. Some may be empty: see `TrainedSteps`."""

    numbers: Floats
    choice: npt.NDArray[np.int32]
    vector: Floats
    allowed: Flags
    alive: Flags
    log_prob: Floats
    value: Floats
    advantage: Floats
    scaled: Floats


class Workspace(NamedTuple):
    """Memory for a block of steps, each [K, H]."""

    features: Floats
    hidden: Floats
    d_hidden: Floats


@compiled_fast
def scale_numbers(numbers: Floats, scaling: Scaling, out: Floats) -> None:
    """out [N, D] = numbers, normalised if there is a normalizer. Comparisons preserve a NaN."""
    for n in range(numbers.shape[0]):
        for k in range(numbers.shape[1]):
            x = numbers[n, k]
            if len(scaling.mean):
                x = (x - scaling.mean[k]) / scaling.deviation[k]
                x = scaling.clip if x > scaling.clip else -scaling.clip if x < -scaling.clip else x
            out[n, k] = x


@compiled_fast
def layer_forward(sgemm: int, inputs: Floats, weight: Floats, bias: Floats, out: Floats) -> None:
    """out [N, H] = tanh(inputs @ weight.T + bias)"""
    for n in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[n, k] = bias[k]
    add_product_transposed(sgemm, inputs, weight, ONE, out)
    flat = out.reshape(out.size)
    for k in range(len(flat)):
        flat[k] = fast_tanh(flat[k])


@compiled_fast
def layer_backward(sgemm: int, d_out: Floats, out: Floats, inputs: Floats, d_weight: Floats, d_bias: Floats) -> None:
    """Add to the gradients of the weights. `d_out` becomes the gradient of the sums before tanh."""
    d_sums, flat = d_out.reshape(d_out.size), out.reshape(out.size)
    for k in range(len(flat)):
        d_sums[k] *= ONE - flat[k] * flat[k]
    for n in range(d_out.shape[0]):
        for k in range(d_out.shape[1]):
            d_bias[k] += d_out[n, k]
    add_transposed_product(sgemm, d_out, inputs, ONE, d_weight)


@compiled_fast
def steps_gradients(
    sgemm: int,
    numbers: Floats,
    steps: TrainedSteps,
    layers: Layers,
    head: HeadArrays,
    arguments: LossArguments,
    value_trains_core: bool,
    workspace: Workspace,
    gradients: Layers,
    d_log_deviation: Floats,
) -> npt.NDArray[np.float64]:
    """numbers [N, D] -> the losses' means [5]; adds to `gradients` and `d_log_deviation`."""
    means, block = np.zeros(5), len(workspace.hidden)
    masked = steps.allowed.shape[0] > 0
    of_output = OutputGradients(gradients.w_output, gradients.b_output, d_log_deviation)
    for start in range(0, len(numbers), block):
        stop = min(len(numbers), start + block)
        inputs, count = numbers[start:stop], stop - start
        features, hidden, d_hidden = (
            workspace.features[:count],
            workspace.hidden[:count],
            workspace.d_hidden[:count],
        )
        layer_forward(sgemm, inputs, layers.w_encoder, layers.b_encoder, features)
        layer_forward(sgemm, features, layers.w_core, layers.b_core, hidden)
        some = TrainedSteps(
            steps.choice[start:stop],
            steps.vector[start:stop],
            steps.allowed[start:stop] if masked else steps.allowed,
            steps.log_prob[start:stop],
            steps.advantage[start:stop],
            steps.value[start:stop],
            steps.target[start:stop],
            steps.weight[start:stop],
        )
        output = layers.w_output, layers.b_output
        means += output_gradients(sgemm, hidden, some, *output, head, arguments, value_trains_core, of_output, d_hidden)
        layer_backward(sgemm, d_hidden, hidden, features, gradients.w_core, gradients.b_core)
        add_product(sgemm, d_hidden, layers.w_core, ZERO, hidden)  # gradient of the features
        layer_backward(sgemm, hidden, features, inputs, gradients.w_encoder, gradients.b_encoder)
    return means


@compiled_fast
def gather_steps(
    rows: npt.NDArray[np.int64],
    weight: Floats,
    stored: StoredSteps,
    scaling: Scaling,
    numbers: Floats,
    out: TrainedSteps,
) -> None:
    """Gather the rows [b], which have importance weights [b], as steps in the order in which they are stored."""
    known, length = stored.advantage.shape  # the buffer may have more rows than have advantages
    masked = stored.allowed.shape[0] > 0
    for place in range(len(rows)):
        row = rows[place]
        check_row(row, known)
        first, last = place * length, (place + 1) * length
        scale_numbers(stored.numbers[row], scaling, numbers[first:last])
        out.choice[first:last] = stored.choice[row]
        out.vector[first:last] = stored.vector[row]
        if masked:
            out.allowed[first:last] = stored.allowed[row]
        out.log_prob[first:last] = stored.log_prob[row]
        out.advantage[first:last] = stored.scaled[row]
        out.value[first:last] = stored.value[row]
        for s in range(length):
            out.target[first + s] = stored.advantage[row, s] + stored.value[row, s]
        for s in range(length):
            out.weight[first + s] = weight[place] if stored.alive[row, s] else ZERO


@compiled_fast
def rows_gradients(
    sgemm: int,
    rows: npt.NDArray[np.int64],
    weight: Floats,
    stored: StoredSteps,
    scaling: Scaling,
    numbers: Floats,
    steps: TrainedSteps,
    layers: Layers,
    head: HeadArrays,
    arguments: LossArguments,
    value_trains_core: bool,
    workspace: Workspace,
    gradients: Layers,
    d_log_deviation: Floats,
) -> npt.NDArray[np.float64]:
    """`gather_steps` and `steps_gradients`; `numbers` and `steps` are memory for the gathered steps."""
    gather_steps(rows, weight, stored, scaling, numbers, steps)
    network = layers, head, arguments, value_trains_core
    return steps_gradients(sgemm, numbers, steps, *network, workspace, gradients, d_log_deviation)


@compiled_fast
def act_steps(
    sgemm: int,
    scaling: Scaling,
    layers: Layers,
    head: HeadArrays,
    drawn: bool,
    observation: Floats,
    allowed: Flags,
    draws: npt.NDArray[np.float64],
    noise: Floats,
    choice: npt.NDArray[np.int32],
    vector: Floats,
    log_prob: Floats,
    value: Floats,
) -> None:
    """observation [N, D] -> value [N]; and if actions are `drawn`, as by `draw_actions`, actions and log_prob [N]."""
    count, outputs, size = len(observation), layers.w_output.shape[0] - 1, len(layers.b_core)
    numbers = np.empty(observation.shape, np.float32)
    scale_numbers(observation, scaling, numbers)
    features, hidden = np.empty((count, size), np.float32), np.empty((count, size), np.float32)
    layer_forward(sgemm, numbers, layers.w_encoder, layers.b_encoder, features)
    layer_forward(sgemm, features, layers.w_core, layers.b_core, hidden)
    both = np.empty((count, outputs + 1), np.float32)
    for n in range(count):
        for k in range(outputs + 1):
            both[n, k] = layers.b_output[k]
    add_product_transposed(sgemm, hidden, layers.w_output, ONE, both)
    for n in range(count):
        value[n] = both[n, outputs]
    if drawn:
        of_head = np.ascontiguousarray(both[:, :outputs])
        draw_actions(of_head, head, allowed, draws, noise, choice, vector, log_prob)


@compiled_fast
def act_arrays(
    sgemm: int,
    mean: Floats,
    deviation: Floats,
    clip: np.float32,
    w_encoder: Floats,
    b_encoder: Floats,
    w_core: Floats,
    b_core: Floats,
    w_output: Floats,
    b_output: Floats,
    sizes: npt.NDArray[np.int64],
    log_deviation: Floats,
    centre: Floats,
    reach: Floats,
    drawn: bool,
    observation: Floats,
    allowed: Flags,
    draws: npt.NDArray[np.float64],
    noise: Floats,
    choice: npt.NDArray[np.int32],
    vector: Floats,
    log_prob: Floats,
    value: Floats,
) -> None:
    """`act_steps` with single arrays: numba recognises their types in less than half the time that it takes for tuples."""
    layers = Layers(w_encoder, b_encoder, w_core, b_core, w_output, b_output)
    head = HeadArrays(sizes, log_deviation, centre, reach)
    buffers = draws, noise, choice, vector, log_prob, value
    act_steps(sgemm, Scaling(mean, deviation, clip), layers, head, drawn, observation, allowed, *buffers)


# ---- The network's arrays


def is_compiled_feedforward(policy: Policy) -> bool:
    """True for a built-in policy without memory whose observations are plain float32, normalised or not."""
    encoder = policy.encoder
    if type(policy.core) is not Feedforward or not has_compiled_head(policy.head):  # type: ignore[arg-type]
        return False
    if (
        type(encoder) is not ObservationEncoder
        or len(encoder.encoders) != 1
        or not isinstance(encoder.norm, nn.Identity)
    ):
        return False
    part = encoder.encoders[0]
    floats = type(part) is VectorEncoder and part.floats and encoder.readers[0].stored == torch.float32
    return floats and isinstance(encoder.activation, nn.Tanh) and isinstance(policy.core.activation, nn.Tanh)


class FeedforwardArrays:
    """The arrays of a policy without memory. They share its memory, so its weights must not be replaced or moved."""

    def __init__(self, policy: Policy) -> None:
        core, part = policy.core, policy.encoder.encoders[0]
        assert isinstance(core, Feedforward)
        assert isinstance(part, VectorEncoder)
        output = policy.output
        self.parameters: list[Tensor] = [
            part.linear.weight,
            policy.encoder.bias,
            core.linear.weight,
            core.linear.bias,
            output.weight,
            output.bias,
        ]
        self.layers = Layers(*(parameter.detach().numpy() for parameter in self.parameters))
        self.head = head_arrays(policy.head)
        log_deviation = getattr(policy.head, "log_deviation", None)
        if log_deviation is not None:
            self.parameters.append(log_deviation)
        self.outputs = policy.head.outputs
        self._normalizer: Normalizer | None = part.normalizer

    def scaling(self) -> Scaling:
        """Return the current statistics of the normalizer."""
        normalizer = self._normalizer
        if normalizer is None:
            return Scaling(NO_FLOATS, NO_FLOATS, np.float32(np.inf))
        deviation = np.maximum(np.sqrt(normalizer.variance.numpy()), FLOOR)
        return Scaling(
            normalizer.mean.numpy().astype(np.float32), deviation.astype(np.float32), np.float32(normalizer.clip)
        )

    def zero_gradients(self) -> list[Array]:
        """Return zeros like `parameters`, in one block of memory."""
        flat = torch.zeros(sum(parameter.numel() for parameter in self.parameters)).numpy()
        arrays, first = [], 0
        for parameter in self.parameters:
            last = first + parameter.numel()
            arrays.append(flat[first:last].reshape(parameter.shape))
            first = last
        return arrays


# ---- Gradients of rows


class FeedforwardRows:
    """One thread's share of rows, from where they are stored to gradients. Its memory is used again for other rows."""

    def __init__(self, policy: Policy, parameters: list[nn.Parameter]) -> None:
        self.network, self.value_trains_core = FeedforwardArrays(policy), policy.value_trains_core
        order = {id(parameter): place for place, parameter in enumerate(self.network.parameters)}
        self._order = [order.get(id(parameter)) for parameter in parameters]
        self._rows: Rows | None = None
        self._stored: dict[str, Array] = {}
        self._gathered: tuple[Floats, TrainedSteps] | None = None
        self._workspace: Workspace | None = None
        self._call: Any = None

    def of_rows(
        self, rows: Rows, advantages: Advantages, picked: Tensor, weight: Floats, arguments: LossArguments
    ) -> FeedforwardRows:
        """Set the rows `picked` [b], with importance weights [b], of the next call."""
        if rows is not self._rows:
            names = ("observation", "action", "alive", "log_prob", "value")
            self._rows, self._stored = rows, {name: _steps(rows[name]) for name in names}
            self._stored["mask"] = _steps(rows["action_mask"]) if "action_mask" in rows.fields else ALL_ALLOWED_IN_ROWS
        stored = self._stored
        action = stored["action"]
        none: Array = np.empty((*action.shape[:2], 0), np.float32 if action.dtype == np.int32 else np.int32)
        choice, vector = (action, none) if action.dtype == np.int32 else (none, action)
        arrays = StoredSteps(
            stored["observation"],
            choice,
            vector,
            stored["mask"],
            *(stored[name][..., 0] for name in ("alive", "log_prob", "value")),
            *(_steps(array)[..., 0] for array in (advantages.raw, advantages.scaled)),
        )
        self._call = arrays, picked.numpy(), weight, arguments
        return self

    def of_micro_batch(self, micro_batch: MicroBatch, arguments: LossArguments) -> FeedforwardRows:
        """Set rows that are gathered already; their observations are taken."""
        taken, mask = micro_batch.take_observation(), micro_batch.action_mask
        numbers = _flat(taken).reshape(taken.shape[0] * taken.shape[1], -1)
        action = _flat(micro_batch.action).reshape(len(numbers), -1)
        none: Array = np.empty((len(numbers), 0), np.float32 if action.dtype == np.int32 else np.int32)
        names = ("log_prob", "advantage", "value", "target", "weight")
        choice, vector = (action, none) if action.dtype == np.int32 else (none, action)
        steps = TrainedSteps(
            choice,
            vector,
            ALL_ALLOWED if mask is None else _flat(mask),
            *(_flat(getattr(micro_batch, name)) for name in names),
        )
        self._call = numbers, steps, arguments
        return self

    def __call__(self) -> tuple[Metrics, tuple[Tensor | None, ...]]:
        """Return metrics, and gradients of the parameters."""
        network = self.network
        *gradients, d_log_deviation = [*network.zero_gradients(), NO_FLOATS][:7]
        layers = Layers(*gradients)
        if len(self._call) == 4:
            means = self._of_rows(layers, d_log_deviation)
        else:
            means = self._of_micro_batch(layers, d_log_deviation)
        arrays = [*map(torch.from_numpy, layers), torch.from_numpy(d_log_deviation)]
        return as_metrics(means), tuple(None if place is None else arrays[place] for place in self._order)

    def _of_rows(self, gradients: Layers, d_log_deviation: Floats) -> npt.NDArray[np.float64]:
        stored, picked, weight, arguments = self._call
        numbers, steps = self._memory(len(picked) * stored.advantage.shape[1], stored)
        return rows_gradients(
            SGEMM,
            picked,
            weight,
            stored,
            self.network.scaling(),
            numbers,
            steps,
            self.network.layers,
            self.network.head,
            arguments,
            self.value_trains_core,
            self._block(len(numbers)),
            gradients,
            d_log_deviation,
        )

    def _of_micro_batch(self, gradients: Layers, d_log_deviation: Floats) -> npt.NDArray[np.float64]:
        numbers, steps, arguments = self._call
        scaled = np.empty_like(numbers)
        scale_numbers(numbers, self.network.scaling(), scaled)
        return steps_gradients(
            SGEMM,
            scaled,
            steps,
            self.network.layers,
            self.network.head,
            arguments,
            self.value_trains_core,
            self._block(len(numbers)),
            gradients,
            d_log_deviation,
        )

    def _memory(self, count: int, stored: StoredSteps) -> tuple[Floats, TrainedSteps]:
        """Return memory for gathered steps. It is allocated by torch, whose profiler then counts it."""
        if self._gathered is None or len(self._gathered[0]) != count:
            columns = (stored.choice, stored.vector)
            masked = stored.allowed.shape[0] > 0
            choice, vector = (_empty(count, array.shape[2], array.dtype) for array in columns)
            steps = TrainedSteps(
                choice,
                vector,
                _empty(count, stored.allowed.shape[2], np.bool_) if masked else ALL_ALLOWED,
                *(torch.empty(count).numpy() for _ in range(5)),
            )
            self._gathered = _empty(count, stored.numbers.shape[2], np.float32), steps
        return self._gathered

    def _block(self, count: int) -> Workspace:
        count = min(count, FEEDFORWARD_BLOCK)
        if self._workspace is None or len(self._workspace.hidden) != count:
            size = len(self.network.layers.b_core)
            self._workspace = Workspace(*(_empty(count, size, np.float32) for _ in range(3)))
        return self._workspace


def _steps(array: Tensor) -> Array:
    """[R, T, a, ...] -> [R, T * a, n], the same memory."""
    return array.numpy().reshape(array.shape[0], array.shape[1] * array.shape[2], prod(array.shape[3:]))


def _flat(array: Tensor) -> Array:
    """[B, T, ...] with time first in memory -> [T * B, ...]"""
    return array.transpose(0, 1).flatten(0, 1).numpy()


def _empty(count: int, size: int, dtype: Any) -> Array:
    kinds = {np.dtype(np.float32): torch.float32, np.dtype(np.int32): torch.int32, np.dtype(np.bool_): torch.bool}
    return torch.empty(count, size, dtype=kinds[np.dtype(dtype)]).numpy()


# ---- Acting


class FeedforwardActor:
    """Acts for a policy without memory on vectors: one compiled call from observations to actions.

    Results are overwritten by the next call with a batch of the same size. Weights may change in place, and must not be
    replaced or moved.
    """

    def __init__(self, policy: Policy, computed: Policy) -> None:
        """`computed` is the policy with compiled parts, to evaluate it with."""
        self.policy = computed
        self._network, self._head = FeedforwardArrays(policy), policy.head
        self._scaling = self._network.scaling()
        self._buffers: dict[int, ActionBuffers] = {}

    def freeze_weights(self) -> None:
        """Read the statistics of the normalizer, which changes between collections only."""
        self._scaling = self._network.scaling()

    def act(
        self, observation: Array, state: Tensor, action_mask: Array | None, generator: torch.Generator | None
    ) -> Acted:
        """observation [B, *obs], action_mask [B, A]; contiguous. There is no state.

        Draws from `generator` as `Policy.act` does, so that both act alike.
        """
        batch = len(observation)
        buffers = self._buffers.get(batch)
        if buffers is None:
            buffers = self._buffers[batch] = ActionBuffers.allocate(self._head, batch)
        buffers.draw(generator)
        self._run(observation.reshape(batch, -1), action_mask, True, buffers)
        return Acted(buffers.action, buffers.log_prob, buffers.value)

    def value(self, observation: Array, state: Tensor) -> Tensor:
        """Return the value [B]; nothing changes."""
        batch = len(observation)
        buffers = ActionBuffers.allocate(self._head, batch)  # the results of `act` are still to be read
        self._run(observation.reshape(batch, -1), None, False, buffers)
        return torch.from_numpy(buffers.value)

    def _run(self, numbers: Array, mask: Array | None, draws: bool, buffers: ActionBuffers) -> None:
        batch = len(numbers)

        allowed = ALL_ALLOWED if mask is None else mask
        network = SGEMM, *self._scaling, *self._network.layers, *self._network.head, draws
        if batch < 2 * MIN_OBSERVATIONS_PER_THREAD or threads_for(batch, MIN_OBSERVATIONS_PER_THREAD) == 1:
            threads = torch.get_num_threads()  # `torch_threads`, without the cost of a generator
            torch.set_num_threads(1)
            try:
                act_arrays(*network, numbers, allowed, *buffers[1:-1])
            finally:
                torch.set_num_threads(threads)
            return

        def share(start: int, stop: int) -> None:
            some = slice(start, stop)
            act_arrays(*network, numbers[some], allowed[some], *(array[some] for array in buffers[1:-1]))

        in_threads(share, batch, MIN_OBSERVATIONS_PER_THREAD)

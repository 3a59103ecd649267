"""Policies without memory on vectors, on the CPU in float32: acting, and gradients of rows, each in one compiled call.

Networks of this kind are small: between two of their operations torch spends more time than in them. Here are the arrays of
a policy, and what calls the loops of `feedforward_steps` with them.

R rows  T steps of a row  a agents of a row  b rows gathered  B observations
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.fast.feedforward_steps import (
    Flags,
    Floats,
    Scaling,
    StoredSteps,
    Workspace,
    act_arrays,
    rows_gradients,
    scale_numbers,
    steps_gradients,
)
from millpond.fast.gemm import SGEMM
from millpond.fast.heads import NO_FLOATS, ActionBuffers, TrainedSteps, has_compiled_head, head_arrays, value_numbers
from millpond.fast.layers import NO_LAYERS, Layers
from millpond.fast.limits import FEEDFORWARD_BLOCK, MIN_OBSERVATIONS_PER_THREAD
from millpond.fast.ppo_loss import LossArguments, as_metrics
from millpond.policies.cores import Feedforward
from millpond.policies.encoders.observation import ObservationEncoder
from millpond.policies.encoders.vector import VectorEncoder
from millpond.policies.normalizer import FLOOR, Normalizer
from millpond.policies.policy import Critic, Policy
from millpond.rollout.collector import Acted
from millpond.rollout.micro_batch import Advantages, MicroBatch
from millpond.rollout.rows import Rows
from millpond.threads import in_threads, threads_for

Array = npt.NDArray[Any]
Metrics = dict[str, Tensor]
ALL_ALLOWED: Flags = np.zeros((0, 0), np.bool_)
ALL_ALLOWED_IN_ROWS: Flags = np.zeros((0, 0, 0), np.bool_)


# ---- The network's arrays


def is_compiled_feedforward(policy: Policy) -> bool:
    """True for a built-in policy without memory whose observations are plain float32, normalised or not."""
    networks = (policy,) if policy.critic is None else (policy, policy.critic)
    return has_compiled_head(policy.head) and all(map(_is_compiled_network, networks))  # type: ignore[arg-type]


def _is_compiled_network(network: Policy | Critic) -> bool:
    encoder, core = network.encoder, network.core
    if (
        type(core) is not Feedforward
        or type(encoder) is not ObservationEncoder
        or len(encoder.encoders) != 1
        or not isinstance(encoder.norm, nn.Identity)
    ):
        return False
    part = encoder.encoders[0]
    floats = type(part) is VectorEncoder and part.floats and encoder.readers[0].stored == torch.float32
    return floats and isinstance(encoder.activation, nn.Tanh) and isinstance(core.activation, nn.Tanh)


class FeedforwardArrays:
    """The arrays of a policy without memory. They share its memory, so its weights must not be replaced or moved."""

    def __init__(self, policy: Policy) -> None:
        self.parameters: list[Tensor] = _layers_of(policy)
        if policy.critic is not None:
            self.parameters += _layers_of(policy.critic)
        self.has_critic = policy.critic is not None
        self.layers, self.critic, _ = self.named([parameter.detach().numpy() for parameter in self.parameters])
        self.head = head_arrays(policy.head)
        log_deviation = getattr(policy.head, "log_deviation", None)
        if log_deviation is not None:
            self.parameters.append(log_deviation)
        ends = np.cumsum([parameter.numel() for parameter in self.parameters]).tolist()
        shapes = [tuple(parameter.shape) for parameter in self.parameters]
        self._places = list(zip([0, *ends[:-1]], ends, shapes, strict=True))  # of each parameter in a flat array
        # A critic's encoder has the same statistics: both are updated with the same observations.
        self._normalizer: Normalizer | None = policy.encoder.encoders[0].normalizer  # type: ignore[assignment]

    def named(self, arrays: list[Array]) -> tuple[Layers, Layers, Floats]:
        """Return arrays like `parameters` as the layers, those of the critic, and the log deviation; or empty ones."""
        networks = 2 if self.has_critic else 1
        critic = Layers(*arrays[6:12]) if self.has_critic else NO_LAYERS
        return Layers(*arrays[:6]), critic, arrays[6 * networks] if len(arrays) > 6 * networks else NO_FLOATS

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
        flat = torch.zeros(self._places[-1][1]).numpy()
        return [flat[first:last].reshape(shape) for first, last, shape in self._places]


def _layers_of(network: Policy | Critic) -> list[Tensor]:
    """Return the parameters of the three layers, in the order of `Layers`."""
    core, part, output = network.core, network.encoder.encoders[0], network.output
    assert isinstance(core, Feedforward)
    assert isinstance(part, VectorEncoder)
    encoder = part.linear.weight, network.encoder.bias
    return [*encoder, core.linear.weight, core.linear.bias, output.weight, output.bias]


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
        self._keeps_results = False  # the rows need newest ratios and values

    def of_rows(
        self, rows: Rows, advantages: Advantages, picked: Tensor, weight: Floats, arguments: LossArguments
    ) -> FeedforwardRows:
        """Set the rows `picked` [b], with importance weights [b], of the next call."""
        if rows is not self._rows:
            self._keeps_results = "ratio" in rows.fields
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
            *[NO_FLOATS] * 2,
        )
        self._call = numbers, steps, arguments
        return self

    def results(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return probability ratios and values [b, T, a] of the last call."""
        assert self._gathered is not None
        shape, steps = (-1, rows.horizon, rows.agents_per_row), self._gathered[1]
        return torch.from_numpy(steps.ratio).view(shape), torch.from_numpy(steps.new_value).view(shape)

    def __call__(self) -> tuple[Metrics, tuple[Tensor | None, ...]]:
        """Return metrics, and gradients of the parameters."""
        network = self.network
        gradients = network.zero_gradients()
        named = network.named(gradients)
        means = self._of_rows(*named) if len(self._call) == 4 else self._of_micro_batch(*named)
        arrays = [*map(torch.from_numpy, gradients)]
        return as_metrics(means), tuple(None if place is None else arrays[place] for place in self._order)

    def _of_rows(self, gradients: Layers, critic_gradients: Layers, d_log_deviation: Floats) -> npt.NDArray[np.float64]:
        stored, picked, weight, arguments = self._call
        numbers, steps = self._memory(len(picked) * stored.advantage.shape[1], stored, self._keeps_results)
        return rows_gradients(
            SGEMM,
            picked,
            weight,
            stored,
            self.network.scaling(),
            numbers,
            steps,
            self.network.layers,
            self.network.critic,
            self.network.head,
            arguments,
            self.value_trains_core,
            self._block(len(numbers)),
            gradients,
            critic_gradients,
            d_log_deviation,
        )

    def _of_micro_batch(
        self, gradients: Layers, critic_gradients: Layers, d_log_deviation: Floats
    ) -> npt.NDArray[np.float64]:
        numbers, steps, arguments = self._call
        scaled = np.empty_like(numbers)
        scale_numbers(numbers, self.network.scaling(), scaled)
        return steps_gradients(
            SGEMM,
            scaled,
            steps,
            self.network.layers,
            self.network.critic,
            self.network.head,
            arguments,
            self.value_trains_core,
            self._block(len(numbers)),
            gradients,
            critic_gradients,
            d_log_deviation,
        )

    def _memory(self, count: int, stored: StoredSteps, keeps_results: bool) -> tuple[Floats, TrainedSteps]:
        """Return memory for gathered steps. It is allocated by torch, whose profiler then counts it."""
        held = (0, 0) if self._gathered is None else (len(self._gathered[0]), len(self._gathered[1].ratio))
        if self._gathered is None or held != (count, count if keeps_results else 0):
            columns = (stored.choice, stored.vector)
            masked = stored.allowed.shape[0] > 0
            choice, vector = (_empty(count, array.shape[2], array.dtype) for array in columns)
            steps = TrainedSteps(
                choice,
                vector,
                _empty(count, stored.allowed.shape[2], np.bool_) if masked else ALL_ALLOWED,
                *(torch.empty(count).numpy() for _ in range(5)),
                *(torch.empty(count if keeps_results else 0).numpy() for _ in range(2)),
            )
            self._gathered = _empty(count, stored.numbers.shape[2], np.float32), steps
        return self._gathered

    def _block(self, count: int) -> Workspace:
        count = min(count, FEEDFORWARD_BLOCK)
        if self._workspace is None or len(self._workspace.hidden) != count:
            size = len(self.network.layers.b_core)
            of_critic = count if self.network.has_critic else 0
            counts = count, count, count, of_critic, of_critic
            self._workspace = Workspace(*(_empty(count, size, np.float32) for count in counts))
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
        self._scaling, self._value_scale = self._network.scaling(), value_numbers(policy)
        self._buffers: dict[int, ActionBuffers] = {}

    def freeze_weights(self) -> None:
        """Read the statistics of observations and returns, which change between collections only."""
        self._scaling, self._value_scale = self._network.scaling(), value_numbers(self.policy)

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
        layers = *self._network.layers, *self._network.critic
        network = SGEMM, *self._scaling, *layers, *self._value_scale, *self._network.head, draws
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

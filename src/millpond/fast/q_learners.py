"""The compiled updates of DQN and PQN, and values of PQN agents while they collect: what `learners/` calls.

Everything works in the memory of the plain learners: their flat parameters, gradients and optimiser state are always current.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.fast.barrier import new_barrier
from millpond.fast.gemm import SGEMM
from millpond.fast.network import on_cpu_in_float32
from millpond.fast.products import calls_no_blas
from millpond.fast.q_network import QActivations, QLayout, q_values
from millpond.fast.q_updates import (
    METRICS,
    DQNBatches,
    FlatOptimizer,
    PQNCollection,
    QShared,
    dqn_gradient,
    train_dqn,
    train_pqn,
)
from millpond.fast.simd import WIDTH
from millpond.fast.small_images import EPSILON, SIDE
from millpond.learners.dqn import DQN, GoalBatch, TransitionBatch
from millpond.learners.flat_parameters import BETA1, BETA2, FlatParameters, RowOptimizer, step_sizes
from millpond.learners.pqn import AgentGroup
from millpond.learners.q_network import QNetwork
from millpond.policies.encoders.observation import ObservationEncoder
from millpond.policies.encoders.pixels import ChannelNorm, PixelEncoder
from millpond.threads import in_threads, one_each, threads_for

Floats = npt.NDArray[np.float32]
MIN_ROWS_PER_THREAD = 16
DTYPES = (torch.uint8, torch.bool, torch.float32)
NOTHING: Floats = np.empty(0, np.float32)


def pixel_encoder(network: nn.Module) -> PixelEncoder | None:
    """Return the encoder of a network that `q_network` computes; None if it is another network."""
    if (
        type(network) is not QNetwork
        or network.core is not None
        or network.quantiles > 1
        or not on_cpu_in_float32(network)
    ):
        return None
    encoder = network.encoder
    if type(encoder) is not ObservationEncoder or len(encoder.encoders) != 1 or not encoder.readers[0].whole:
        return None
    (pixels,) = encoder.encoders
    if type(pixels) is not PixelEncoder or type(network.hidden) is not nn.Identity:
        return None
    kinds = [type(layer) for layer in pixels.convolutions]
    if kinds != [nn.Conv2d, ChannelNorm, nn.ReLU, nn.Flatten] or encoder.readers[0].stored not in DTYPES:
        return None
    convolution, norm = pixels.convolutions[0], encoder.norm
    assert isinstance(convolution, nn.Conv2d)
    fits = convolution.kernel_size == (SIDE, SIDE) and convolution.stride == (1, 1) and convolution.padding == (0, 0)
    widths = (convolution.out_channels, network.output.in_features)
    if not fits or any(width % WIDTH for width in widths) or not isinstance(norm, nn.LayerNorm):
        return None
    inner = pixels.convolutions[1]
    assert isinstance(inner, ChannelNorm)
    return pixels if {norm.eps, inner.norm.eps} == {float(f"{EPSILON:g}")} else None


def layout_of(network: QNetwork, pixels: PixelEncoder, parameters: FlatParameters) -> QLayout:
    """Return sizes and offsets of a network that `pixel_encoder` accepts."""
    channels, height, width = pixels.image
    offset, part = parameters.offsets, "encoder.encoders.0"
    convolution = pixels.convolutions[0]
    assert isinstance(convolution, nn.Conv2d)
    return QLayout(
        channels,
        height,
        width,
        convolution.out_channels,
        network.output.in_features,
        network.actions,
        offset["encoder.bias"],
        offset[f"{part}.convolutions.0.weight"],
        offset[f"{part}.convolutions.0.bias"],
        offset[f"{part}.convolutions.1.norm.weight"],
        offset[f"{part}.convolutions.1.norm.bias"],
        offset[f"{part}.linear.weight"],
        offset["encoder.norm.weight"],
        offset["encoder.norm.bias"],
        offset["output.weight"],
        offset["output.bias"],
    )


class QMemory:
    """Memory of updates of one network, allocated when first used and again if a batch or the number of threads changes."""

    def __init__(self, layout: QLayout) -> None:
        self.layout = layout
        self._sizes = (0, 0)
        self._shared: QShared | None = None

    def for_batch(self, batch: int, threads: int) -> QShared:
        if self._shared is None or self._sizes != (batch, threads):
            self._sizes, self._shared = (batch, threads), self._allocate(batch, threads)
        self._shared.barrier[0] = 0
        return self._shared

    def _allocate(self, batch: int, threads: int) -> QShared:
        layout = self.layout
        places = (layout.height - SIDE + 1) * (layout.width - SIDE + 1)
        taps, wide = layout.channels * SIDE * SIDE, layout.filters * places
        small = taps * layout.filters + 3 * layout.filters + 3 * layout.hidden + layout.actions * (layout.hidden + 1)

        def empty(*shape: int) -> Floats:
            return torch.empty(shape).numpy()  # aligned, so that BLAS gives the same results in every process

        def activations() -> QActivations:
            widths = (wide, places, wide, layout.hidden, 1, layout.hidden, layout.actions)
            return QActivations(*(empty(batch, width) for width in widths))

        return QShared(
            new_barrier(),
            np.zeros((threads, WIDTH), np.float64),
            empty(threads, -(-small // 64) * 64),
            empty(batch),
            empty(batch, layout.hidden),
            empty(batch, wide),
            np.empty(batch, np.int64),
            activations(),
            activations(),
        )


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate along the first axis; without a copy if they lie side by side, as batches of `Pond.sample_many` do."""
    first = tensors[0]
    if len(tensors) == 1:
        return first
    start, step = first.data_ptr(), first.numel() * first.element_size()
    for number, tensor in enumerate(tensors):
        adjacent = tensor.data_ptr() == start + number * step
        if not adjacent or tensor.shape != first.shape or not tensor.is_contiguous():
            return torch.cat(list(tensors))
    if first.untyped_storage().data_ptr() != tensors[-1].untyped_storage().data_ptr():  # neighbours by chance
        return torch.cat(list(tensors))
    return first.as_strided((len(tensors) * len(first), *first.shape[1:]), first.stride())


def run_together(function: Callable[..., int], threads: int) -> int:
    """Call function(thread, threads) in each of `threads` threads at once; return the result, which is the same in all."""
    return one_each((partial(function, thread, threads) for thread in range(threads)), threads)[0]


def optimizer_of(
    parameters: FlatParameters,
    optimizer: RowOptimizer,
    row: int,
    rates: Sequence[float],
    max_norm: float,
    target: Floats = NOTHING,
    taus: Sequence[float] | None = None,
) -> FlatOptimizer:
    """Describe the next `len(rates)` updates of one row; `taus`: of the target, one for each update."""
    steps = step_sizes(optimizer.updates[row], rates, rectified=optimizer.rectified)
    return FlatOptimizer(
        parameters.data[row].numpy(),
        parameters.grad[row].numpy(),
        optimizer.first[row].numpy(),
        optimizer.second[row].numpy(),
        target,
        BETA1,
        BETA2,
        float(max_norm),
        np.array([step.rate for step in steps], np.float32),
        np.array([-1.0 if step.epsilon is None else step.epsilon for step in steps], np.float32),
        np.zeros(len(rates), np.float32) if taus is None else np.array(taus, np.float32),
        np.array([1 - rate * optimizer.weight_decay for rate in rates], np.float32),
    )


class CompiledDQN:
    """Gradients and whole updates of a `DQN`, which calls them."""

    def __init__(self, dqn: DQN, pixels: PixelEncoder) -> None:
        self.dqn, self.scale = dqn, np.float32(pixels.scale)
        self.layout = layout_of(dqn.network, pixels, dqn.online)
        self.memory, self.values_memory = QMemory(self.layout), QMemory(self.layout)
        self.dtype = dqn.network.encoder.readers[0].stored

    def _transitions(self, batches: Sequence[TransitionBatch | GoalBatch], rewards: Sequence[Tensor]) -> DQNBatches:
        def frames(observations: list[Tensor]) -> npt.NDArray[Any]:
            return joined(observations).flatten(1).to(self.dtype).contiguous().numpy()

        def numbers(tensors: Sequence[Tensor], dtype: torch.dtype) -> npt.NDArray[Any]:
            return joined(tensors).reshape(-1).to(dtype).contiguous().numpy()

        whole = [batch for batch in batches if not isinstance(batch, GoalBatch)]
        observed = frames([batch.observation for batch in batches])
        none = np.empty(0, np.float32)
        return DQNBatches(
            observed,
            frames([batch.next_observation for batch in whole]) if whole else observed[:0],
            numbers([batch.action for batch in batches], torch.int64),
            numbers(rewards, torch.float32),
            numbers([batch.discount for batch in whole], torch.float32) if whole else none,
            self._masks([batch.next_action_mask for batch in whole]),
        )

    def _masks(self, masks: Sequence[Tensor | None]) -> npt.NDArray[np.bool_]:
        """Return the masks of next actions of all batches [U * B, A]; without rows if there are none."""
        found = [mask for mask in masks if mask is not None]
        if not found:
            return np.zeros((0, self.layout.actions), np.bool_)
        return joined(found).contiguous().numpy()

    def gradient(self, batch: TransitionBatch | GoalBatch, reward: Tensor, parts: int) -> Tensor:
        """Write the gradient of one update into the learner's; return loss and mean Q [2], both divided by `parts`."""
        dqn, size = self.dqn, len(reward)
        threads = threads_for(size, MIN_ROWS_PER_THREAD)
        shared, transitions = self.memory.for_batch(size, threads), self._transitions([batch], [reward])

        def run(thread: int, threads: int) -> int:
            dqn_gradient(
                SGEMM,
                self.layout,
                thread,
                threads,
                shared,
                dqn.online.data[0].numpy(),
                dqn.target_parameters.data[0].numpy(),
                transitions,
                self.scale,
                size,
                0,
                dqn.config.double,
                dqn.config.loss == "huber",
                parts,
                dqn.online.grad[0].numpy(),
            )
            return 0

        run_together(run, threads)
        return torch.from_numpy(shared.sums[:, :2].sum(0)).float()

    def updates(
        self, batches: Sequence[TransitionBatch | GoalBatch], rewards: Sequence[Tensor]
    ) -> list[dict[str, float]]:
        """Take one gradient step per batch, all of one size; return metrics of each.

        There are none after an update whose metrics are not finite: nothing could be learned from it.
        """
        dqn, size, config = self.dqn, len(rewards[0]), self.dqn.config
        threads = threads_for(size, MIN_ROWS_PER_THREAD)
        shared, transitions = self.memory.for_batch(size, threads), self._transitions(batches, rewards)
        target = dqn.target_parameters.data[0].numpy()
        taus = [dqn.target_step(dqn.updates + k + 1) for k in range(len(batches))]
        rates = [dqn.learning_rate(dqn.updates + k) for k in range(len(batches))]
        optimizer = optimizer_of(dqn.online, dqn.optimizer, 0, rates, config.max_grad_norm, target, taus)
        metrics = np.full((len(batches), len(METRICS)), np.nan)

        def run(thread: int, threads: int) -> int:
            return train_dqn(
                SGEMM,
                self.layout,
                thread,
                threads,
                shared,
                transitions,
                self.scale,
                size,
                config.double,
                config.loss == "huber",
                optimizer,
                target,
                metrics,
            )

        done = run_together(run, threads)
        dqn.updates += done
        dqn.optimizer.updates[0] += done
        return [dict(zip(METRICS, row, strict=True)) for row in metrics[:done].astype(np.float32).tolist()]

    def values(self, observation: Tensor, *, target: bool) -> Tensor:
        """Return Q [N, actions] of the online network, or of the target."""
        parameters = self.dqn.target_parameters if target else self.dqn.online
        frames = observation.flatten(1).to(self.dtype).contiguous().numpy()
        return values_of(self.layout, self.values_memory, parameters.data[0].numpy(), frames, self.scale)


def values_of(layout: QLayout, memory: QMemory, row: Floats, frames: npt.NDArray[Any], scale: np.float32) -> Tensor:
    """Return Q [N, actions] of the network with parameters `row` for frames [N, pixels]."""
    count = len(frames)
    threads = threads_for(count, MIN_ROWS_PER_THREAD)
    out = memory.for_batch(count, threads).other

    def run(first: int, last: int) -> None:
        q_values(SGEMM, layout, row, frames, scale, first, last, out)

    if threads == 1 and calls_no_blas(count, layout.hidden):
        run(0, count)  # then there are no threads of BLAS to limit, which takes as long as a few rows
    else:
        in_threads(run, count, MIN_ROWS_PER_THREAD)
    return torch.from_numpy(out.q.copy())


class CompiledPQN:
    """Q-values and updates of an `AgentGroup`, which calls them: each agent in a thread, or one agent in all threads."""

    def __init__(self, group: AgentGroup, pixels: PixelEncoder) -> None:
        self.group, self.scale = group, np.float32(pixels.scale)
        self.layout = layout_of(group.networks[0], pixels, group.parameters)
        self.memory = [QMemory(self.layout) for _ in group.networks]
        self.values_memory = QMemory(self.layout)

    def learn(self, goals: Tensor, places: Tensor) -> Tensor:
        """Update agent i on places[i] [U, B] of its collection, with goals[i] [T, E]; return mean metrics [A, 3]."""
        group = self.group
        agents, updates, size = places.shape
        metrics = np.full((agents, updates, len(METRICS)), np.nan)
        # One thread per agent needs no barrier; it is used if more than half of the threads get an agent.
        every_agent_alone = threads_for(agents, 1) * 2 > threads_for(size * agents, MIN_ROWS_PER_THREAD)

        def work(agent: int, threads: int) -> Callable[[int, int], int]:
            storage = group.storage
            collected = PQNCollection(
                storage.observation[agent].reshape(storage.steps * storage.envs, -1).numpy(),
                storage.action[agent].reshape(-1).numpy(),
                goals[agent].reshape(-1).numpy(),
                storage.lost[agent].reshape(-1).numpy(),
                places[agent].reshape(-1).numpy(),
            )
            rates = [group.learning_rate(agent, group.updates[agent] + k) for k in range(updates)]
            optimizer = optimizer_of(group.parameters, group.optimizer, agent, rates, group.config.max_grad_norm)
            shared = self.memory[agent].for_batch(size, threads)

            def run(thread: int, threads: int) -> int:
                return train_pqn(
                    SGEMM,
                    self.layout,
                    thread,
                    threads,
                    shared,
                    collected,
                    self.scale,
                    size,
                    optimizer,
                    metrics[agent],
                )

            return run

        if every_agent_alone:
            runs = [work(agent, 1) for agent in range(agents)]
            in_threads(lambda first, last: [runs[agent](0, 1) for agent in range(first, last)], agents, 1)
        else:
            threads = threads_for(size, MIN_ROWS_PER_THREAD)
            for agent in range(agents):
                run_together(work(agent, threads), threads)
        group.updates = [count + updates for count in group.updates]
        group.optimizer.updates = [count + updates for count in group.optimizer.updates]
        return torch.from_numpy(metrics.mean(1)).float()

    def values(self, agents: slice, observation: Tensor) -> Tensor:
        """Return Q [a, N, actions] of some agents for observation [a, N, *obs]."""
        numbers = range(self.group.agents)[agents]
        frames, data = observation.reshape(*observation.shape[:2], -1).numpy(), self.group.parameters.data
        return torch.stack(
            [
                values_of(self.layout, self.values_memory, data[agent].numpy(), frames[place], self.scale)
                for place, agent in enumerate(numbers)
            ]
        )

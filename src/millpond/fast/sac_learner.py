"""The compiled updates of SAC: what `learners/` calls.

Everything works in the memory of the plain learner: its flat parameters, gradients and optimiser state are always current.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.fast.barrier import new_barrier
from millpond.fast.gemm import SGEMM
from millpond.fast.mlp import MLPLayout, MLPMemory, mlp_forward
from millpond.fast.q_learners import MIN_ROWS_PER_THREAD, joined, run_together
from millpond.fast.sac import METRICS, AdamState, SACBatches, SACMemory, SACSettings, squash, train_sac
from millpond.fast.simd import WIDTH
from millpond.learners.dqn import TransitionBatch
from millpond.learners.flat_parameters import BETA1, BETA2, FlatParameters, RowOptimizer, step_sizes
from millpond.learners.sac import LAYERS, LOG_DEVIATION, SAC, SACActor
from millpond.threads import threads_for, torch_threads

Floats = npt.NDArray[np.float32]


def is_compiled(sac: SAC) -> bool:
    """True if there are compiled updates for the networks of this learner."""
    hidden = sac.policy.shapes["layers.2.weight"][0]
    return sac.device.type == "cpu" and type(sac.actor) is SACActor and hidden % WIDTH == 0


def layout_of_mlp(parameters: FlatParameters, prefix: str) -> MLPLayout:
    """Return sizes and offsets of an `mlp`."""
    first, _, last = (parameters.shapes[f"{prefix}{layer}.weight"] for layer in LAYERS)
    offsets = [parameters.offsets[f"{prefix}{layer}.{kind}"] for layer in LAYERS for kind in ("weight", "bias")]
    return MLPLayout(first[1], first[0], last[0], *offsets)


def _flat_arrays(optimizer: RowOptimizer) -> tuple[Floats, Floats, Floats, Floats]:
    """Return parameters, gradients and both moments as flat arrays of the same memory."""

    def flat(tensor: Tensor) -> Floats:
        return tensor.view(-1).numpy()

    return flat(optimizer.data), flat(optimizer.grad), flat(optimizer.first), flat(optimizer.second)


class CompiledSAC:
    """Actions and whole updates of a `SAC`, which calls them."""

    def __init__(self, sac: SAC) -> None:
        self.sac = sac
        self.actor, self.critic = layout_of_mlp(sac.policy, "layers."), layout_of_mlp(sac.critics, "")
        self.settings = SACSettings(
            sac.actor.centre.numpy(),
            sac.actor.reach.numpy(),
            np.float32(LOG_DEVIATION[0]),
            np.float32(LOG_DEVIATION[1]),
            sac.target_entropy,
            np.float32(sac.target_tau),
            BETA1,
            BETA2,
        )
        self._sizes = (0, 0)
        self._memory: SACMemory | None = None
        self._optimizers = {name: _flat_arrays(optimizer) for name, optimizer in sac.optimizers.items()}

    def act(self, observation: Tensor, *, deterministic: bool) -> Tensor:
        """Return actions [B, D], drawn from the learner's generator as `SACActor.act` does."""
        batch, size, hidden = len(observation), len(self.settings.reach), self.actor.hidden
        noise = torch.zeros(batch, size)
        if not deterministic:
            noise.normal_(generator=self.sac.generator)
        widths = (hidden, hidden, 2 * size, 0, 0)
        memory = MLPMemory(*(np.empty((batch, width), np.float32) for width in widths))
        numbers = observation.reshape(batch, -1).float().contiguous().numpy()
        action, log_prob = np.empty((batch, size), np.float32), np.empty(batch, np.float32)
        with torch_threads(1):
            mlp_forward(SGEMM, self.actor, self.sac.policy.data[0].numpy(), numbers, 0, batch, memory)
        squash(self.settings, memory.output, noise.numpy(), 0, batch, action, log_prob)
        return torch.from_numpy(action)

    def updates(self, batches: Sequence[TransitionBatch], rewards: Sequence[Tensor]) -> list[dict[str, float]]:
        """Take one gradient step per batch, all of one size; return metrics of each, up to one that is not finite."""
        sac, size = self.sac, len(rewards[0])
        threads = threads_for(size, MIN_ROWS_PER_THREAD)
        memory, transitions = self._memory_for(size, threads), self._transitions(batches, rewards)
        metrics = np.full((len(batches), len(METRICS)), np.nan)
        targets = sac.target_parameters.data.view(-1).numpy()
        count = len(batches)
        states = self._adam_state("policy", count), self._adam_state("critics", count), self._adam_state("alpha", count)

        def run(thread: int, threads: int) -> int:
            return train_sac(
                SGEMM,
                self.actor,
                self.critic,
                thread,
                threads,
                memory,
                transitions,
                size,
                *states,
                targets,
                self.settings,
                metrics,
            )

        done = run_together(run, threads)
        sac.updates += done
        for optimizer in sac.optimizers.values():
            optimizer.updates = [updates + done for updates in optimizer.updates]
        return [dict(zip(METRICS, row, strict=True)) for row in metrics[:done].astype(np.float32).tolist()]

    def _adam_state(self, name: str, count: int) -> AdamState:
        """Describe the next `count` steps of an optimiser whose rows have equally many behind them."""
        updates = self.sac.optimizers[name].updates[0]
        steps = step_sizes(updates, [self.sac.learning_rate] * count, rectified=False)
        return AdamState(
            *self._optimizers[name],
            np.array([each.rate for each in steps], np.float32),
            np.array([each.epsilon for each in steps], np.float32),
        )

    def _transitions(self, batches: Sequence[TransitionBatch], rewards: Sequence[Tensor]) -> SACBatches:
        def rows(tensors: Sequence[Tensor]) -> Floats:
            return joined([tensor.reshape(len(tensor), -1) for tensor in tensors]).float().contiguous().numpy()

        def numbers(tensors: Sequence[Tensor]) -> Floats:
            return rows(tensors).reshape(-1)

        # Drawn in the order of the plain learner: for each batch next actions first.
        noise = torch.empty(2, len(batches), len(rewards[0]), len(self.settings.reach))
        for number in range(len(batches)):
            for which in range(2):
                noise[which, number].normal_(generator=self.sac.generator)
        drawn = noise.view(2, -1, len(self.settings.reach)).numpy()
        return SACBatches(
            rows([batch.observation for batch in batches]),
            rows([batch.next_observation for batch in batches]),
            rows([batch.action for batch in batches]),
            numbers(rewards),
            numbers([batch.discount for batch in batches]),
            drawn[0],
            drawn[1],
        )

    def _memory_for(self, batch: int, threads: int) -> SACMemory:
        if self._memory is None or self._sizes != (batch, threads):
            self._sizes, self._memory = (batch, threads), self._allocate(batch, threads)
        self._memory.barrier[0] = 0
        self._memory.group_barriers[:, 0] = 0
        return self._memory

    def _allocate(self, batch: int, threads: int) -> SACMemory:
        inputs, actions = self.critic.inputs, self.actor.outputs // 2

        def empty(*shape: int) -> Floats:
            return torch.empty(shape).numpy()  # aligned, so that BLAS gives the same results in every process

        def network(layout: MLPLayout) -> MLPMemory:
            hidden = layout.hidden
            return MLPMemory(*(empty(batch, width) for width in (hidden, hidden, layout.outputs, hidden, hidden)))

        return SACMemory(
            new_barrier(),
            np.stack([new_barrier(), new_barrier()]),
            np.zeros((threads, WIDTH)),
            empty(batch, inputs),
            empty(batch, inputs),
            empty(batch, inputs),
            network(self.actor),
            network(self.actor),
            network(self.critic),
            network(self.critic),
            empty(2, batch),
            empty(2, batch),
            empty(batch),
            empty(batch),
            empty(batch, actions),
            empty(batch, 2 * actions),
            np.empty((2, batch), np.int64),
        )

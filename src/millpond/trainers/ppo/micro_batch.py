"""What a minibatch, or a thread's share of one, is trained on.

R rows   T horizon   a agents of a row   b rows that were picked
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.rollout.picking import Learned, Stored, copy_time_first, pick_learned, pick_sequences, words
from millpond.rollout.rows import Rows, resets

SEEN = ("observation", "action", "action_mask", "initial_state")
STORED = ("terminated", "truncated", "alive", "log_prob", "value")


@dataclass(frozen=True)
class Estimate:
    """Advantages of an iteration's rows, raw and as they are trained on."""

    advantage: Tensor  # [R, T, a], raw: V + A is the value's target
    scaled: Tensor  # [R, T, a], normalised over the rows trained, where the config says so
    priority: npt.NDArray[np.float64]  # [R]: the sum of |A| over a row
    explained_variance: Tensor
    living: Tensor  # [R]: the steps of a row at which its agents were alive


@dataclass(frozen=True)
class Coefficients:
    """What the loss is weighed with, at this point of the run."""

    clip_coef: float
    vf_clip_coef: float | None
    vf_coef: float
    ent_coef: float
    max_grad_norm: float


@dataclass(frozen=True)
class Part:
    """Sequences of some rows, [b * a, T, ...] with time first in memory, and what they are to learn."""

    batch: dict[str, Tensor]  # observation, action, and action_mask where there is any
    state: Tensor  # [b * a, S, H], that of the first step
    reset: Tensor
    log_prob: Tensor  # when it was collected, and so is `value`
    value: Tensor
    advantage: Tensor
    target: Tensor
    weight: Tensor  # 0 where the agent was not alive, else the row's importance weight

    def some(self, at: slice) -> Part:
        """Of these sequences only, again with time first in memory; with a batch of its own."""

        def pick(array: Tensor) -> Tensor:
            return array[at].transpose(0, 1).contiguous().transpose(0, 1)

        others = self.reset, self.log_prob, self.value, self.advantage, self.target, self.weight
        batch = {name: pick(array) for name, array in self.batch.items()}
        return Part(batch, self.state[at], *map(pick, others))

    def refill(self, rows: Rows, estimate: Estimate, picked: Tensor, weight: npt.NDArray[np.float32]) -> None:
        """Other rows, as many, into the same memory; all but `state`. On the CPU, for a part that `of` made."""
        chosen = picked.numpy()
        for name, array in self.batch.items():
            by_row = array.transpose(0, 1).numpy().reshape(rows.horizon, len(chosen), -1)
            copy_time_first(words(rows[name].numpy()), chosen, words(by_row))
        others = self.reset, self.log_prob, self.value, self.advantage, self.target, self.weight
        pick_learned(chosen, weight, _stored(rows, estimate), Learned(*(array.t().numpy() for array in others)))

    def take_observations(self) -> Tensor:
        """Once only: what encoders need of them they keep, and no more should be in memory on the way back."""
        return self.batch.pop("observation")

    @staticmethod
    def of(
        rows: Rows,
        estimate: Estimate,
        picked: Tensor,
        weight: npt.NDArray[np.float32],
        device: torch.device,
    ) -> Part:
        """Of the rows `picked` [b] with importance weights [b]."""
        names = [name for name in SEEN if name in rows.fields]
        batch = rows.sequences(names, picked, device)
        state = batch.pop("initial_state")
        on_cpu = rows.device.type == device.type == "cpu"
        learned = (_learned if on_cpu else learned_in_torch)(rows, estimate, picked, weight, device)
        return Part(batch, state, *learned)


def _learned(
    rows: Rows, estimate: Estimate, picked: Tensor, weight: npt.NDArray[np.float32], device: torch.device
) -> list[Tensor]:
    """The fields of a Part from `reset` on, in one compiled pass."""
    shape = rows.horizon, len(picked) * rows.agents_per_row
    reset, *others = torch.empty(shape, dtype=torch.bool), *(torch.empty(shape) for _ in range(5))
    out = Learned(reset.numpy(), *(other.numpy() for other in others))
    pick_learned(picked.numpy(), weight, _stored(rows, estimate), out)
    return [found.t() for found in (reset, *others)]


def _stored(rows: Rows, estimate: Estimate) -> Stored:
    arrays = *(rows[name] for name in STORED), estimate.advantage, estimate.scaled
    return Stored(*(array.numpy() for array in arrays))


def learned_in_torch(
    rows: Rows, estimate: Estimate, picked: Tensor, weight: npt.NDArray[np.float32], device: torch.device
) -> list[Tensor]:
    """The same on any device."""
    batch, chosen = rows.sequences(STORED, picked, device), picked.to(rows.device)
    raw, scaled = (pick_sequences(array, chosen, device) for array in (estimate.advantage, estimate.scaled))
    of_row = torch.from_numpy(weight).to(device).repeat_interleave(rows.agents_per_row)
    return [
        resets(batch["terminated"], batch["truncated"]),
        batch["log_prob"],
        batch["value"],
        scaled,
        raw + batch["value"],
        (of_row * batch["alive"].t()).t(),
    ]

"""What a minibatch, or a lane's share of one, is trained on.

R rows   T horizon   a agents of a row   b rows that were picked
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.rollout.rows import Rows, pick_sequences, resets

TRAINED = ("observation", "action", "terminated", "truncated", "alive", "log_prob", "value")


@dataclass(frozen=True)
class Estimate:
    """Advantages of an iteration's rows, raw and as they are trained on."""

    advantage: Tensor  # [R, T, a], raw: V + A is the value's target
    scaled: Tensor  # [R, T, a], normalised over the rows trained, where the config says so
    priority: np.ndarray[Any, np.dtype[np.float64]]  # [R]: the sum of |A| over a row
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

    batch: dict[str, Tensor]
    state: Tensor  # [b * a, S, H], that of the first step
    reset: Tensor
    advantage: Tensor
    target: Tensor
    weight: Tensor  # 0 where the agent was not alive, else the row's importance weight

    def some(self, at: slice) -> Part:
        """Of these sequences only."""
        batch = {name: array[at] for name, array in self.batch.items()}
        others = self.state, self.reset, self.advantage, self.target, self.weight
        return Part(batch, *(array[at] for array in others))

    def take_observations(self) -> Tensor:
        """Once only: what encoders need of them they keep, and no more should be in memory on the way back."""
        return self.batch.pop("observation")

    @staticmethod
    def of(
        rows: Rows,
        estimate: Estimate,
        picked: Tensor,
        weight: np.ndarray[Any, np.dtype[np.float32]],
        device: torch.device,
    ) -> Part:
        """Of the rows `picked` [b] with importance weights [b]."""
        names = [*TRAINED, *(name for name in ("initial_state", "action_mask") if name in rows.fields)]
        batch = rows.sequences(names, picked, device)
        chosen = picked.to(rows.device)
        advantage, raw = (pick_sequences(array, chosen, device) for array in (estimate.scaled, estimate.advantage))
        alive = batch["alive"]
        of_row = torch.from_numpy(weight).to(device).repeat_interleave(rows.agents_per_row)
        state = batch.get("initial_state")
        return Part(
            batch,
            torch.zeros((len(alive), 0, 0), device=device) if state is None else state,
            resets(batch["terminated"], batch["truncated"]),
            advantage,
            raw + batch["value"],
            (of_row * alive.t()).t(),
        )

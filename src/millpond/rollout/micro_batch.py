"""Rows gathered for training: a minibatch, or a share of one.

R rows   T horizon   a agents of a row   b rows gathered   B = b * a sequences
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.rollout.rows import Rows, as_sequences, resets

GATHERED = (
    "observation",
    "action",
    "action_mask",
    "initial_state",
    "terminated",
    "truncated",
    "alive",
    "log_prob",
    "value",
)


@dataclass(frozen=True)
class Advantages:
    """Advantages of an iteration's rows."""

    raw: Tensor  # [R, T, a]; V + A is the target of the value
    scaled: Tensor  # [R, T, a], as trained on: normalised over these rows, if the config says so, else `raw`
    priority: npt.NDArray[np.float64] | None  # [R]: the sum of |A| over a row; None if rows are not drawn by it
    explained_variance: Tensor
    valid_steps: Tensor  # [R]: agent steps of a row at which the agent was alive
    per_minibatch: bool = False  # normalise over each minibatch when it is trained


@dataclass
class MicroBatch:
    """Sequences of some rows, [B, T, ...] with time first in memory."""

    observation: Tensor | None  # None after it was taken
    action: Tensor
    action_mask: Tensor | None
    state: Tensor  # [B, S, H], before the first step
    reset: Tensor
    log_prob: Tensor  # at collection, as is `value`
    value: Tensor
    advantage: Tensor
    target: Tensor
    weight: Tensor  # 0 where the agent was not alive, else the row's importance weight

    def take_observation(self) -> Tensor:
        """Return the observation and drop it: encoders save what they need, and the rest is freed for the backward pass."""
        observation, self.observation = self.observation, None
        assert observation is not None, "the observation was taken before"
        return observation

    def some(self, at: slice) -> MicroBatch:
        """Return a copy of some of the sequences, again with time first in memory."""

        def pick(array: Tensor) -> Tensor:
            return array[at].transpose(0, 1).contiguous().transpose(0, 1)

        copies = {name: pick(array) for name, array in vars(self).items() if array is not None and name != "state"}
        return replace(self, **copies, state=self.state[at])


def newest(unrolled: Any, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Return the probability ratios and values [B, T] of an unrolled policy, without gradients."""
    with torch.no_grad():
        return (unrolled.log_prob.float() - batch.log_prob).exp(), unrolled.value.detach().float()


def gather(
    rows: Rows, advantages: Advantages, picked: Tensor, weight: npt.NDArray[np.float32] | Tensor, device: torch.device
) -> MicroBatch:
    """Gather the rows `picked` [b] with importance weights [b] onto a device."""
    names = [name for name in GATHERED if name in rows.fields]
    batch, picked = rows.sequences(names, picked, device), picked.to(rows.device)
    raw, scaled = (as_sequences(array, picked, device) for array in (advantages.raw, advantages.scaled))
    on_device = weight if isinstance(weight, Tensor) else torch.from_numpy(weight).to(device)
    row_weight = on_device.repeat_interleave(rows.agents_per_row)
    return MicroBatch(
        observation=batch.pop("observation"),
        action=batch["action"],
        action_mask=batch.get("action_mask"),
        state=batch["initial_state"],
        reset=resets(batch["terminated"], batch["truncated"])
        if rows.resets_state
        else torch.zeros_like(batch["terminated"]),
        log_prob=batch["log_prob"],
        value=batch["value"],
        advantage=scaled,
        target=raw + batch["value"],
        weight=(row_weight * batch["alive"].t()).t(),
    )

"""Whole episodes in a pond, for return decomposition while an agent plays.

# B episodes in a batch   K steps drawn of each
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.replay.episodes import whole_episodes
from millpond.replay.pond import Pond
from millpond.replay.schema import FINAL
from millpond.rewards import objectives
from millpond.rewards.draw import StepDraw
from millpond.rewards.network import Inputs, RewardNetwork, StepBatch


def inputs_of_env(spec: EnvSpec) -> Inputs:
    """What a reward network is given of an environment: its observation as plain numbers."""
    action = spec.action
    if action.kind == "multidiscrete":
        raise MillpondError(f"{spec.id} has several discrete actions a step; full mode takes one, or continuous ones")
    if spec.action_masks:
        raise MillpondError(f"{spec.id} allows other actions at each step; full mode takes environments that allow all")
    numbers = int(np.prod(spec.observation.shape, dtype=np.int64))
    width = action.sizes[0] if action.kind == "discrete" else int(np.prod(action.shape, dtype=np.int64))
    return Inputs(numbers, width)


def steps_of(observation: Tensor, action: Tensor, next_observation: Tensor, inputs: Inputs) -> StepBatch:
    """Transitions of a pond [N, ...] as a reward network takes them."""
    if not action.is_floating_point():
        action = torch.nn.functional.one_hot(action.long().flatten(), inputs.action)
    return StepBatch(
        observation.flatten(1).float(), action.flatten(1).float(), next_observation.flatten(1).float(), {}, {}
    )


class PondBatches:
    """Losses over the whole episodes that a pond holds now. Only their returns are looked at, never single rewards."""

    unit = 1.0  # losses are in units of rewards

    def __init__(self, pond: Pond, network: RewardNetwork, *, per_batch: int, steps: int) -> None:
        self.pond, self.network = pond, network
        self._sizes = (per_batch, steps)
        self.episodes = 0

    def refresh(self) -> None:
        """Look for whole episodes again, after steps were added."""
        view = self.pond.view()
        start, rows = whole_episodes(view)  # type: ignore[arg-type]  # a pond's rows are walked as a stream's are
        if not len(start):
            self.episodes = 0
            return
        lengths = rows - ((view.flags[start + rows - 1] & FINAL) > 0)
        summed = np.concatenate(
            [[0.0], np.cumsum(self.pond.fields["reward"].cpu().numpy()[view.slot], dtype=np.float64)]
        )
        self._slot, self._start, self.lengths = view.slot, start, lengths
        self.mean_return = (summed[start + lengths] - summed[start]) / lengths
        self.draw = StepDraw(lengths, *self._sizes)
        self.episodes = len(start)

    def loss(self, rng: np.random.Generator) -> Tensor:
        """Draw a batch and judge it."""
        device = self.pond.device
        episodes, steps = self.draw(rng)
        reward = self.network.outputs(self._batch(episodes, steps)).view(steps.shape)
        target = torch.from_numpy(self.mean_return[episodes].astype(np.float32)).to(device)
        mask = None
        if not self.draw.always_filled:
            mask = torch.from_numpy(self.draw.drawn(episodes)).to(device)
        if self.network.objective == "rrd":
            return objectives.rrd_loss(reward, target, mask)
        length = torch.from_numpy(self.lengths[episodes].astype(np.float32)).to(device)
        return objectives.lrd_loss(reward, target, length, mask)

    def _batch(self, episodes: Any, steps: Any) -> StepBatch:
        rows = (self._start[episodes][:, None] + steps).reshape(-1)
        now, then = (torch.from_numpy(self._slot[at]).to(self.pond.device) for at in (rows, rows + 1))
        frames = self.pond.fields["observation/observation"]
        return steps_of(frames[now], self.pond.fields["action"][now], frames[then], self.network.shape)

    def skip(self, rng: np.random.Generator) -> None:
        """Take as many numbers from the generator as one batch does."""
        self.draw(rng)

    def drawn_batch(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """The next batch as tensors, for a dump."""
        batch = self._batch(*self.draw(rng))
        return {"observation": batch.observation, "action": batch.action, "next_observation": batch.next_observation}

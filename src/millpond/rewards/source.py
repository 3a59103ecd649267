"""Drawn steps as tensors: from recorded episodes, prepared once where they fit, or read and normalised as they are drawn.

# B episodes in a batch   K steps drawn of each   D numbers of an observation   F features of a step
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.data import VECTOR, Episodes, Transitions
from millpond.rewards.network import Inputs, RewardNetwork, StepBatch

Integers = np.ndarray[Any, np.dtype[np.int64]]
CHUNK, IMAGE_CHUNK = 4096, 64  # steps that are judged at once, without images and with them


def inputs_of(data: Episodes) -> Inputs:
    """What a network will be given of these episodes."""
    images = []
    for name, field in data.images.items():
        height, width, *channels = field.shape
        images.append((name, (height, width, channels[0] if channels else 1)))
    action = 0 if data.action is None else data.action.width
    return Inputs(len(data.columns), data.num_actions if data.discrete else action, tuple(images))


def step_batch(drawn: Transitions, shape: Inputs, device: torch.device) -> StepBatch:
    """Gathered transitions [B, K, ...] as one batch of B x K steps. Discrete actions become one number each."""
    action = torch.from_numpy(drawn.action).to(device)
    if not action.is_floating_point():
        action = torch.nn.functional.one_hot(action, shape.action)
    rows = int(np.prod(drawn.action.shape[:2]))

    def numbers(observation: dict[str, Any]) -> Tensor:
        if VECTOR not in observation:
            return torch.zeros((rows, 0), device=device)
        return torch.from_numpy(observation[VECTOR]).to(device).flatten(0, 1)

    def images(observation: dict[str, Any]) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(observation[name]).to(device).reshape(rows, *image) for name, image in shape.images
        }

    return StepBatch(
        numbers(drawn.observation),
        action.reshape(rows, shape.action).float(),
        numbers(drawn.next_observation),
        images(drawn.observation),
        images(drawn.next_observation),
    )


class RecordedSteps:
    """Features of steps for one network, whose normaliser stays as it is.

    Where all numbers are in memory and there are no images, the features of every step are prepared once, and a batch
    is one gather. Otherwise frames are read as they are drawn.
    """

    def __init__(self, data: Episodes, network: RewardNetwork, device: torch.device) -> None:
        self._data, self._network, self._device = data, network, device
        self._shape = network.shape
        self.prepared = not self._shape.images and {"action", VECTOR} <= set(data.kept_in_memory)
        if self.prepared:
            self._first = np.concatenate([[0], np.cumsum(data.lengths)])
            self._table = torch.cat([self._features_of(episode) for episode in range(len(data))])

    @property
    def nbytes(self) -> int:
        """Bytes of what was prepared."""
        return self._table.nbytes if self.prepared else 0

    @property
    def step_bytes(self) -> int:
        """Bytes of one step of what was prepared."""
        return self._table[:1].nbytes if self.prepared else 0

    def __call__(self, episodes: Integers, steps: Integers) -> tuple[Tensor, Tensor | None]:
        """Features [B x K, F] of the drawn steps [B, K], and those of their images."""
        if self.prepared:
            rows = torch.from_numpy((self._first[episodes][:, None] + steps).reshape(-1))
            return self._table.index_select(0, rows.to(self._device)), None
        batch = step_batch(self._data.gather(episodes, steps), self._shape, self._device)
        features = self._network.features(batch.observation, batch.action, batch.next_observation)
        return features, self._network.pixels(batch.images, batch.next_images)

    @torch.no_grad()
    def _features_of(self, episode: int) -> Tensor:
        steps = np.arange(int(self._data.lengths[episode]))[None]
        batch = step_batch(self._data.gather(np.array([episode]), steps), self._shape, self._device)
        return self._network.features(batch.observation, batch.action, batch.next_observation)


@torch.no_grad()
def judge_episode(
    network: RewardNetwork, data: Episodes, episode: int, device: torch.device
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.float32]] | None]:
    """The reward [T] that a network gives each step of an episode, and, where it has one, the value [T] of each state."""
    length = int(data.lengths[episode])
    rewards, values = [], []
    chunk = IMAGE_CHUNK if network.shape.images else CHUNK
    for first in range(0, length, chunk):
        steps = np.arange(first, min(first + chunk, length))[None]
        batch = step_batch(data.gather(np.array([episode]), steps), network.shape, device)
        rewards.append(network.reward(batch).cpu().numpy())
        if not network.of_transitions:
            values.append(network.value(batch).cpu().numpy())
    return np.concatenate(rewards), np.concatenate(values) if values else None

"""Drawn steps as tensors: from recorded episodes, prepared once where they fit, or read and normalised as they are drawn.

# B episodes in a batch   K steps drawn of each   D numbers of an observation   F features of a step
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.data import VECTOR, Episodes, RecordedTransitions
from millpond.rewards import objectives
from millpond.rewards.network import RewardInputs, RewardNetwork, StepBatch
from millpond.rewards.sampling import Integers, PrefetchedBatches, StepSampler


def inputs_of(data: Episodes) -> RewardInputs:
    """What a network will be given of these episodes."""
    images = []
    for name, field in data.images.items():
        height, width, *channels = field.shape
        images.append((name, (height, width, channels[0] if channels else 1)))
    action = 0 if data.action is None else data.action.width
    return RewardInputs(len(data.columns), data.num_actions if data.discrete else action, tuple(images))


def step_batch(drawn: RecordedTransitions, shape: RewardInputs, device: torch.device) -> StepBatch:
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
        self.prepared = not self._shape.images and {"action", VECTOR} <= set(data.in_memory)
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


# -- One batch: draw steps, and what the objective makes of them.
#
# # B episodes in a batch   K steps drawn of each

WINDOW = 0.05  # the share of a successful episode, at its end, in which the task counts as done
UNCLEAR = 0.25  # before that, down to this share from the end, a state is neither done nor not


class RewardBatches:
    """Losses of one objective over recorded episodes. The generators' states are the whole state.

    A loss of return decomposition is in units of the network's output, whose scale follows the returns: learning does
    not depend on the units of rewards. Times `unit` it is in those.
    `others` are episodes of another task with the same observations, for progress. `input_noise` blurs the normalised
    numbers that progress and success are judged by: with a handful of demonstrations a network would otherwise learn
    to tell them apart, and with it the time.
    """

    def __init__(
        self,
        network: RewardNetwork,
        data: Episodes,
        episodes: np.ndarray[Any, np.dtype[np.int64]],
        *,
        per_batch: int,
        steps: int,
        device: torch.device,
        others: Episodes | None = None,
        input_noise: float = 0.0,
        noise: torch.Generator | None = None,
    ) -> None:
        self.network, self.episodes, self.device = network, episodes, device
        self.input_noise, self.noise = input_noise, noise
        self.steps = RecordedSteps(data, network, device)
        self.lengths = data.lengths[episodes]
        self.draw = StepSampler(self.lengths, per_batch, steps)
        self._length = torch.from_numpy(self.lengths).to(device, torch.float32)
        self.unit = 1.0
        self._ahead: PrefetchedBatches | None = None
        if network.of_transitions:
            assert data.returns is not None
            mean = (data.returns[episodes] / self.lengths - float(network.shift)) / float(network.scale)
            self._returns = torch.from_numpy(mean).to(device, torch.float32)
            self.unit = float(network.scale) ** 2
            if self.steps.prepared:
                self._ahead = PrefetchedBatches(self.draw, self._gather, self.steps.step_bytes)
        self._success = None if data.success is None else data.success[episodes]
        self._others = None
        if others is not None:
            self._others = (RecordedSteps(others, network, device), StepSampler(others.lengths, per_batch, steps))

    def loss(self, rng: np.random.Generator) -> Tensor:
        """Draw a batch and judge it."""
        if self._ahead is not None:
            return self._decomposition(*self._ahead(rng))
        episodes, steps = self.draw(rng)
        if self.network.objective == "success":
            return self._classification(rng, episodes, steps)
        if self.network.objective == "progress":
            mask = None if self.draw.always_filled else torch.from_numpy(self.draw.drawn(episodes)).to(self.device)
            return self._progress(rng, episodes, steps, mask)
        features, pixels = self.steps(self.episodes[episodes], steps)
        return self._decomposition(features, *self._of_episodes(episodes), pixels=pixels)

    def _gather(self, episodes: Integers, steps: Integers) -> tuple[Tensor, ...]:
        """What return decomposition takes of N batches: episodes [N, B], steps [N, B, K]."""
        features, _ = self.steps(self.episodes[episodes].reshape(-1), steps.reshape(-1, steps.shape[-1]))
        return features.view(len(episodes), -1, features.shape[1]), *self._of_episodes(episodes)

    def _of_episodes(self, episodes: Integers) -> tuple[Tensor, ...]:
        """R / T, T, and, where an episode may be too short, which places are filled."""
        picked = torch.from_numpy(episodes).to(self.device)
        known = (self._returns[picked], self._length[picked])
        if self.draw.always_filled:
            return known
        return *known, torch.from_numpy(self.draw.drawn(episodes)).to(self.device)

    def _decomposition(
        self,
        features: Tensor,
        mean_return: Tensor,
        length: Tensor,
        mask: Tensor | None = None,
        *,
        pixels: Tensor | None = None,
    ) -> Tensor:
        output = self.network.raw(features, pixels).view(self.draw.shape)
        if self.network.objective == "rrd":
            return objectives.rrd_loss(output, mean_return, mask)
        return objectives.lrd_loss(output, mean_return, length, mask)

    def _progress(self, rng: np.random.Generator, episodes: Any, steps: Any, mask: Tensor | None) -> Tensor:
        last = self.lengths[episodes][:, None] - 1
        judged = self._judge(self.steps, self.episodes[episodes], np.concatenate((steps, last), axis=1))
        progress = torch.sigmoid(judged.view(len(steps), -1))
        target = torch.from_numpy((steps / np.maximum(last, 1)).astype(np.float32)).to(self.device)
        loss = objectives.progress_loss(progress[:, :-1], target, progress[:, -1], mask)
        if self._others is not None:
            source, draw = self._others
            other = torch.sigmoid(self._judge(source, *draw(rng)))
            loss = loss + objectives.other_task_loss(progress[:, :-1], other)
        return loss

    def _judge(self, source: RecordedSteps, episodes: Any, steps: Any) -> Tensor:
        features, pixels = source(episodes, steps)
        if self.input_noise and features.shape[1]:
            blur = torch.randn(features.shape, generator=self.noise, device=self.device)
            features = features + self.input_noise * blur
        logit: Tensor = self.network(features, pixels)
        return logit

    def _classification(self, rng: np.random.Generator, episodes: Any, steps: Any) -> Tensor:
        """Half of the steps are drawn from the ends of episodes, so that few successes are enough to learn from."""
        assert self._success is not None
        length = self.lengths[episodes][:, None]
        window = np.maximum(1, (length * WINDOW).astype(np.int64))
        half = steps.shape[1] // 2
        steps[:, :half] = (
            length - 1 - np.minimum((rng.random((len(steps), half)) * window).astype(np.int64), window - 1)
        )
        won, left = self._success[episodes][:, None], length - steps
        done = won & (left <= window)
        clear = ~won | done | (left > length * UNCLEAR)
        logit = self._judge(self.steps, self.episodes[episodes], steps)
        clear_steps = torch.from_numpy(np.flatnonzero(clear)).to(self.device)
        labels = torch.from_numpy(done.reshape(-1).astype(np.float32)).to(self.device)
        return objectives.success_loss(logit[clear_steps], labels[clear_steps])

    def skip(self, rng: np.random.Generator) -> None:
        """Take as many numbers from the generator as one batch does."""
        _, steps = self.draw(rng)
        if self.network.objective == "success":
            rng.random((len(steps), steps.shape[1] // 2))
        if self._others is not None:
            self._others[1](rng)

    def drawn_batch(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """The next batch as tensors, for a dump."""
        episodes, steps = self.draw(rng)
        features, _ = self.steps(self.episodes[episodes], steps)
        return {
            "episodes": torch.from_numpy(self.episodes[episodes]),
            "steps": torch.from_numpy(steps),
            "features": features,
        }

"""Batches of recorded steps: which steps are sampled, their features, and the loss of one batch.

Episodes are sampled with replacement, the steps of each episode without. Features are cached if they fit into memory, and
batches are prefetched if they are.

# N batches at a time   B episodes per batch   K sampled steps per episode   T steps of an episode
# D numbers of an observation   F features of a step
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.compiled import compiled
from millpond.data import VECTOR, Episodes, RecordedTransitions
from millpond.rewards import objectives
from millpond.rewards.network import RewardInputs, RewardNetwork, StepBatch

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
MAX_PREFETCHED_BATCHES = 64
MAX_PREFETCHED_BYTES = 1 << 20
SOLVED_FRACTION = 0.05  # of a successful episode, at its end: the task counts as solved
UNLABELLED_FRACTION = 0.25  # of a successful episode, at its end: other states in it have no label


class StepSampler:
    """Samples steps from one generator, whose state is the whole state: a batch always takes B + B x K numbers of it.

    Every set of K steps of an episode is equally likely, and so is every order of it, so that any two of the K
    places are a random pair. An episode with fewer than K steps contributes each of its steps once; the remaining places
    repeat the last step and must be masked by `valid_steps`.
    """

    def __init__(self, lengths: Integers, per_batch: int, steps: int) -> None:
        self.lengths = np.ascontiguousarray(lengths, dtype=np.int64)
        self.shape = (per_batch, steps)
        self.numbers_per_batch = per_batch * (1 + steps)  # that a batch takes from the generator
        self.always_filled = bool((self.lengths >= steps).all())
        self._scratch = np.arange(int(self.lengths.max()), dtype=np.int64)  # sorted again after every call

    def __call__(self, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """Episodes [B], and steps of them [B, K]."""
        episodes, steps = self.sample_many(rng, 1)
        return episodes[0], steps[0]

    def sample_many(self, rng: np.random.Generator, batches: int) -> tuple[Integers, Integers]:
        """The next N batches, equal to those sampled one by one: episodes [N, B], and steps of them [N, B, K]."""
        per_batch, steps_per_episode = self.shape
        uniform = rng.random((batches, self.numbers_per_batch))
        picks = uniform[:, :per_batch]
        episodes = np.minimum((picks * len(self.lengths)).astype(np.int64), len(self.lengths) - 1)
        steps = np.empty((batches, per_batch, steps_per_episode), dtype=np.int64)
        _partial_shuffle(
            uniform[:, per_batch:].reshape(-1, steps_per_episode),
            self.lengths[episodes].reshape(-1),
            self._scratch,
            steps.reshape(-1, steps_per_episode),
        )
        return episodes, steps

    def valid_steps(self, episodes: Integers) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mask [..., B, K] of the filled places of episodes [..., B]."""
        mask: np.ndarray[Any, np.dtype[np.bool_]] = np.arange(self.shape[1]) < self.lengths[episodes][..., None]
        return mask


def _partial_shuffle_plain(uniform: Floats, lengths: Integers, scratch: Integers, out: Integers) -> None:
    """The first K swaps of a Fisher-Yates shuffle of 0..T-1 for each row, undone afterwards: O(K) work.

    `scratch` is 0, 1, 2, ... before and after the call.
    """
    rows, steps = uniform.shape
    swaps = np.empty(steps, dtype=np.int64)
    for row in range(rows):
        length = lengths[row]
        count = min(steps, length)
        for place in range(count):
            left = length - place
            other = place + min(int(uniform[row, place] * left), left - 1)
            swaps[place] = other
            scratch[place], scratch[other] = scratch[other], scratch[place]
            out[row, place] = scratch[place]
        for place in range(count, steps):
            out[row, place] = length - 1
        for place in range(count - 1, -1, -1):
            other = swaps[place]
            scratch[place], scratch[other] = scratch[other], scratch[place]


_partial_shuffle = compiled(_partial_shuffle_plain)


class PrefetchedBatches:
    """Batches of a `StepSampler`, sampled and gathered many at a time: a batch then costs a few microseconds.

    They equal those sampled one by one. The generator advances batch by batch, as if each were sampled when it is used,
    so its state remains the whole state: prefetched batches belong to one state of it, and are dropped if the generator
    is in another state.
    """

    def __init__(
        self, sampler: StepSampler, gather: Callable[[Integers, Integers], tuple[Tensor, ...]], step_bytes: int
    ) -> None:
        self._sampler, self._gather = sampler, gather
        per_batch, steps = sampler.shape
        self.count = max(1, min(MAX_PREFETCHED_BATCHES, MAX_PREFETCHED_BYTES // (per_batch * steps * step_bytes)))
        self._ready: deque[tuple[Any, tuple[Tensor, ...]]] = deque()  # generator state before each batch, and the batch

    def __call__(self, rng: np.random.Generator) -> tuple[Tensor, ...]:
        """The next batch: one slice [...] of each tensor [N, ...] that `gather` returns."""
        bit_generator: Any = rng.bit_generator
        if not self._ready or bit_generator.state != self._ready[0][0]:
            self._prefetch(bit_generator)
        bit_generator.advance(self._sampler.numbers_per_batch)
        return self._ready.popleft()[1]

    def _prefetch(self, bit_generator: Any) -> None:
        copy = type(bit_generator)()
        copy.state = bit_generator.state
        states = []
        for _ in range(self.count):
            states.append(copy.state)
            copy.advance(self._sampler.numbers_per_batch)
        copy.state = bit_generator.state
        gathered = self._gather(*self._sampler.sample_many(np.random.Generator(copy), self.count))
        batches = zip(*(tensor.unbind(0) for tensor in gathered), strict=True)
        self._ready = deque(zip(states, batches, strict=True))


def recorded_inputs(data: Episodes) -> RewardInputs:
    """Inputs of a network that is trained on these episodes."""
    images = []
    for name, field in data.images.items():
        height, width, *channels = field.shape
        images.append((name, (height, width, channels[0] if channels else 1)))
    action = 0 if data.action is None else data.action.width
    return RewardInputs(len(data.columns), data.num_actions if data.discrete else action, tuple(images))


def step_batch(transitions: RecordedTransitions, inputs: RewardInputs, device: torch.device) -> StepBatch:
    """Gathered transitions [B, K, ...] as one batch of B x K steps. Discrete actions become one-hot."""
    action = torch.from_numpy(transitions.action).to(device)
    if not action.is_floating_point():
        action = torch.nn.functional.one_hot(action, inputs.action)
    steps = int(np.prod(transitions.action.shape[:2]))

    def numbers(observation: dict[str, Any]) -> Tensor:
        if VECTOR not in observation:
            return torch.zeros((steps, 0), device=device)
        return torch.from_numpy(observation[VECTOR]).to(device).flatten(0, 1)

    def images(observation: dict[str, Any]) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(observation[name]).to(device).reshape(steps, *shape) for name, shape in inputs.images
        }

    return StepBatch(
        numbers(transitions.observation),
        action.reshape(steps, inputs.action).float(),
        numbers(transitions.next_observation),
        images(transitions.observation),
        images(transitions.next_observation),
    )


class StepFeatures:
    """Features of recorded steps for one network, whose normaliser must not change.

    If all numbers are in memory and there are no images, the features of every step are computed once, and a batch is
    one gather. Otherwise frames are read when they are sampled.
    """

    def __init__(self, data: Episodes, network: RewardNetwork, device: torch.device) -> None:
        self._data, self._network, self._device = data, network, device
        self._inputs = network.inputs
        self.cached = not self._inputs.images and {"action", VECTOR} <= set(data.in_memory)
        if self.cached:
            self._first = np.concatenate([[0], np.cumsum(data.lengths)])
            self._table = torch.cat([self._episode_features(episode) for episode in range(len(data))])

    @property
    def nbytes(self) -> int:
        """Bytes of the cached features."""
        return self._table.nbytes if self.cached else 0

    @property
    def step_bytes(self) -> int:
        """Bytes of the cached features of one step."""
        return self._table[:1].nbytes if self.cached else 0

    def __call__(self, episodes: Integers, steps: Integers) -> tuple[Tensor, Tensor | None]:
        """Features [B x K, F] of steps [B, K] of episodes [B], and those of their images."""
        if self.cached:
            indices = torch.from_numpy((self._first[episodes][:, None] + steps).reshape(-1))
            return self._table.index_select(0, indices.to(self._device)), None
        batch = step_batch(self._data.gather(episodes, steps), self._inputs, self._device)
        features = self._network.features(batch.observation, batch.action, batch.next_observation)
        return features, self._network.pixels(batch.images, batch.next_images)

    @torch.no_grad()
    def _episode_features(self, episode: int) -> Tensor:
        steps = np.arange(int(self._data.lengths[episode]))[None]
        batch = step_batch(self._data.gather(np.array([episode]), steps), self._inputs, self._device)
        return self._network.features(batch.observation, batch.action, batch.next_observation)


class RewardBatches:
    """Losses of one objective over recorded episodes. The generators' states are the whole state.

    A loss of return decomposition is in units of the network's output, whose scale follows the returns, so that learning
    does not depend on the units of the rewards; `loss * unit` is in squared units of the rewards.
    `others` are episodes of another task with the same observations, for progress. `input_noise` is added to the
    normalised numbers for progress and success: with a handful of demonstrations a network would otherwise learn to
    recognise each of them, and read the time from that.
    """

    def __init__(
        self,
        network: RewardNetwork,
        data: Episodes,
        episodes: Integers,
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
        self.features = StepFeatures(data, network, device)
        self.lengths = data.lengths[episodes]
        self.sampler = StepSampler(self.lengths, per_batch, steps)
        self._length = torch.from_numpy(self.lengths).to(device, torch.float32)
        self.unit = 1.0
        self._prefetched: PrefetchedBatches | None = None
        if network.uses_transitions:
            assert data.returns is not None
            mean = (data.returns[episodes] / self.lengths - float(network.shift)) / float(network.scale)
            self._mean_return = torch.from_numpy(mean).to(device, torch.float32)
            self.unit = float(network.scale) ** 2
            if self.features.cached:
                self._prefetched = PrefetchedBatches(self.sampler, self._gather, self.features.step_bytes)
        self._success = None if data.success is None else data.success[episodes]
        self._others = None
        if others is not None:
            self._others = (StepFeatures(others, network, device), StepSampler(others.lengths, per_batch, steps))

    def loss(self, rng: np.random.Generator) -> Tensor:
        """Sample a batch and compute its loss."""
        if self._prefetched is not None:
            return self._decomposition_loss(*self._prefetched(rng))
        episodes, steps = self.sampler(rng)
        if self.network.objective == "success":
            return self._success_loss(rng, episodes, steps)
        if self.network.objective == "progress":
            return self._progress_loss(rng, episodes, steps, self._valid_steps(episodes))
        features, pixels = self.features(self.episodes[episodes], steps)
        return self._decomposition_loss(features, *self._episode_targets(episodes), pixels=pixels)

    def skip(self, rng: np.random.Generator) -> None:
        """Take as many numbers from the generator as one batch does."""
        _, steps = self.sampler(rng)
        if self.network.objective == "success":
            rng.random((len(steps), steps.shape[1] // 2))
        if self._others is not None:
            self._others[1](rng)

    def sample(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """The next batch as tensors, for a dump."""
        episodes, steps = self.sampler(rng)
        features, _ = self.features(self.episodes[episodes], steps)
        return {
            "episodes": torch.from_numpy(self.episodes[episodes]),
            "steps": torch.from_numpy(steps),
            "features": features,
        }

    def _valid_steps(self, episodes: Integers) -> Tensor | None:
        """Mask of the filled places; None if no episode is too short."""
        if self.sampler.always_filled:
            return None
        return torch.from_numpy(self.sampler.valid_steps(episodes)).to(self.device)

    # Return decomposition

    def _gather(self, episodes: Integers, steps: Integers) -> tuple[Tensor, ...]:
        """Arguments of the loss for N batches: episodes [N, B], steps [N, B, K]."""
        features, _ = self.features(self.episodes[episodes].reshape(-1), steps.reshape(-1, steps.shape[-1]))
        return features.view(len(episodes), -1, features.shape[1]), *self._episode_targets(episodes)

    def _episode_targets(self, episodes: Integers) -> tuple[Tensor, ...]:
        """R / T, T, and, if an episode may be too short, the mask of filled places."""
        index = torch.from_numpy(episodes).to(self.device)
        targets = (self._mean_return[index], self._length[index])
        valid = self._valid_steps(episodes)
        return targets if valid is None else (*targets, valid)

    def _decomposition_loss(
        self,
        features: Tensor,
        mean_return: Tensor,
        length: Tensor,
        valid: Tensor | None = None,
        *,
        pixels: Tensor | None = None,
    ) -> Tensor:
        output = self.network.raw(features, pixels).view(self.sampler.shape)
        if self.network.objective == "rrd":
            return objectives.rrd_loss(output, mean_return, valid)
        return objectives.lrd_loss(output, mean_return, length, valid)

    # Progress and success

    def _progress_loss(
        self, rng: np.random.Generator, episodes: Integers, steps: Integers, valid: Tensor | None
    ) -> Tensor:
        last = self.lengths[episodes][:, None] - 1
        logits = self._noisy_logits(self.features, self.episodes[episodes], np.concatenate((steps, last), axis=1))
        progress = torch.sigmoid(logits.view(len(steps), -1))
        target = torch.from_numpy((steps / np.maximum(last, 1)).astype(np.float32)).to(self.device)
        loss = objectives.progress_loss(progress[:, :-1], target, progress[:, -1], valid)
        if self._others is not None:
            features, sampler = self._others
            other = torch.sigmoid(self._noisy_logits(features, *sampler(rng)))
            loss = loss + objectives.other_task_loss(progress[:, :-1], other)
        return loss

    def _success_loss(self, rng: np.random.Generator, episodes: Integers, steps: Integers) -> Tensor:
        """Sample half of the steps from the ends of episodes, so that few successes are enough to learn from."""
        assert self._success is not None
        length = self.lengths[episodes][:, None]
        window = np.maximum(1, (length * SOLVED_FRACTION).astype(np.int64))
        half = steps.shape[1] // 2
        steps[:, :half] = (
            length - 1 - np.minimum((rng.random((len(steps), half)) * window).astype(np.int64), window - 1)
        )
        succeeded, left = self._success[episodes][:, None], length - steps
        solved = succeeded & (left <= window)
        labelled = ~succeeded | solved | (left > length * UNLABELLED_FRACTION)
        logits = self._noisy_logits(self.features, self.episodes[episodes], steps)
        index = torch.from_numpy(np.flatnonzero(labelled)).to(self.device)
        labels = torch.from_numpy(solved.reshape(-1).astype(np.float32)).to(self.device)
        return objectives.success_loss(logits[index], labels[index])

    def _noisy_logits(self, step_features: StepFeatures, episodes: Integers, steps: Integers) -> Tensor:
        features, pixels = step_features(episodes, steps)
        if self.input_noise and features.shape[1]:
            noise = torch.randn(features.shape, generator=self.noise, device=self.device)
            features = features + self.input_noise * noise
        logits: Tensor = self.network(features, pixels)
        return logits

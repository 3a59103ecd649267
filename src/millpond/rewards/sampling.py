"""Sampling of steps: episodes with replacement, steps of each episode without; one batch or many at a time.

# N batches at a time   B episodes per batch   K sampled steps per episode   T steps of an episode
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from millpond.compiled import compiled

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
MAX_PREFETCHED_BATCHES = 64
MAX_PREFETCHED_BYTES = 1 << 20


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

"""Which steps a batch is made of: episodes with replacement, steps of each without.

# B episodes in a batch   K steps drawn of each   T steps an episode has
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


class StepSampler:
    """Draws from one generator, whose state is the whole state: a batch takes B + B x K of its numbers, always.

    Every set of K steps of an episode is equally likely, and so is every order of it, so that any two places of a row
    are a random pair. An episode with fewer than K steps gives each of its steps once; the rest of its row repeats its
    last one and is to be masked by `drawn`.
    """

    def __init__(self, lengths: Integers, per_batch: int, steps: int) -> None:
        self.lengths = np.ascontiguousarray(lengths, dtype=np.int64)
        self.shape = (per_batch, steps)
        self.numbers = per_batch * (1 + steps)  # that a batch takes from the generator
        self.always_filled = bool((self.lengths >= steps).all())
        self._places = np.arange(int(self.lengths.max()), dtype=np.int64)  # in order again after every draw

    def __call__(self, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """Episodes [B], and steps of them [B, K]."""
        episodes, steps = self.several(rng, 1)
        return episodes[0], steps[0]

    def several(self, rng: np.random.Generator, batches: int) -> tuple[Integers, Integers]:
        """The next batches, the same as one by one: episodes [batches, B], and steps of them [batches, B, K]."""
        per_batch, wanted = self.shape
        uniform = rng.random((batches, self.numbers))
        picks = uniform[:, :per_batch]
        episodes = np.minimum((picks * len(self.lengths)).astype(np.int64), len(self.lengths) - 1)
        steps = np.empty((batches, per_batch, wanted), dtype=np.int64)
        _shuffle_heads(
            uniform[:, per_batch:].reshape(-1, wanted),
            self.lengths[episodes].reshape(-1),
            self._places,
            steps.reshape(-1, wanted),
        )
        return episodes, steps

    def drawn(self, episodes: Integers) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which places [..., B, K] of episodes [..., B] are filled."""
        mask: np.ndarray[Any, np.dtype[np.bool_]] = np.arange(self.shape[1]) < self.lengths[episodes][..., None]
        return mask


def _shuffle_heads_plain(uniform: Floats, lengths: Integers, places: Integers, out: Integers) -> None:
    """The first K swaps of a shuffle (Fisher and Yates) of 0..T-1 for each row, undone afterwards: K steps of work."""
    rows, wanted = uniform.shape
    swaps = np.empty(wanted, dtype=np.int64)
    for row in range(rows):
        length = lengths[row]
        count = min(wanted, length)
        for place in range(count):
            left = length - place
            other = place + min(int(uniform[row, place] * left), left - 1)
            swaps[place] = other
            places[place], places[other] = places[other], places[place]
            out[row, place] = places[place]
        for place in range(count, wanted):
            out[row, place] = length - 1
        for place in range(count - 1, -1, -1):
            other = swaps[place]
            places[place], places[other] = places[other], places[place]


_shuffle_heads = compiled(_shuffle_heads_plain)


# -- Batches that are drawn and gathered many at once, before they are used: a batch then costs a few microseconds.
#
# # N batches at once   B episodes in a batch   K steps drawn of each

MOST = 64  # batches at once
BYTES = 1 << 20  # of them together


class PrefetchedBatches:
    """What a `StepSampler` gives, the same batches from the same numbers, as tensors that `gather` makes of N of them.

    The generator is moved on batch by batch, as if each were drawn when it is used, so its state stays the whole state:
    whatever is prepared belongs to one state of it, and is dropped where the generator is found in another.
    """

    def __init__(
        self, draw: StepSampler, gather: Callable[[Integers, Integers], tuple[Tensor, ...]], step_bytes: int
    ) -> None:
        self._draw, self._gather = draw, gather
        per_batch, steps = draw.shape
        self.at_once = max(1, min(MOST, BYTES // (per_batch * steps * step_bytes)))
        self._ready: deque[tuple[Any, tuple[Tensor, ...]]] = deque()  # the generator's state before each, and the batch

    def __call__(self, rng: np.random.Generator) -> tuple[Tensor, ...]:
        """The next batch: of each tensor [N, ...] that `gather` makes, its part [...]."""
        source: Any = rng.bit_generator
        if not self._ready or source.state != self._ready[0][0]:
            self._prepare(source)
        source.advance(self._draw.numbers)
        return self._ready.popleft()[1]

    def _prepare(self, source: Any) -> None:
        copy = type(source)()
        copy.state = source.state
        states = []
        for _ in range(self.at_once):
            states.append(copy.state)
            copy.advance(self._draw.numbers)
        copy.state = source.state
        gathered = self._gather(*self._draw.several(np.random.Generator(copy), self.at_once))
        batches = zip(*(tensor.unbind(0) for tensor in gathered), strict=True)
        self._ready = deque(zip(states, batches, strict=True))

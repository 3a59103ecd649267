"""Batches that are drawn and gathered many at once, before they are used: a batch then costs a few microseconds.

# N batches at once   B episodes in a batch   K steps drawn of each
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from millpond.rewards.draw import Integers, StepDraw

MOST = 64  # batches at once
BYTES = 1 << 20  # of them together


class BatchesAhead:
    """What a `StepDraw` gives, the same batches from the same numbers, as tensors that `gather` makes of N of them.

    The generator is moved on batch by batch, as if each were drawn when it is used, so its state stays the whole state:
    whatever is prepared belongs to one state of it, and is dropped where the generator is found in another.
    """

    def __init__(
        self, draw: StepDraw, gather: Callable[[Integers, Integers], tuple[Tensor, ...]], step_bytes: int
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

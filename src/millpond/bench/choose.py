"""Actions at random, to step envs without a policy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.spec import ActionSpec
from millpond.vector import Vector


class Chooser:
    """Actions at random, drawn beforehand; in environments with masks, the first that is allowed of each choice."""

    def __init__(self, spec: ActionSpec) -> None:
        self.spec, self.rng = spec, np.random.default_rng(0)
        self.drawn: dict[tuple[int, ...], npt.NDArray[Any]] = {}

    def __call__(self, into: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> None:
        if mask.shape[-1]:
            first = np.cumsum((0, *self.spec.sizes))
            picked = [mask[..., low:high].argmax(-1) for low, high in pairwise(first)]
            into[...] = picked[0] if self.spec.kind == "discrete" else np.stack(picked, -1)
            return
        if into.shape not in self.drawn:
            self.drawn[into.shape] = self._draw(into.shape).astype(into.dtype)
        np.copyto(into, self.drawn[into.shape])

    def _draw(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if self.spec.kind == "continuous":
            return self.rng.uniform(self.spec.low, self.spec.high, shape)
        return self.rng.integers(0, self.spec.sizes if self.spec.kind == "multidiscrete" else self.spec.sizes[0], shape)


class RandomSteps:
    """Steps vectors with actions at random, which are drawn when a shape of them is first needed."""

    def __init__(self, vectors: list[Vector]) -> None:
        self.players = [(vector, Chooser(vector.spec.action)) for vector in vectors]

    def __call__(self, times: int) -> None:
        """So many steps of every env of each vector; sent and not yet received at the end."""
        for _ in range(times):
            for vector, choose in self.players:
                for _ in range(vector.groups):
                    batch = vector.recv()
                    choose(batch.action, batch.action_mask)
                    vector.send()

    def rest(self) -> None:
        """Receive what was sent, so that a run or another stage can go on."""
        for vector, _ in self.players:
            for _ in range(vector.groups):
                vector.recv()
            vector.rest()

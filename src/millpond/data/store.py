"""Where frames wait to be drawn: in memory as one array, or in their files, from which only what is drawn is read.

# N episodes  B episodes of a batch  K steps of each  T steps of an episode
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Reader = Callable[[int, int, int], Array]  # (episode, first frame, frame behind the last) -> frames


class Store(Protocol):
    """One array of every frame, drawn from by episode and step."""

    def at(self, episodes: Array, steps: Array) -> Array:
        """[B, K, ...]: the frame of each step."""

    def pair(self, episodes: Array, steps: Array) -> tuple[Array, Array]:
        """[B, K, ...] twice: the frame of each step, and the frame after it."""


class MemoryStore:
    """All frames in one array, read when the first are asked for: a draw is one index into it."""

    def __init__(self, read: Reader, counts: Array) -> None:
        self._read, self._counts = read, counts
        self._first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self.filled = False

    @cached_property
    def _table(self) -> Array:
        table = np.empty(0)
        for episode, (first, count) in enumerate(zip(self._first.tolist(), self._counts.tolist(), strict=True)):
            frames = self._read(episode, 0, count)
            if not episode:
                table = np.empty((int(self._counts.sum()), *frames.shape[1:]), frames.dtype)
            table[first : first + count] = frames
        self.filled = True
        return table

    def of(self, episode: int, steps: int) -> Array:
        """The first frames of one episode, not to be written to."""
        first = int(self._first[episode])
        frames: Array = self._table[first : first + steps]
        return frames

    def at(self, episodes: Array, steps: Array) -> Array:
        return self._table.take(self._first[episodes][:, None] + steps, axis=0)

    def pair(self, episodes: Array, steps: Array) -> tuple[Array, Array]:
        rows = self._first[episodes][:, None] + steps
        return self._table.take(rows, axis=0), self._table.take(rows + 1, axis=0)


class FileStore:
    """Frames stay in their files. Neighbouring ones are read together, and none is read twice for one episode."""

    def __init__(self, read: Reader) -> None:
        self._read = read

    def at(self, episodes: Array, steps: Array) -> Array:
        return np.stack([self._drawn(int(e), row) for e, row in zip(episodes, steps, strict=True)])

    def pair(self, episodes: Array, steps: Array) -> tuple[Array, Array]:
        both = self.at(episodes, np.concatenate([steps, steps + 1], axis=1))
        return both[:, : steps.shape[1]], both[:, steps.shape[1] :]

    def _drawn(self, episode: int, steps: Array) -> Array:
        wanted, place = np.unique(steps, return_inverse=True)
        cuts = np.flatnonzero(np.diff(wanted) > 1) + 1
        runs = [self._read(episode, int(run[0]), int(run[-1]) + 1) for run in np.split(wanted, cuts)]
        return (runs[0] if len(runs) == 1 else np.concatenate(runs))[place.reshape(-1)]

"""What runs at the end of a level's item, and when."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from millpond.loop.address import Address
from millpond.loop.errors import LoopError
from millpond.loop.moments import Moments


class Ended:
    """An item of a level that has just ended: where it was, and the moments of everything recorded in it."""

    def __init__(
        self, level: str, address: Address, number: int, last: bool, read: Callable[[], dict[str, Moments]]
    ) -> None:
        self.level = level
        self.address = address
        self.number = number  # how many items of the level ended before this one, in the whole run
        self.last = last  # whether its parent ended with it
        self._read = read
        self._moments: dict[str, Moments] | None = None

    @property
    def moments(self) -> dict[str, Moments]:
        """By name. At the innermost level this reads tensors from their device; above it they have been read."""
        if self._moments is None:
            self._moments = self._read()
        return self._moments

    def means(self, prefix: str = "") -> dict[str, float]:
        """The exact mean of every name that was observed."""
        return {prefix + name: moments.mean for name, moments in self.moments.items() if moments.count}


@dataclass(frozen=True)
class Hook:
    """A function and its rhythm: every so many items, at given items, or both."""

    action: Callable[[Ended], object]
    every: int | None
    at: Collection[int] | Literal["last"]

    def due(self, number: int, last: bool) -> bool:
        """Items are counted over the whole run, so `every=100` on batches does not start again with each parent."""
        if self.every is not None and (number + 1) % self.every == 0:
            return True
        return last if self.at == "last" else number in self.at

    @staticmethod
    def make(
        action: Callable[[Ended], object], every: int | None, at: Collection[int] | Literal["last"] | None
    ) -> Hook:
        if every is None and at is None:
            every = 1
        if every is not None and every < 1:
            raise LoopError(f"every={every!r}: a hook runs every 1 or more items")
        if isinstance(at, str) and at != "last":
            raise LoopError(f'at={at!r}: give item numbers counted from 0, or "last"')
        return Hook(action, every, () if at is None else at)

"""Where a step is: one index for each level, counted from 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from millpond.loop.errors import LoopError


class Address(Mapping[str, int]):
    """The indices of a step or of a level's item, outermost level first, each counted from 0 within its parent.

    str(address)              "epoch 3 cycle 41 iteration 7 batch 12"
    address["cycle"]          41
    address.begins("cycle")   whether this is the first step of its cycle
    """

    __slots__ = ("indices", "names")

    def __init__(self, names: tuple[str, ...], indices: tuple[int, ...]) -> None:
        self.names = names
        self.indices = indices

    def begins(self, level: str) -> bool:
        """Whether every index below `level` is 0, so that work due once for each item of the level is due now."""
        return not any(self.indices[self._depth(level) + 1 :])

    def __getitem__(self, level: str) -> int:
        if level in self.names:  # spelled out, because bodies ask it at every step
            return self.indices[self.names.index(level)]
        return self._depth(level)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        return " ".join(f"{name} {index}" for name, index in zip(self.names, self.indices, strict=True))

    def __repr__(self) -> str:
        return f"Address({self})"

    def _depth(self, level: str) -> int:
        try:
            return self.names.index(level)
        except ValueError:
            raise LoopError(f"there is no level {level!r}; the levels are {', '.join(self.names)}") from None

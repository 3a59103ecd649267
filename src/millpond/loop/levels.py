"""Nested levels, and the position of a loop in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.errors import MillpondError
from millpond.safe_read import is_count


class LoopError(MillpondError):
    """A loop is declared or used wrongly."""


class NonFiniteError(MillpondError):
    """A recorded value, or a weight, is nan or infinite. Training stops; the last checkpoint is older than the value.

    `address` is the step that recorded it; of a weight, the position as text.
    """

    exit_code = 1  # the input was valid: training failed

    def __init__(self, address: Address | str, name: str, value: float, batch_path: Path | None = None) -> None:
        self.address, self.name, self.value, self.batch_path = address, name, value, batch_path
        saved = f"; the batch is in {batch_path}" if batch_path is not None else ""
        super().__init__(f"{address}: {name} = {value}{saved}")


class Address(Mapping[str, int]):
    """Indices of a step or of a level's item, outermost level first, each counted from 0 within its parent.

    str(address)              "epoch 3 cycle 41 iteration 7 batch 12"
    address["cycle"]          41
    address.begins("cycle")   True for the first step of its cycle
    """

    __slots__ = ("indices", "names")

    def __init__(self, names: tuple[str, ...], indices: tuple[int, ...]) -> None:
        self.names = names
        self.indices = indices

    def begins(self, level: str) -> bool:
        """Return True if every index below `level` is 0: work that is done once per item of the level is due now."""
        return not any(self.indices[self._depth(level) + 1 :])

    def __getitem__(self, level: str) -> int:
        if level in self.names:  # the fast case, because the body of a loop may look this up at every step
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


@dataclass(frozen=True)
class Until:
    """Size of a level that continues until a predicate is true, evaluated at the end of each of its items."""

    predicate: Callable[[], bool]


# Number of items of a level in one item of its parent: a number; None (until `end` is called); a predicate (until it is
# true); or a pure function of the parent's address that returns a number or None.
Size = int | Until | Callable[[Address], int | None] | None


class Levels:
    """An odometer: the address of the next step, and the number of items of each level that have ended in total.

    With fixed sizes the indices are the digits of `totals[-1]`, the number of finished steps, in the mixed radix of the
    sizes.
    """

    def __init__(self, sizes: Mapping[str, Size]) -> None:
        if not sizes:
            raise LoopError("a loop needs at least one level, for example Loop(epoch=10, batch=50)")
        for name, size in sizes.items():
            if not (size is None or isinstance(size, Until) or callable(size)):
                _check_size(size, name, "")
        self.names = tuple(sizes)
        self._declared = tuple(sizes.values())
        self.indices = [0] * len(sizes)
        self.totals = [0] * len(sizes)
        self._last_called: set[int] = set()
        self._over = False  # for an open outermost level; one with a size is over when its index reaches the size
        self.sizes: list[int | None] = [self._size(depth) for depth in range(len(sizes))]

    def depth(self, level: str) -> int:
        if level not in self.names:
            raise LoopError(f"there is no level {level!r}; the levels are {', '.join(self.names)}")
        return self.names.index(level)

    def address(self, depth: int | None = None) -> Address:
        """Return the address of the next step, or of its item of the level at `depth`."""
        length = len(self.names) if depth is None else depth + 1
        return Address(self.names[:length], tuple(self.indices[:length]))

    @property
    def total_steps(self) -> int | None:
        """Product of the sizes if all are plain numbers."""
        steps = 1
        for size in self._declared:
            if not isinstance(size, int):
                return None
            steps *= size
        return steps

    @property
    def done(self) -> bool:
        """True after the last item of the outermost level."""
        size = self.sizes[0]
        return self._over if size is None else self.indices[0] >= size

    def mark_last(self, level: str) -> None:
        """Declare that the current item of an open level is the last of its parent."""
        depth = self.depth(level)
        if self.sizes[depth] is not None:
            raise LoopError(
                f"level {level!r} has {self.sizes[depth]} items here and cannot be ended by end(); declare its size as None"
            )
        self._last_called.add(depth)

    def ending(self) -> tuple[int, bool]:
        """Return the depth of the outermost level whose item ends with the current step, and True if the loop is over.

        An item of a level is its parent's last exactly if the parent ends too. Predicates are evaluated here, once per
        step.
        """
        for depth in range(len(self.names) - 1, -1, -1):
            if not self._is_last(depth):
                return depth, False
        return 0, True

    def _is_last(self, depth: int) -> bool:
        size, declared = self.sizes[depth], self._declared[depth]
        if size is not None:
            return self.indices[depth] + 1 >= size
        return depth in self._last_called or (isinstance(declared, Until) and declared.predicate())

    def advance_within(self, pause: int) -> bool:
        """Finish a step with which no other level ends, as most steps do; return False, and do nothing, otherwise.

        Also returns False every `pause` steps, so that the values recorded in a long level are read in between.
        """
        size, index = self.sizes[-1], self.indices[-1] + 1
        if size is None or index >= size or index % pause == 0:
            return False
        self.indices[-1] = index
        self.totals[-1] += 1
        return True

    def advance(self, outermost: int, over: bool) -> None:
        """Finish the current step, given the result of `ending`."""
        for depth in range(outermost, len(self.names)):
            self.totals[depth] += 1
            self.indices[depth] = 0 if depth > outermost else self.indices[depth] + 1
        self._last_called = {depth for depth in self._last_called if depth < outermost}
        self._over = over
        if not over:
            self._size_below(outermost)

    def reevaluate_end(self) -> None:
        """Evaluate the outermost level's predicate before its next item: a resumed run may be longer than before."""
        declared = self._declared[0]
        if isinstance(declared, Until) and not any(self.indices[1:]):
            self._over = declared.predicate()

    def _size_below(self, depth: int) -> None:
        for below in range(depth + 1, len(self.names)):
            self.sizes[below] = self._size(below)

    def _size(self, depth: int) -> int | None:
        declared = self._declared[depth]
        if declared is None or isinstance(declared, int):
            return declared
        if isinstance(declared, Until):
            return None
        parent = self.address(depth - 1)
        size = declared(parent)
        return None if size is None else _check_size(size, self.names[depth], f" in {parent}")

    def state_dict(self) -> dict[str, Any]:
        return {
            "levels": list(self.names),
            "indices": list(self.indices),
            "totals": list(self.totals),
            "last_called": [self.names[depth] for depth in sorted(self._last_called)],
            "over": self._over,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved position. Sizes come from this loop's declaration, so a run may become longer or shorter."""
        if tuple(state["levels"]) != self.names:
            raise LoopError(
                f"the saved position has the levels {' > '.join(state['levels'])}, this loop has "
                f"{' > '.join(self.names)}; a run resumes with the levels it started with"
            )
        for key in ("indices", "totals"):
            counts = state[key]
            if len(counts) != len(self.names) or not all(is_count(count) for count in counts):
                raise LoopError(
                    f"the saved position has {key}={counts!r}, not a count for each of {len(self.names)} levels"
                )
        if type(state["over"]) is not bool:
            raise LoopError(f"the saved position has over={state['over']!r}, not true or false")
        self.indices, self.totals = list(state["indices"]), list(state["totals"])
        self._last_called, self._over = {self.depth(name) for name in state["last_called"]}, state["over"]
        self.sizes[0] = self._size(0)
        if self.done:
            return
        self._size_below(0)
        for depth, (index, size) in enumerate(zip(self.indices, self.sizes, strict=True)):
            if depth and size is not None and index >= size:
                raise LoopError(
                    f"the saved position is {self.address()}, but level {self.names[depth]!r} now has only {size} "
                    f"items here; set its size to at least {index + 1}"
                )


def _check_size(size: object, name: str, where: str) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise LoopError(f"level {name!r} has the size {size!r}{where}; a size is a whole number of at least 1, or None")
    return size

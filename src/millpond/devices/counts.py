"""Counts of what a device is asked to do: by phase of a run, and by file and line."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["launch", "sync", "upload", "blocking upload", "download"]
KINDS: tuple[Kind, ...] = ("launch", "sync", "upload", "blocking upload", "download")
PACKAGE = str(Path(__file__).parents[1])
HERE = str(Path(__file__).parent)

# Kernels that read, or write, single places of a table.
READS_PLACES = frozenset({"index", "index_select", "gather", "embedding", "_unsafe_index"})
WRITES_PLACES = frozenset(
    {"index_put_", "_index_put_impl_", "index_copy_", "index_add_", "scatter_", "scatter_add_", "index_put"}
)


@dataclass
class Counts:
    """Launches of kernels, copies and waits.

    launch            a kernel is started
    sync              the host waits for a number of the device: item(), nonzero(), a boolean index
    upload            a copy from pinned memory, which the host does not wait for
    blocking upload   a copy from other memory of the host, which it waits for
    download          a copy to the host, which waits for it
    """

    phase: Callable[[], str] = str
    places: Counter[tuple[Kind, str, str]] = field(default_factory=Counter)  # (kind, phase, place)
    operations: Counter[str] = field(default_factory=Counter)
    bytes: Counter[Kind] = field(default_factory=Counter)
    operations_of_products: Counter[str] = field(
        default_factory=Counter
    )  # by phase; a multiplication and an addition are 2
    moved: Counter[str] = field(default_factory=Counter)  # bytes that kernels read and write, by phase

    def add(self, kind: Kind, operation: str, nbytes: int = 0) -> None:
        self.places[kind, self.phase(), place()] += 1
        self.operations[operation] += 1
        self.bytes[kind] += nbytes

    def of(self, kind: Kind, phase: str | None = None) -> int:
        """Return how many of a kind there were: in all, or in a phase and in those inside it."""
        return sum(
            count
            for (one, path, _), count in self.places.items()
            if one == kind and (phase is None or path == phase or path.startswith(f"{phase}/"))
        )

    def work(self, phase: str) -> dict[str, int]:
        """Return the operations of products, and the bytes that kernels move, of a phase and of those inside it."""

        def total(numbers: Counter[str]) -> int:
            return sum(count for path, count in numbers.items() if path == phase or path.startswith(f"{phase}/"))

        return {"operations": total(self.operations_of_products), "bytes": total(self.moved)}

    def totals(self, phase: str | None = None) -> dict[Kind, int]:
        return {kind: self.of(kind, phase) for kind in KINDS}

    def at(self, kind: Kind, phase: str | None = None) -> list[tuple[str, int]]:
        """Return the places in the package that did it, most often first."""
        found: Counter[str] = Counter()
        for (one, path, where), count in self.places.items():
            if one == kind and (phase is None or path == phase or path.startswith(f"{phase}/")):
                found[where] += count
        return found.most_common()


_active: list[Counts] = []


@contextmanager
def counting(phase: Callable[[], str] = str) -> Iterator[Counts]:
    """Count what the emulated device is asked to do within this context; `phase` names what is being done."""
    counts = Counts(phase)
    _active.append(counts)
    try:
        yield counts
    finally:
        _active.remove(counts)


def count(kind: Kind, operation: str, nbytes: int = 0) -> None:
    """Add to all open counts."""
    for counts in _active:
        counts.add(kind, operation, nbytes)


def count_work(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """Add the work of a kernel to all open counts: the operations of a product, and the bytes that it reads and writes.

    Of a table that it reads at some places, and of one that it writes to, only those places count.
    """
    if not _active:
        return
    import torch
    from torch.utils._pytree import tree_flatten
    from torch.utils.flop_counter import flop_registry

    inputs, outputs = (
        sum(value.nbytes for value in tree_flatten(tree)[0] if isinstance(value, torch.Tensor))
        for tree in ((args, kwargs), result)
    )
    name = func._schema.name.partition("::")[2]
    if name in READS_PLACES:
        moved = 2 * outputs
    elif name in WRITES_PLACES:
        moved = 2 * min(
            (v.nbytes for v in args[1:] if isinstance(v, torch.Tensor) and v.is_floating_point()), default=0
        )
    else:
        moved = inputs + outputs
    products = flop_registry.get(func._overloadpacket)
    operations = 0 if products is None else products(*args, **kwargs, out_val=result)
    for counts in _active:
        counts.moved[counts.phase()] += moved
        counts.operations_of_products[counts.phase()] += operations


def place() -> str:
    """Return file, line and function of the innermost caller in the package; `backward` in the threads of torch's autograd."""
    frame, outside = sys._getframe(2), False
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(HERE):
            if file.startswith(PACKAGE):
                return f"{file[len(PACKAGE) + 1 :]}:{frame.f_lineno} {frame.f_code.co_name}"
            outside = True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "outside of Millpond" if outside else "backward"

"""Progress of long work, on stderr: a bar on a terminal, elsewhere nothing or a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Watcher(Protocol):
    """Told how far the work is. `total` is None where nobody knows it."""

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> None: ...


@contextmanager
def watched(verb: str, *, lines_every: float | None = None) -> Iterator[Watcher]:
    """A bar, or a spinner where the total is unknown, while the work goes on; nothing of it remains.

    Where stderr is not a terminal, a line every `lines_every` seconds instead, if that is set.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:  # not a disabled bar: with rich before 14.3 that would still write an empty line
        yield _lines(verb, lines_every) if lines_every is not None else _nothing
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        task = bars.add_task(verb, total=None)

        def watch(what: str, done: int = 0, total: int | None = None) -> None:
            bars.update(task, description=f"{verb} {what}".rstrip(), completed=done, total=total)

        yield watch


def _nothing(what: str, done: int = 0, total: int | None = None) -> None:
    """Show no progress."""


def _lines(verb: str, every: float) -> Watcher:
    """Print a line every so many seconds."""
    next_line = time.monotonic() + every

    def watch(what: str, done: int = 0, total: int | None = None) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + every
            count = f", {done:,} of {total:,}" if total is not None else ""
            print(f"{verb} {what}{count}", file=sys.stderr, flush=True)

    return watch

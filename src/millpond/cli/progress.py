"""Progress of long work, on stderr, and only where a person watches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Watcher(Protocol):
    """Told how far the work is. `total` is None where nobody knows it."""

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> None: ...


@contextmanager
def watched(verb: str) -> Iterator[Watcher]:
    """A bar, or a spinner where the total is unknown, while the work goes on; nothing of it stays behind."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:  # a disabled bar would still write an empty line, with rich before 14.3
        yield lambda what, done=0, total=None: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        task = bars.add_task(verb, total=None)

        def watch(what: str, done: int = 0, total: int | None = None) -> None:
            bars.update(task, description=f"{verb} {what}".rstrip(), completed=done, total=total)

        yield watch

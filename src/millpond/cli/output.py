"""Output of the command line: text and JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from millpond.formatting import ascii_only, printable, printable_lines


def print_text(text: str) -> None:
    """Print text, as ASCII if stdout cannot encode it; on a terminal, headings and alerts are bold.

    Names in it may come from a file: control characters are shown, not sent to the terminal.
    """
    text = printable_lines(text)
    if not _can_encode(text):
        encoding = sys.stdout.encoding or "ascii"
        text = ascii_only(text).encode(encoding, errors="replace").decode(encoding)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        text = "\n".join(_styled(line) for line in text.splitlines())
    print(text)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, default=str))


def print_problem(text: str, *, one_line: bool = True) -> None:
    """Print an error or a warning on stderr, without control characters."""
    print(f"millpond: {printable(text) if one_line else printable_lines(text)}", file=sys.stderr)


class ProgressCallback(Protocol):
    """Report progress; `total` is None if it is unknown."""

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> None: ...


@contextmanager
def progress(verb: str, *, lines_every: float | None = None) -> Iterator[ProgressCallback]:
    """Show a progress bar on stderr, or a spinner if the total is unknown, and remove it at the end.

    If stderr is not a terminal, print a line every `lines_every` seconds, or nothing if that is None.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:  # not a disabled bar: with rich before 14.3 that would still write an empty line
        yield _print_lines(verb, lines_every) if lines_every is not None else _show_nothing
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        task = bars.add_task(verb, total=None)

        def update(what: str, done: int = 0, total: int | None = None) -> None:
            bars.update(task, description=printable(f"{verb} {what}".rstrip()), completed=done, total=total)

        yield update


def _show_nothing(what: str, done: int = 0, total: int | None = None) -> None:
    """Show no progress."""


def _print_lines(verb: str, every: float) -> ProgressCallback:
    """Print a line of progress every so many seconds."""
    next_line = time.monotonic() + every

    def update(what: str, done: int = 0, total: int | None = None) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + every
            count = f", {done:,} of {total:,}" if total is not None else ""
            print(printable(f"{verb} {what}{count}"), file=sys.stderr, flush=True)

    return update


def _can_encode(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _styled(line: str) -> str:
    if line.startswith("!! "):
        return f"\x1b[1;31m{line}\x1b[0m"
    is_heading = bool(line) and not line[0].isspace()
    return f"\x1b[1m{line}\x1b[0m" if is_heading else line

"""What a person sees while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millpond.loop import Loop
from millpond.record.counters import COUNTERS, Axis, Counters
from millpond.record.jsonlines import Record
from millpond.record.pace import Pace, show_seconds
from millpond.record.table import show_number, show_table
from millpond.record.timer import Timer

REFRESH_PER_SECOND = 2.0  # each refresh takes a few milliseconds from the training


class Console:
    """With a terminal a live display; without one a plain line now and then.

    Both show where the run is in every level, its speed, the time left at each level, the share of time in each
    phase, and the newest metrics with their trend since the record before.
    """

    remote = False

    def __init__(
        self,
        loop: Loop,
        counters: Counters,
        timer: Timer,
        axis: Axis,
        *,
        seconds_between_lines: float = 10.0,
        terminal: Terminal | None = None,
    ) -> None:
        self._loop, self._counters, self._timer, self._axis = loop, counters, timer, axis
        self._terminal = terminal or Terminal()
        self._rhythm = seconds_between_lines
        self._newest: Record = {}
        self._before: Record = {}
        self._line_due = 0.0
        self._live: Live | None = None

    def open(self, kept: Iterable[Record]) -> None:
        for record in kept:
            self._newest = record
        self._pace = Pace(self._loop)
        self._began, self._count_began = time.monotonic(), getattr(self._counters, self._axis)
        if self._terminal.is_terminal:
            self._live = Live(
                get_renderable=self.display,
                console=self._terminal,
                refresh_per_second=REFRESH_PER_SECOND,
                transient=True,
            )
            self._live.start()

    def write(self, record: Record, number: int) -> None:
        self._before, self._newest = self._newest, record
        if self._live is None and time.monotonic() >= self._line_due:
            self._line_due = time.monotonic() + self._rhythm
            self._terminal.print(self.line(), soft_wrap=True, markup=False, highlight=False)

    def table(self, rows: Mapping[str, str]) -> None:
        """Print a table; a live display stays below it."""
        self._terminal.print(show_table(rows), markup=False, highlight=False)

    def say(self, text: str) -> None:
        """Print lines of a trainer's own; a live display stays below them."""
        self._terminal.print(text, soft_wrap=True, markup=False, highlight=False)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._terminal.print(self.line(), soft_wrap=True, markup=False, highlight=False)

    def line(self) -> str:
        """Everything on one line, for a log."""
        metrics = "  ".join(f"{name} {value}{trend}" for name, value, trend in self._metrics())
        return f"{self._where()} | {self._speed()} | {metrics}"

    def display(self) -> RenderableType:
        """Everything, for a terminal."""
        phases = "  ".join(f"{name} {share:.0%}" for name, share in self._timer.shares().items())
        metrics = Table.grid(padding=(0, 2))
        for name, value, trend in self._metrics():
            metrics.add_row(Text(name, style="dim"), Text(value, justify="right"), trend.strip())
        return Group(Text(self._where(), style="bold"), Text(self._speed()), Text(phases, style="cyan"), metrics)

    def _where(self) -> str:
        left, sizes = self._pace.seconds_left(), self._loop.sizes
        return "  ".join(
            f"{name} {index}/{sizes[name] or '?'} ({show_seconds(left[name])} left)"
            for name, index in self._loop.address.items()
        )

    def _speed(self) -> str:
        count = getattr(self._counters, self._axis)
        rate = (count - self._count_began) / max(time.monotonic() - self._began, 1e-9)
        return f"{count:,} {self._axis}, {show_number(round(rate, 1))}/s, {show_seconds(self._counters.seconds)} in all"

    def _metrics(self) -> Iterable[tuple[str, str, str]]:
        for name, value in self._newest.items():
            if name not in COUNTERS and not name.startswith("time/"):
                before = self._before.get(name, value)
                yield name, show_number(value), " ↑" if value > before else " ↓" if value < before else " →"

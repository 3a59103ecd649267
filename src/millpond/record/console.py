"""Progress on the console: live display, log lines, remaining time and tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millpond.formatting import printable, printable_lines
from millpond.loop import Address, Loop
from millpond.record.jsonlines import Record
from millpond.record.recorder import COUNTERS, Axis, Counters
from millpond.record.timer import Timer

REFRESH_PER_SECOND = 2.0  # each refresh takes a few milliseconds from the training


class Console:
    """A live display on a terminal; otherwise a plain line every few seconds.

    Both show the position in every level, the speed, the time left at each level, the share of time in each phase, and
    the newest metrics with their trend since the previous record.
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
        self._seconds_between_lines = seconds_between_lines
        self._newest: Record = {}
        self._before: Record = {}
        self._line_due = 0.0
        self._live: Live | None = None

    def open(self, previous: Iterable[Record]) -> None:
        for record in previous:
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
            self._line_due = time.monotonic() + self._seconds_between_lines
            self._terminal.print(self.line(), soft_wrap=True, markup=False, highlight=False)

    def table(self, rows: Mapping[str, str]) -> None:
        """Print a table; a live display stays below it."""
        self._terminal.print(printable_lines(show_table(rows)), markup=False, highlight=False)

    def say(self, text: str) -> None:
        """Print lines of a trainer; a live display stays below them."""
        self._terminal.print(printable_lines(text), soft_wrap=True, markup=False, highlight=False)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._terminal.print(self.line(), soft_wrap=True, markup=False, highlight=False)

    def line(self) -> str:
        """Return everything on one line, for a log."""
        metrics = "  ".join(f"{name} {value}{trend}" for name, value, trend in self._metrics())
        return f"{self._position()} | {self._speed()} | {metrics}"

    def display(self) -> RenderableType:
        """Return everything, for a terminal."""
        phases = "  ".join(f"{name} {share:.0%}" for name, share in self._timer.shares().items())
        metrics = Table.grid(padding=(0, 2))
        for name, value, trend in self._metrics():
            metrics.add_row(Text(name, style="dim"), Text(value, justify="right"), trend.strip())
        return Group(Text(self._position(), style="bold"), Text(self._speed()), Text(phases, style="cyan"), metrics)

    def _position(self) -> str:
        left, sizes = self._pace.seconds_left(), self._loop.sizes
        return "  ".join(
            f"{name} {index}/{sizes[name] or '?'} ({show_seconds(left[name])} left)"
            for name, index in self._loop.address.items()
        )

    def _speed(self) -> str:
        count = getattr(self._counters, self._axis)
        rate = (count - self._count_began) / max(time.monotonic() - self._began, 1e-9)
        return (
            f"{count:,} {self._axis}, {show_number(round(rate, 1))}/s, {show_seconds(self._counters.seconds)} in total"
        )

    def _metrics(self) -> Iterable[tuple[str, str, str]]:
        for name, value in self._newest.items():
            if name not in COUNTERS and not name.startswith("time/"):
                before = self._before.get(name, value)
                yield printable(name), show_number(value), " ↑" if value > before else " ↓" if value < before else " →"


class Pace:
    """Estimate the remaining time: the mean time per item of a level in this process, times the items left."""

    def __init__(self, loop: Loop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._began = clock()
        self._totals = list(loop.totals.values())

    def seconds_left(self) -> dict[str, float | None]:
        """Return the time until the current parent of each level ends; None if it is unknown."""
        indices, sizes = self._loop.address.indices, tuple(self._loop.sizes.values())
        seconds_per_item = self._seconds_per_item(sizes)
        left: float | None = 0.0
        result: dict[str, float | None] = {}
        for depth in reversed(range(len(sizes))):
            size, seconds, below = sizes[depth], seconds_per_item[depth], left
            if size is None or seconds is None:
                left = None
            elif depth == len(sizes) - 1 or below is None:
                left = max(0, size - indices[depth]) * seconds
            else:
                left = max(0, size - indices[depth] - 1) * seconds + below
            result[self._loop.names[depth]] = left
        return dict(reversed(result.items()))

    def _seconds_per_item(self, sizes: tuple[int | None, ...]) -> list[float | None]:
        elapsed = self._clock() - self._began
        each: list[float | None] = [None] * len(sizes)
        totals = list(self._loop.totals.values())
        for depth in reversed(range(len(sizes))):
            ended = totals[depth] - self._totals[depth]
            if ended:
                each[depth] = elapsed / ended
            elif depth + 1 < len(sizes):
                below, size = each[depth + 1], sizes[depth + 1]
                each[depth] = None if below is None or size is None else below * size
        return each


def show_seconds(seconds: float | None) -> str:
    """Format a time: "8s", "4m05s", "2h30m", "3d04h", and "?" for unknown."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    for unit, lower, size, part in (("d", "h", 86400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{lower}"
    return f"{whole}s"


def cycle_rows(address: Address, sizes: Mapping[str, int | None], record: Record) -> dict[str, str]:
    """Return the rows of the table of a cycle: Epoch, Cycle, Episodes, Timesteps, TimeCost, then metrics.

    Timesteps are agent steps. The times are those of the phases `train` and `test` in the record.
    """
    rows = {
        level.capitalize(): f"{index}" if sizes.get(level) is None else f"{index}/{sizes[level]}"
        for level, index in address.items()
    }
    rows["Episodes"] = f"{record['episodes']:,}"
    rows["Timesteps"] = f"{record['agent_steps']:,}"
    for phase in ("train", "test"):
        rows[f"TimeCost(sec)/{phase}"] = f"{record.get(f'time/{phase}', 0.0):.2f}"
    metrics = {name: value for name, value in record.items() if name not in COUNTERS and not name.startswith("time/")}
    return rows | {name: show_number(value) for name, value in metrics.items()}


def show_table(rows: Mapping[str, str]) -> str:
    """Format two columns in a frame of ASCII characters, for log files."""
    rows = {printable(name): value for name, value in rows.items()}
    left = max(len(name) for name in rows)
    right = max(len(value) for value in rows.values())
    rule = f"+{'-' * (left + 2)}+{'-' * (right + 2)}+"
    return "\n".join([rule, *(f"| {name:<{left}} | {value:>{right}} |" for name, value in rows.items()), rule])


def show_number(value: float) -> str:
    """Format whole numbers with separators, others with five significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.5g}"

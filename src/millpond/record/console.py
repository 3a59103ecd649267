"""Progress on the console: a live display on a terminal, otherwise log lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from rich.console import Console as Terminal
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.text import Text

from millpond.cpu import memory_bytes, usable_cores
from millpond.formatting import printable, printable_lines, short_number
from millpond.loop import Loop
from millpond.record.capture import CapturedTerminal, active_capture
from millpond.record.display import ScreenView, headline_names, label, page
from millpond.record.history import History
from millpond.record.jsonlines import Record
from millpond.record.pace import Pace, Speed, show_seconds
from millpond.record.recorder import COUNTERS, Axis, Counters
from millpond.record.tables import show_number, show_table
from millpond.record.timer import Timer
from millpond.record.usage import Usage, UsageMeter

REFRESH_PER_SECOND = 2.0
USAGE_SECONDS = 2.0  # between two measurements of cores and memory
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(0x0B, 0x1B), *range(0x1C, 0x20), *range(0x7F, 0xA0))}


class Console:
    """A live display on a terminal; otherwise a short line every few seconds.

    Both show the return first, then steps, speed and time left. `verbose`: no display, and lines with everything.
    `title` names the run; `limit_left` returns the rest of its time limit, if it has one.
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
        verbose: bool = False,
        title: str = "",
        limit_left: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._loop, self._counters, self._timer, self._axis = loop, counters, timer, axis
        self._terminal = terminal or _own_terminal()
        self._on_terminal = self._terminal.is_terminal  # a closed one no longer is
        self._seconds_between_lines, self._verbose = seconds_between_lines, verbose
        self._title, self._limit_left = title, limit_left
        self._history, self._warnings = History(), dict[str, str]()
        self._measured: set[str] = set()  # metrics that were shown since the last record
        self._newest: Record = {}
        self._before: Record = {}
        self._line_due = 0.0
        self._live: Live | None = None
        self._drawn_size: ConsoleDimensions | None = None
        self._usage: tuple[float, Usage | None] = (0.0, None)  # when it is due again, and what it was

    def open(self, previous: Iterable[Record]) -> None:
        for record in previous:
            self._newest = record
            self._history.add(record)
        self._pace, self._speed = Pace(self._loop), Speed(self._count)
        self._began, self._count_began = time.monotonic(), self._count
        if self._on_terminal and not self._terminal.is_dumb_terminal and not self._verbose:
            self._start_live()

    def _start_live(self) -> None:
        self._meter, capture = UsageMeter(), active_capture()
        self._live = Live(
            get_renderable=self.display,
            console=self._terminal,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=capture is None,
            redirect_stderr=capture is None,
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)
        self._terminal.show_cursor(True)  # so that there is nothing to restore after kill -9
        if capture is not None:
            capture.show = self._show_output

    def write(self, record: Record, number: int) -> None:
        self._before, self._newest = self._newest, record
        self._add({name: value for name, value in record.items() if name not in self._measured})
        self._measured.clear()

    def measure(self, metrics: Mapping[str, float]) -> None:
        """Show values between two records; they are not recorded."""
        self._newest = {**self._newest, **metrics}
        self._measured |= metrics.keys()
        self._add(metrics)

    def _add(self, metrics: Mapping[str, float]) -> None:
        self._history.add(metrics)
        self._speed.add(self._count)
        if self._live is None and time.monotonic() >= self._line_due:
            self._line_due = time.monotonic() + self._seconds_between_lines
            self._print(self.long_line() if self._verbose else self.line())

    def table(self, rows: Mapping[str, str]) -> None:
        """Print a table; a live display stays below it."""
        self._print(printable_lines(show_table(rows)))

    def say(self, text: str) -> None:
        """Print lines of a trainer; a live display stays below them."""
        self._print(printable_lines(text))

    def warn(self, cause: str, text: str) -> None:
        """Print a warning; on a live display it stays at the bottom, instead of an earlier one of the same cause."""
        if self._live is None:
            self.say(f"warning: {text}")
        else:
            self._warnings.pop(cause, None)
            self._warnings[cause] = text

    def close(self) -> None:
        if self._live is None:
            return
        capture = active_capture()
        if capture is not None:
            capture.show = None
        with suppress(OSError):  # the terminal has gone
            self._live.stop()
        self._live = None
        self._print(self.line())
        for text in self._warnings.values():
            self.say(f"warning: {text}")

    def line(self) -> str:
        """Return a short line: share done, return, steps, speed, time left."""
        share, left = self._pace.progress(self._limit_left())
        speed = self._speed.per_second()
        figures = []
        for name in headline_names(self._history):
            curve = self._history.get(name)
            assert curve is not None
            figures.append(f"{label(name)} {short_number(curve.newest)}")
        parts = [
            *figures,
            f"{short_number(self._count)} {self._axis.replace('_', ' ')}",
            *([] if speed is None else [f"{short_number(speed)}/s"]),
            f"{show_seconds(left)} left",
        ]
        return f"{'' if share is None else f'{share:4.0%}  '}{'  '.join(parts)}"

    def long_line(self) -> str:
        """Return everything on one line."""
        metrics = "  ".join(f"{name} {value}{trend}" for name, value, trend in self._metrics())
        left, sizes = self._pace.seconds_left(), self._loop.sizes
        position = "  ".join(
            f"{name} {index}/{sizes[name] or '?'} ({show_seconds(left[name])} left)"
            for name, index in self._loop.address.items()
        )
        rate = (self._count - self._count_began) / max(time.monotonic() - self._began, 1e-9)
        speed = f"{self._count:,} {self._axis}, {show_number(round(rate, 1))}/s"
        return f"{position} | {speed}, {show_seconds(self._counters.seconds)} in total | {metrics}"

    def display(self) -> RenderableType:
        """Return the live display for the terminal's present size."""
        size = self._terminal.size
        if self._drawn_size is not None and size != self._drawn_size:
            # Lines that no longer fit were wrapped, so the cursor's way back to the first one is unknown.
            self._terminal.control(Control.clear(), Control.home())
        self._drawn_size = size
        ascii_only = not self._terminal.encoding.startswith("utf")
        # One row is left, so that the line above the display remains visible.
        return Group(*page(self.view(), size.width, max(1, size.height - 1), ascii_only=ascii_only))

    def view(self) -> ScreenView:
        """Return what the display shows now."""
        share, left = self._pace.progress(self._limit_left())
        sizes = self._loop.sizes
        return ScreenView(
            title=self._title,
            axis=self._axis,
            history=self._history,
            usage=self._measure_usage(),
            cores=usable_cores(),
            memory=memory_bytes(),
            share=share,
            seconds_left=left,
            seconds=self._counters.seconds,
            count=self._count,
            per_second=self._speed.per_second(),
            position=[(name, index, sizes[name]) for name, index in self._loop.address.items()],
            phases=self._timer.shares(),
            warnings=list(self._warnings.values()),
        )

    def _measure_usage(self) -> Usage | None:
        due, usage = self._usage
        if time.monotonic() >= due and self._live is not None:
            first = due == 0.0  # the meter has only just begun
            usage = None if first else self._meter()
            self._usage = time.monotonic() + (USAGE_SECONDS if not first else 0.5), usage
        return usage

    @property
    def _count(self) -> int:
        return int(getattr(self._counters, self._axis))

    def _metrics(self) -> Iterable[tuple[str, str, str]]:
        for name, value in self._newest.items():
            if name not in COUNTERS and not name.startswith("time/"):
                before = self._before.get(name, value)
                yield printable(name), show_number(value), " ↑" if value > before else " ↓" if value < before else " →"

    def _print(self, text: str) -> None:
        try:
            self._terminal.print(text, soft_wrap=True, markup=False, highlight=False)
        except OSError:
            if not self._on_terminal:  # a full disk; but a terminal may have been closed
                raise

    def _show_output(self, text: str) -> None:
        """Print captured output above the display: with its colours, without anything that moves the cursor."""
        self._terminal.print(Text.from_ansi(text.translate(CONTROLS)), soft_wrap=True, markup=False, highlight=False)


def _own_terminal() -> Terminal:
    """Return the terminal of stdout, also if output is captured. FORCE_COLOR makes no terminal of a file."""
    capture = active_capture()
    if capture is not None:
        return CapturedTerminal(file=capture.file)
    return Terminal() if sys.stdout.isatty() else Terminal(force_terminal=False)

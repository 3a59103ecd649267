"""The list of runs."""

from __future__ import annotations

import os
import re
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millpond.errors import MillpondError
from millpond.formatting import plural, printable, short_number
from millpond.record import COUNTERS, RETURNS, Record, last_record, newest_headline, show_seconds
from millpond.safe_read import JSON_BYTES, parse_json_object, read_json_object, read_regular, require_regular
from millpond.store.checkpoints import Checkpoints
from millpond.store.folder import CONFIG, HOST, METRICS, WARNINGS, is_run
from millpond.store.status import State, read_status


@dataclass(frozen=True)
class RunRow:
    """Facts about a run. Checkpoints are named by their updates; `best_score` is the best evaluation's.

    `headline` and `result` are the name and newest value of the run's headline metric: its return, if it has one.
    """

    name: str
    folder: Path
    state: State
    note: str
    since: float
    checkpoint: int | None
    best_checkpoint: int | None
    best_score: float | None
    headline: str | None
    result: float | None
    counters: dict[str, float]
    metrics: dict[str, float]
    warnings: tuple[str, ...] = ()  # causes that the run warned about

    @property
    def steps(self) -> tuple[float, str]:
        """Agent steps, or, if no agent acts since a reward is learned from recorded episodes, updates; and which."""
        steps = self.counters.get("agent_steps", 0)
        return (steps, "agent_steps") if steps else (self.counters.get("updates", 0), "updates")

    @property
    def speed(self) -> float | None:
        """Steps per second, on average over the whole run."""
        seconds = self.counters.get("seconds", 0.0)
        return self.steps[0] / seconds if seconds and self.steps[0] else None

    @property
    def age(self) -> float:
        """Seconds since the state changed."""
        return max(0.0, time.time() - self.since)

    def to_json(self) -> dict[str, Any]:
        """Return everything, for programs."""
        steps, unit = self.steps
        return {**asdict(self), "steps": steps, "unit": unit, "speed": self.speed, "age": self.age}


def list_runs(root: Path) -> list[RunRow]:
    """Return every run in a folder; the one whose state changed last is the last.

    A run with a broken file is listed with what could be read, and its note names the file.
    """
    rows = [read_row(folder) for folder in (root.iterdir() if root.is_dir() else ()) if is_run(folder)]
    return sorted(rows, key=lambda row: row.since)


def read_row(folder: Path) -> RunRow:
    """Read the facts about one run: small files, and the end of its metrics."""
    status = read_status(folder)
    record, problems = _last_record(folder)
    try:
        causes = dict.fromkeys(str(warning.get("cause", "")) for warning in read_warnings(folder))
    except MillpondError as error:
        causes, problems = {}, [*problems, str(error)]
    checkpoints = Checkpoints(folder / "checkpoints")
    saved, best = checkpoints.updates(), checkpoints.best_score()
    headline = newest_headline(folder / METRICS, evaluated=best is not None)
    return RunRow(
        name=folder.name,
        folder=folder,
        state=status.state,
        note="; ".join(filter(None, (status.note, *problems))),
        since=status.since,
        checkpoint=saved[-1] if saved else None,
        best_checkpoint=best[0] if best else None,
        best_score=best[1] if best else None,
        headline=headline[0] if headline else None,
        result=headline[1] if headline else None,
        counters={name: record[name] for name in COUNTERS if name in record},
        metrics={name: value for name, value in record.items() if name not in COUNTERS},
        warnings=tuple(causes),
    )


def _last_record(folder: Path) -> tuple[Record, list[str]]:
    """Return the newest record of a run, and a sentence for each of its files that cannot be used."""
    problems = []
    for check, name in ((require_regular, CONFIG), (read_json_object, HOST)):
        try:
            check(folder / name)
        except MillpondError as error:
            problems.append(str(error))
    try:
        return last_record(folder / METRICS) or {}, problems
    except (MillpondError, OSError) as error:
        return {}, [*problems, str(error)]


def read_warnings(folder: Path) -> list[dict[str, Any]]:
    """Return the warnings of a run, each with its cause, text and updates. Raises `MillpondError` if they cannot be read."""
    path = folder / WARNINGS
    if not os.path.lexists(path):
        return []
    lines = read_regular(path, JSON_BYTES).splitlines()
    return [parse_json_object(line, f"{path.name} line {number}") for number, line in enumerate(lines, start=1)]


WIDTH = 80
HEADINGS = ("RUN", "RETURN", "BEST", "STEPS", "SPEED", "STATE", "AGE")
LEFT = {0, 5}  # columns that are aligned to the left


def show_runs(rows: Sequence[RunRow]) -> str:
    """Format the list, at most 80 columns wide: return, best, steps, speed, state, age; note and warnings of each."""
    if not rows:
        return "no runs yet"
    others = list(dict.fromkeys(row.headline for row in rows if row.headline and row.headline not in RETURNS))
    table = [HEADINGS, *(_cells(row, others) for row in rows)]
    widths = [max(len(line[k]) for line in table) for k in range(len(HEADINGS))]
    room = WIDTH - sum(widths[1:]) - 2 * (len(HEADINGS) - 1)  # a longer name has its own line
    widths[0] = max(len(name) for name, *_ in table if len(name) <= room)
    lines = []
    for row, cells in zip([None, *rows], table, strict=True):
        first = cells[0] if len(cells[0]) <= room else ""
        if not first:
            lines.append(cells[0])
        shown = zip((first, *cells[1:]), widths, strict=True)
        aligned = (f"{cell:<{width}}" if k in LEFT else f"{cell:>{width}}" for k, (cell, width) in enumerate(shown))
        lines.append("  ".join(aligned).rstrip())
        if row is not None and row.note:
            lines += _indented(row.note)
        if row is not None and row.warnings:
            lines += _indented(f"{plural(len(row.warnings), 'warning')}: {', '.join(row.warnings)}")
    lines += [f"{_mark(name, others)} {name}, not a return" for name in others]
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return textwrap.wrap(printable(text), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _cells(row: RunRow, others: Sequence[str]) -> tuple[str, ...]:
    steps, unit = row.steps
    mark = _mark(row.headline, others)
    return (
        printable(row.name),
        "-" if row.result is None else f"{short_number(row.result)}{mark}",
        "-" if row.best_score is None else f"{short_number(row.best_score)}{mark}",
        f"{short_number(steps)}{' upd' if unit == 'updates' else ''}" if steps else "-",
        "-" if row.speed is None else f"{short_number(row.speed)}/s",
        row.state,
        re.sub(r"(?<=\D)\d+\D$", "", show_seconds(row.age)),  # only the larger unit
    )


def _mark(name: str | None, others: Sequence[str]) -> str:
    """Return the stars after a figure that is not a return, one more for each kind of figure."""
    return "*" * (others.index(name) + 1) if name in others else ""

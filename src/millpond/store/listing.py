"""The list of runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millpond.record import COUNTERS, last_record, show_number, show_seconds
from millpond.store.checkpoints import Checkpoints
from millpond.store.run import is_run
from millpond.store.status import State, read_status


@dataclass(frozen=True)
class RunRow:
    """A run at a glance. Checkpoints are named by their updates; `best_score` is the best one's, by evaluation."""

    name: str
    folder: Path
    state: State
    note: str
    since: float
    checkpoint: int | None
    best_checkpoint: int | None
    best_score: float | None
    counters: dict[str, float]
    metrics: dict[str, float]


def list_runs(root: Path) -> list[RunRow]:
    """Every run in a folder, the one whose state changed last at the end."""
    rows = []
    for folder in root.iterdir() if root.is_dir() else ():
        if not is_run(folder):
            continue
        status = read_status(folder)
        record = last_record(folder / "metrics.jsonl") or {}
        checkpoints = Checkpoints(folder / "checkpoints")
        saved, best = checkpoints.updates(), checkpoints.best_score()
        counters = {name: record[name] for name in COUNTERS if name in record}
        metrics = {name: value for name, value in record.items() if name not in COUNTERS}
        rows.append(
            RunRow(
                name=folder.name,
                folder=folder,
                state=status.state,
                note=status.note,
                since=status.since,
                checkpoint=saved[-1] if saved else None,
                best_checkpoint=best[0] if best else None,
                best_score=best[1] if best else None,
                counters=counters,
                metrics=metrics,
            )
        )
    return sorted(rows, key=lambda row: row.since)


def _best(row: RunRow) -> str:
    if row.best_checkpoint is None or row.best_score is None:
        return "-"
    return f"{show_number(row.best_checkpoint)} ({show_number(row.best_score)})"


def show_runs(rows: Sequence[RunRow], metrics_shown: int = 4) -> str:
    """The list as text: name, state, counters, checkpoint, newest metrics, and what there is to say."""
    if not rows:
        return "no runs yet"
    table = [("RUN", "STATE", "AGO", "UPDATES", "AGENT STEPS", "TIME", "CHECKPOINT", "BEST", "NEWEST METRICS")]
    for row in rows:
        shown = [(name, value) for name, value in row.metrics.items() if not name.startswith("time/")][:metrics_shown]
        table.append(
            (
                row.name,
                row.state,
                show_seconds(max(0.0, time.time() - row.since)),
                show_number(row.counters.get("updates", 0)),
                show_number(row.counters.get("agent_steps", 0)),
                show_seconds(row.counters.get("seconds", 0.0)),
                "none" if row.checkpoint is None else show_number(row.checkpoint),
                _best(row),
                "  ".join(f"{name} {show_number(value)}" for name, value in shown)
                + (f"  ({row.note.splitlines()[0]})" if row.note else ""),
            )
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    right = {2, 3, 4, 5, 6, 7}
    return "\n".join(
        "  ".join(
            f"{cell:>{width}}" if column in right else f"{cell:<{width}}" for column, (cell, width) in enumerate(cells)
        ).rstrip()
        for cells in (list(zip(line, widths, strict=True)) for line in table)
    )

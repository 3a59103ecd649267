"""Everything about one run for its page: config, plan, host, time by phase, checkpoints, evaluations, warnings, lake.

And the settings in which several runs differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from millpond.board.catalog import Catalog, RunEntry
from millpond.board.records import RunRecords
from millpond.config.rules import show as show_value
from millpond.errors import MillpondError
from millpond.record import RETURNS
from millpond.report.comparison import NOT_LEARNING
from millpond.safe_read import read_json_object, read_regular
from millpond.store import read_warnings
from millpond.store.checkpoints import CheckpointInfo, list_checkpoints
from millpond.store.folder import CONFIG, HOST, PLAN

T = TypeVar("T")

MAX_CONFIG = 1 << 18  # bytes that are sent
MAX_ROWS = 100  # evaluations, checkpoints, warnings
MAX_DIFFERENCES, ABSENT = 100, "-"
LAKE, REPORT = "lake", "report.html"


def run_details(catalog: Catalog, entry: RunEntry) -> dict[str, Any]:
    """Return what the page of a run shows. Files that cannot be read are named in `problems`."""
    folder, problems = entry.folder, [entry.row.note] if entry.row is not None and entry.row.note else []
    records = catalog.records(entry)
    if records.problem:
        problems.append(records.problem)

    def attempt(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (MillpondError, OSError) as error:
            problems.append(str(error))
            return otherwise

    nothing: dict[str, Any] = {}
    none: tuple[list[CheckpointInfo], list[str]] = ([], [])
    no_warnings: list[dict[str, Any]] = []
    checkpoints, damaged = attempt(lambda: list_checkpoints(folder / "checkpoints"), none)
    return {
        **entry.to_json(),
        "config": attempt(lambda: read_regular(folder / CONFIG)[:MAX_CONFIG].decode("utf-8", "replace"), ""),
        "plan": attempt(lambda: read_json_object(folder / PLAN, finite=False), nothing),
        "host": attempt(lambda: read_json_object(folder / HOST, finite=False), nothing),
        "warning_texts": attempt(lambda: read_warnings(folder), no_warnings)[-MAX_ROWS:],
        "phases": phases(records),
        "evaluations": evaluations(records),
        "checkpoints": [
            {
                "updates": each.updates,
                "score": each.score,
                "bytes": each.nbytes,
                "saved": each.saved_at,
                "best": each.best,
            }
            for each in checkpoints[-MAX_ROWS:]
        ],
        "has_lake": (folder / LAKE).is_dir() and catalog.inside(folder / LAKE),
        "has_report": is_plain_file(catalog, folder / REPORT),
        "records": {"count": records.count, "sampled": records.sampled, "metrics": records.names()},
        "problems": [*problems, *damaged],
    }


def is_plain_file(catalog: Catalog, path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and catalog.inside(path)


def phases(records: RunRecords) -> dict[str, float]:
    """Return the share of time by phase, nested ones as `collect/step`; `other` is the time outside of all phases."""
    names = [name for name in records.names() if name.startswith("time/")]
    totals = {name.removeprefix("time/"): float(np.nansum(records.column(name))) for name in names}
    outer = sum(seconds for name, seconds in totals.items() if "/" not in name)
    if not outer:
        return {}
    seconds = records.last("seconds") or 0.0
    rows = max(1, len(records.column("seconds")))
    whole = outer if records.sampled else max(outer, seconds * rows / max(1, records.count))  # a kept row is a mean
    return {**{name: spent / whole for name, spent in totals.items()}, "other": 1.0 - outer / whole}


def evaluations(records: RunRecords) -> list[dict[str, float | None]]:
    """Return the newest evaluations: counters, return with its interval, length and infos."""
    infos = [name for name in records.names() if name.startswith("eval/")]
    table = records.table(["updates", "agent_steps", "seconds", *infos])
    returns = table.get(RETURNS[0])
    if returns is None:
        return []
    there = np.flatnonzero(np.isfinite(returns))[-MAX_ROWS:]
    return [
        {name: float(column[k]) if np.isfinite(column[k]) else None for name, column in table.items()}
        for k in there.tolist()
    ]


def differences(entries: Sequence[RunEntry]) -> list[dict[str, Any]]:
    """Return the settings that all runs have, with different values; what is not learned from, such as the seed, last.

    A run without a readable config has none of them.
    """
    known = [entry.settings for entry in entries if entry.settings]
    keys = [key for key in known[0] if all(key in settings for settings in known)] if known else []
    rows = [(key, [_value(entry.settings, key) for entry in entries]) for key in keys]
    rows = [(key, values) for key, values in rows if len({value for value in values if value != ABSENT}) > 1]
    rows.sort(key=lambda row: row[0].startswith(NOT_LEARNING))
    return [{"key": key, "values": values} for key, values in rows[:MAX_DIFFERENCES]]


def _value(settings: Mapping[str, Any], key: str) -> str:
    return str(show_value(settings[key]))[:200] if key in settings else ABSENT

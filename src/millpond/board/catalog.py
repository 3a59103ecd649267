"""The runs and sweeps of a folder. A run is read again only when one of its files has changed.

Runs are named by their path below the folder, `grid-1` or `grid.space/runs/trial0007.seed1`; only names in this list can be
asked for, so that no path from outside is ever opened. Links that lead out of the folder are not followed.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from millpond.board.curves import Overview, describe_progress
from millpond.board.labels import LABELS, Labels, read_labels
from millpond.board.records import RunRecords
from millpond.config.check import flatten_mapping
from millpond.config.yaml import parse, read_mapping, read_text
from millpond.errors import MillpondError
from millpond.formatting import printable
from millpond.report.comparison import NOT_LEARNING
from millpond.safe_read import require_regular
from millpond.store import RunRow
from millpond.store.folder import CONFIG, METRICS, WARNINGS, is_run
from millpond.store.listing import read_row
from millpond.store.status import STATE_FILE, read_status
from millpond.store.stop import STOP

GROUPS_OF_RUNS = ("runs", "sweeps", "experiments")  # folders whose runs and sweeps are listed, too
SWEEP = "sweep.json"
WATCHED = (STATE_FILE, METRICS, WARNINGS, CONFIG, "checkpoints", LABELS, STOP)
SECONDS_BETWEEN_SCANS = 1.0
MAX_CACHED_BYTES = 1 << 27  # of records
MAX_TEXT = 2000  # characters of a note
SECTION, MAX_SECTION = re.compile(r"^(?=[^\s#-])", re.MULTILINE), 20_000


@dataclass
class RunEntry:
    """A run as the list shows it, the stamps of the files that it was read from, and the version in which it changed."""

    id: str
    folder: Path
    sweep: str | None
    stamps: tuple[Any, ...] = ()
    version: int = 0
    row: RunRow | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    labels: Labels = field(default_factory=Labels)
    progress: Overview | None = None

    @property
    def group(self) -> str:
        """Name shared by runs whose settings differ in nothing but what is not learned from, such as the seed."""
        learning = sorted(
            (key, repr(value)) for key, value in self.settings.items() if not key.startswith(NOT_LEARNING)
        )
        return sha256(repr(learning).encode("utf-8", "replace") if learning else self.id.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return what the list shows. `since` is a time: the page computes the age."""
        row, settings = self.row, self.settings
        assert row is not None
        steps, unit = row.steps
        return {
            "id": self.id,
            "name": printable(row.name),
            "sweep": self.sweep,
            "group": self.group,
            "env": str(settings.get("env.id", "")) if row.steps[1] == "agent_steps" else "",
            "kind": str(settings.get("kind", "")),
            "seed": settings.get("seed"),
            "state": row.state,
            "note": row.note[:MAX_TEXT],
            "since": row.since,
            "return": row.result,
            "headline": row.headline,
            "best": row.best_score,
            "steps": steps,
            "unit": unit,
            "seconds": row.counters.get("seconds"),
            "speed": row.speed,
            "warnings": list(row.warnings),
            "tags": list(self.labels.tags),
            "remark": self.labels.note,
            "stopping": self.labels.stopping,
            **(self.progress.to_json() if self.progress is not None else {}),
        }


class Catalog:
    """All runs and sweeps below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._real = root.resolve()
        self._entries: dict[str, RunEntry] = {}
        self._sweeps: dict[str, Path] = {}
        self._removed: list[tuple[int, str]] = []
        self._records: OrderedDict[str, RunRecords] = OrderedDict()
        self._lock = threading.Lock()
        self._records_lock = threading.Lock()
        self._scanned_at = -1e9
        self._waiting = 0
        self.version = 1

    def refresh(self, seconds: float = 0.4) -> int:
        """Look for changes, for about so long. Returns the number of runs that have not been read yet."""
        with self._lock:
            now = time.monotonic()
            if now - self._scanned_at < SECONDS_BETWEEN_SCANS and not self._waiting:
                return 0
            self._waiting = self._scan(now + seconds)
            self._scanned_at = time.monotonic()
            return self._waiting

    def scan_again(self) -> None:
        """Let the next call of `refresh` look for changes at once: something was written."""
        with self._lock:
            self._scanned_at = -1e9

    def changes(self, since: int) -> dict[str, Any]:
        """Return the runs that changed after a version, those that are gone, and the version now."""
        with self._lock:
            shown = [entry for entry in self._entries.values() if entry.row is not None and entry.version > since]
            return {
                "version": self.version,
                "runs": [entry.to_json() for entry in shown],
                "removed": [run for version, run in self._removed if version > since],
                "waiting": self._waiting,
                "sweeps": sorted(self._sweeps),
            }

    def entry(self, run: str) -> RunEntry | None:
        """Return a run of the list; None for any other name."""
        with self._lock:
            return self._entries.get(run)

    def sweep(self, name: str) -> Path | None:
        with self._lock:
            return self._sweeps.get(name)

    def runs_of(self, sweep: str) -> list[RunEntry]:
        with self._lock:
            return [entry for entry in self._entries.values() if entry.sweep == sweep]

    def processes(self) -> dict[str, int]:
        """Return the processes of running runs on this machine, by the run's name."""
        with self._lock:
            running = [
                entry for entry in self._entries.values() if entry.row is not None and entry.row.state == "running"
            ]
        statuses = ((entry.id, read_status(entry.folder).process) for entry in running[:64])
        return {run: process.pid for run, process in statuses if process.here and process.pid}

    def records(self, entry: RunEntry) -> RunRecords:
        """Return the records of a run, up to date. Those of runs that were not asked for lately are forgotten."""
        with self._records_lock:
            records = self._records.pop(entry.id, None) or RunRecords(entry.folder / METRICS)
            self._records[entry.id] = records
            while len(self._records) > 1 and sum(each.nbytes for each in self._records.values()) > MAX_CACHED_BYTES:
                self._records.popitem(last=False)
        records.update()
        return records

    def inside(self, path: Path) -> bool:
        """True if a path, with all links followed, is in the folder."""
        try:
            return path.resolve().is_relative_to(self._real)
        except (OSError, RuntimeError):
            return False

    # -- scanning

    def _scan(self, deadline: float) -> int:
        sweeps: dict[str, Path] = {}
        found: dict[str, RunEntry] = {}
        for path, sweep in self._find(sweeps):
            name = self._name(path)
            found[name] = self._entries.get(name) or RunEntry(name, path, sweep)
        gone = self._entries.keys() - found.keys()
        if gone or sweeps.keys() != self._sweeps.keys():
            self.version += 1
            self._removed = [*self._removed, *((self.version, name) for name in gone)][-10_000:]
        self._entries, self._sweeps = found, sweeps
        changed = [
            (entry, stamps)
            for entry in found.values()
            if (stamps := _stamps(entry.folder)) != entry.stamps or _has_died(entry)
        ]
        changed.sort(key=lambda pair: max((stamp[0] for stamp in pair[1] if stamp), default=0), reverse=True)
        for number, (entry, stamps) in enumerate(changed):
            if number and time.monotonic() > deadline:
                return len(changed) - number
            self._read(entry)
            entry.stamps = stamps
        return 0

    def _name(self, path: Path) -> str:
        return os.fsencode(path.relative_to(self.root)).decode("utf-8", "backslashreplace")

    def _find(self, sweeps: dict[str, Path]) -> Iterator[tuple[Path, str | None]]:
        """Yield the run folders, and note the sweeps."""
        for place in (self.root, *(self.root / name for name in GROUPS_OF_RUNS)):
            if place != self.root and is_run(place):
                continue  # a run that has the name
            for path in self._children(place):
                if is_run(path):
                    yield path, None
                elif (inner := path / "runs").is_dir():
                    parts = (path / SWEEP, path / "trials", path / "sessions")
                    sweep = self._name(path) if parts[0].is_file() and all(map(self.inside, parts)) else None
                    if sweep is not None:
                        sweeps[sweep] = path
                    yield from ((run, sweep) for run in self._children(inner) if is_run(run))

    def _children(self, place: Path) -> list[Path]:
        """Return the folders in a folder; links out of the board's folder are left out."""
        try:
            with os.scandir(place) as entries:
                children = [(Path(place, entry.name), entry.is_symlink()) for entry in entries if entry.is_dir()]
        except OSError:
            return []
        if children and not self.inside(place):
            return []
        return [path for path, link in children if not path.name.startswith(".") and (not link or self.inside(path))]

    def _read(self, entry: RunEntry) -> None:
        self.version += 1
        checkpoints = entry.folder / "checkpoints"
        if not all(map(self.inside, (checkpoints, *_links(checkpoints)))):
            return  # a link to elsewhere: nothing of this run is shown
        try:
            entry.row = read_row(entry.folder)
        except (MillpondError, OSError):
            return  # it is being removed
        try:
            require_regular(entry.folder / CONFIG)
            entry.settings = read_settings(entry.folder / CONFIG)
        except MillpondError:
            entry.settings = {}
        entry.labels = read_labels(entry.folder)
        entry.progress = describe_progress(entry.folder / METRICS, entry.row.headline)
        entry.version = self.version


def read_settings(path: Path) -> dict[str, Any]:
    """Return the flat config of a run. Its sections are parsed apart: most are the same in many runs, and parsed once."""
    text = read_text(path)
    try:
        parts = [_parsed(part) for part in SECTION.split(text) if part.strip()]
    except MillpondError:
        parts = []
    keys = [key for part in parts if isinstance(part, dict) for key in part]
    if not parts or not all(isinstance(part, dict) for part in parts) or len(keys) > len(set(keys)):
        return flatten_mapping(read_mapping(path))  # another layout than that of a run's own config, or an error
    return flatten_mapping({key: value for part in parts for key, value in part.items()})


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    return parse(text, CONFIG) if len(text) < MAX_SECTION else None


def _links(folder: Path) -> list[Path]:
    """Return the symbolic links in a folder."""
    try:
        with os.scandir(folder) as entries:
            return [Path(folder, entry.name) for entry in entries if entry.is_symlink()]
    except OSError:
        return []


def _stamps(folder: Path) -> tuple[Any, ...]:
    """Return what changes when a file of a run does."""
    stamps: list[Any] = []
    for name in WATCHED:
        try:
            status = os.stat(folder / name, follow_symlinks=False)
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def _has_died(entry: RunEntry) -> bool:
    """True for a run that is listed as running, but whose process has ended without writing that."""
    return entry.row is not None and entry.row.state == "running" and read_status(entry.folder).state != "running"

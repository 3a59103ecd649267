"""The folder of a sweep: its settings, the record of each trial, and the sessions that say how long it was worked on.

sweep.json               settings: recipe, overrides, space, trials, seeds, objectives, sampler, rungs
journal.log              Optuna's journal
trials/0007.json         record of a trial
runs/trial0007.seed1/    run folder of a seed; the winner's on fresh seeds are winner0007.seed1001
sessions/                when each process worked
logs/                    output of the workers
table.txt, results.json, best.yaml
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from millpond.durable import FileLock, LockHeld, replace_json
from millpond.errors import MillpondError
from millpond.safe_read import read_json_object

FORMAT = 1
SETTINGS = "sweep.json"
HEARTBEAT_SECONDS = 2.0
MAY_CHANGE = ("trials", "hours", "final_seeds")
FIRST_SEED, FIRST_FRESH_SEED = 1, 1001

State = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class SweepSettings:
    """Settings of a sweep. `space` is plain, as `Space.to_json` gives it."""

    recipe: str
    overrides: dict[str, Any]
    space: dict[str, Any]
    trials: int
    seeds: int
    final_seeds: int
    hours: float | None
    objectives: tuple[str, ...]
    minimize: bool  # the first objective
    sampler: str
    rungs: tuple[float, ...]  # fractions of a run, the last is 1
    random_seed: int
    format: int = FORMAT

    @property
    def metric(self) -> str:
        return self.objectives[0]


@dataclass(frozen=True)
class Rung:
    """Scores of a trial's seeds after a fraction of their runs. `low` and `high` are the ends of the mean's interval."""

    fraction: float
    scores: dict[str, float]  # by seed, as JSON has text as keys
    mean: float | None = None  # of all seeds
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class TrialRecord:
    """A trial: its point, what became of it, and its scores from rung to rung."""

    number: int
    params: dict[str, Any]
    state: State
    reason: str = ""
    rungs: tuple[Rung, ...] = ()
    seconds: float = 0.0  # of training, all seeds together
    steps: int = 0  # env steps (or updates, where no agent acts) that took these seconds
    steps_per_run: int = 0  # of a whole run
    speed_settings: str = ""
    expected_seconds: float | None = None  # of all seeds, before it started
    expected_from: str = ""
    memory_bytes: int | None = None
    deaths: int = 0  # processes that died in it without getting further
    began: float = 0.0
    ended: float | None = None

    @property
    def score(self) -> float | None:
        """Mean score of all seeds at the end of their runs."""
        return self.rungs[-1].mean if self.state == "finished" and self.rungs else None

    def hours_per_run(self, seeds: int) -> float:
        return self.seconds / seeds / 3600


class SweepFolder:
    """Access to the files of a sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"

    @property
    def exists(self) -> bool:
        return (self.path / SETTINGS).is_file()

    def settings(self) -> SweepSettings:
        """Read the settings; raise an error if the folder is not one of a sweep."""
        if not self.exists:
            raise MillpondError(f"{self.path} contains no sweep ({SETTINGS} is missing)")
        values = read_json_object(self.path / SETTINGS)
        if values.get("format") != FORMAT:
            raise MillpondError(
                f"{self.path / SETTINGS} has format={values.get('format')!r}; this version reads {FORMAT}"
            )
        return SweepSettings(**{**values, "objectives": tuple(values["objectives"]), "rungs": tuple(values["rungs"])})

    def begin(self, settings: SweepSettings) -> None:
        """Write the settings; refuse others than those that the trials in the folder were run with."""
        for name in ("trials", "runs", "sessions", "logs", "locks"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        if self.exists:
            saved, requested = asdict(self.settings()), json.loads(json.dumps(asdict(settings)))
            saved = json.loads(json.dumps(saved))
            changed = [key for key in requested if key not in MAY_CHANGE and saved[key] != requested[key]]
            if changed:
                details = "; ".join(f"{key}: {saved[key]} -> {requested[key]}" for key in changed)
                raise MillpondError(
                    f"{self.path} has a sweep with other settings ({details}), whose trials cannot be compared; use another "
                    f"--folder, or the same settings ({', '.join(MAY_CHANGE)} may change)"
                )
        replace_json(self.path / SETTINGS, asdict(settings))

    # -- trials

    def trials(self) -> list[TrialRecord]:
        """Return the records of all trials that were started, by number."""
        return [self._read(path) for path in sorted((self.path / "trials").glob("*.json"))]

    def trial(self, number: int) -> TrialRecord | None:
        path = self._trial_path(number)
        return self._read(path) if path.exists() else None

    def save(self, record: TrialRecord) -> TrialRecord:
        """Write the record of a trial, and return it."""
        replace_json(self._trial_path(record.number), asdict(record))
        return record

    def run_name(self, number: int, seed: int) -> str:
        return f"trial{number:04d}.seed{seed}"

    def winner_run_name(self, number: int, seed: int) -> str:
        return f"winner{number:04d}.seed{seed}"

    def _trial_path(self, number: int) -> Path:
        return self.path / "trials" / f"{number:04d}.json"

    @staticmethod
    def _read(path: Path) -> TrialRecord:
        values = read_json_object(path)
        return TrialRecord(**{**values, "rungs": tuple(Rung(**rung) for rung in values["rungs"])})

    # -- locks, which end with their process

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Only one process at a time chooses what it works on next."""
        lock = FileLock(self.path / "locks" / "claim", wait=True)
        try:
            yield
        finally:
            lock.release()

    def try_lock(self, name: str) -> FileLock | None:
        """Take the lock of a trial or of a winner's run; None if another process works on it."""
        try:
            return FileLock(self.path / "locks" / name)
        except LockHeld:
            return None

    # -- hours

    def seconds_spent(self) -> float:
        """Return the seconds in which at least one process worked on the sweep."""
        intervals = []
        for path in (self.path / "sessions").glob("*.json"):
            session = read_json_object(path)
            intervals.append((float(session["began"]), float(session["last"])))
        return _union(intervals)


def _union(intervals: list[tuple[float, float]]) -> float:
    """Return the total length of intervals, counting overlaps once."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(intervals):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


@dataclass
class Session:
    """The time in which this process works on a sweep. It is written every `HEARTBEAT_SECONDS`, so that a kill loses little."""

    folder: SweepFolder
    began: float = field(default_factory=time.time)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Session:
        name = f"{socket.gethostname()}-{os.getpid()}-{int(self.began * 1000)}.json"
        self._path = self.folder.path / "sessions" / name
        self._write()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="sweep-session")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._write()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            self._write()

    def _write(self) -> None:
        replace_json(self._path, {"began": self.began, "last": time.time()})


def with_rung(record: TrialRecord, rung: Rung) -> TrialRecord:
    """Return a record with a new or changed rung."""
    others = tuple(one for one in record.rungs if one.fraction != rung.fraction)
    return replace(record, rungs=tuple(sorted((*others, rung), key=lambda one: one.fraction)))


def rung_at(record: TrialRecord, fraction: float) -> Rung:
    """Return the rung of a record, or an empty one."""
    return next((one for one in record.rungs if one.fraction == fraction), Rung(fraction, {}))


def plain(values: Mapping[str, Any]) -> str:
    """Return a text that is the same for the same point."""
    return json.dumps(dict(values), sort_keys=True)

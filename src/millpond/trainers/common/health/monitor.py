"""From records to warnings: on the console when a cause appears, and in `warnings.jsonl` with how long it stayed."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from millpond.durable import replace_file
from millpond.record import Record
from millpond.trainers.common.health.checks import HISTORY, Check


@dataclass(frozen=True)
class HealthWarning:
    """A warning, the counters of the record that gave it, and how long its cause stayed: until when, in how many records."""

    cause: str
    text: str
    updates: int
    agent_steps: int
    last_updates: int
    records: int = 1


class HealthMonitor:
    """Finds warnings in a sequence of records."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._before: deque[Mapping[str, float]] = deque(maxlen=HISTORY)
        self._present: dict[str, int] = {}  # causes of the newest record, and the place of each in `warnings`
        self.warnings: list[HealthWarning] = []
        self.ended = False  # a cause of the record before is absent in the newest one

    def add(self, record: Mapping[str, float]) -> list[HealthWarning]:
        """Return the warnings whose causes appear with this record."""
        before, updates = list(self._before), int(record.get("updates", 0))
        first_new, present = len(self.warnings), dict[str, int]()
        for cause, check in self._checks.items():
            text = check(record, before)
            if text is None:
                continue
            if cause in self._present:
                at = present[cause] = self._present[cause]
                old = self.warnings[at]
                self.warnings[at] = replace(old, last_updates=updates, records=old.records + 1)
            else:
                present[cause] = len(self.warnings)
                steps = int(record.get("agent_steps", 0))
                self.warnings.append(HealthWarning(cause, text, updates, steps, updates))
        self.ended = not self._present.keys() <= present.keys()
        self._present = present
        self._before.append(record)
        return self.warnings[first_new:]


class HealthSink:
    """A sink that logs warnings and keeps them in `warnings.jsonl`, which a resumed run writes again from its records.

    The file is written when a cause appears or disappears, and at the end.
    """

    remote = False

    def __init__(self, path: Path, checks: Mapping[str, Check], warn: Callable[[str, str], None]) -> None:
        self._path, self._warn, self._monitor = path, warn, HealthMonitor(checks)

    def open(self, previous: Iterable[Record]) -> None:
        for record in previous:
            self._monitor.add(record)
        if self._monitor.warnings or self._path.exists():
            self._write()

    def write(self, record: Record, number: int) -> None:
        new = self._monitor.add(record)
        if new or self._monitor.ended:
            self._write()
        for warning in new:
            self._warn(warning.cause, f"after {warning.updates:,} updates: {warning.text}")

    def close(self) -> None:
        if self._monitor.warnings:
            self._write()

    def _write(self) -> None:
        lines = [json.dumps(vars(warning)) for warning in self._monitor.warnings]
        replace_file(self._path, "".join(f"{line}\n" for line in lines).encode())

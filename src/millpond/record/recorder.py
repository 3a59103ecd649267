"""Counters, and the recorder that writes one record to many sinks."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from millpond.record.jsonlines import JsonLines, Record, RecordError, read_records
from millpond.safe_read import is_count, is_finite_number

# The axis of curves: agent steps online, updates offline.
Axis = Literal["agent_steps", "updates", "env_steps", "frames"]

COUNTERS = ("updates", "agent_steps", "env_steps", "frames", "episodes", "seconds")


class Counters:
    """The counters in every record. There is no plain "step".

    updates      optimiser steps
    agent_steps  actions of agents
    env_steps    steps of envs, each with all its agents
    frames       env steps times the frame skip
    episodes     finished episodes
    seconds      time spent in this run, over all its resumes
    """

    def __init__(self) -> None:
        self.updates = 0
        self.agent_steps = 0
        self.env_steps = 0
        self.frames = 0
        self.episodes = 0
        self._seconds_before = 0.0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._began

    def as_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in COUNTERS}

    def state_dict(self) -> dict[str, float]:
        return self.as_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        for name in COUNTERS[:-1]:
            setattr(self, name, _require_count(state[name], name))
        if not is_finite_number(state["seconds"]) or state["seconds"] < 0:
            raise RecordError(f"the saved counters have seconds={state['seconds']!r}, not a time")
        self._seconds_before, self._began = float(state["seconds"]), time.monotonic()


def _with_counters(path: Path) -> Iterator[Record]:
    """Read the records of a run that is resumed; each has all counters."""
    for number, record in enumerate(read_records(path), start=1):
        missing = [name for name in COUNTERS if name not in record]
        if missing:
            raise RecordError(f"{path} line {number} has no {', '.join(missing)}; fix or remove the line")
        yield record


def _require_count(value: object, name: str) -> int:
    if not is_count(value):
        raise RecordError(f"the saved counters have {name}={value!r}, not a count")
    assert isinstance(value, int)
    return value


class Sink(Protocol):
    """A destination of records. `remote` sinks may fail: that is logged once, and training continues without them."""

    remote: bool

    def open(self, previous: Iterable[Record]) -> None:
        """Open the sink, given the records that a resumed run already has. Called before the first `write`."""

    def write(self, record: Record, number: int) -> None:
        """Write a record; `number` counts the records of the run from 0."""

    def close(self) -> None: ...


class Recorder:
    """Write records: the given metrics and every counter, to all sinks.

    `metrics.jsonl` is always written, and first. Its number of records is the recorder's whole state: a resumed run
    truncates the file to the checkpoint's number, and the other sinks start from the remaining records.
    """

    def __init__(self, path: Path, counters: Counters, sinks: Sequence[Sink] = ()) -> None:
        self._lines = JsonLines(path)
        self._counters = counters
        self._sinks = list(sinks)
        self._records = 0
        self._open = False

    def begin(self) -> None:
        """Truncate the file to its number of records, and open all sinks. The first `write` calls this too."""
        if self._open:
            return
        self._open = True
        self._lines.open(self._records)
        for sink in list(self._sinks):
            self._attempt(sink, sink.open, _with_counters(self._lines.path))

    def write(self, metrics: Mapping[str, float]) -> Record:
        """Write one record to all sinks, and return it."""
        record: Record = {**self._counters.as_dict(), **{name: float(value) for name, value in metrics.items()}}
        for name, value in metrics.items():
            if name in COUNTERS:
                raise RecordError(f"{name!r} is a counter: set it in Counters, not in a record's metrics")
            if not math.isfinite(value):
                raise RecordError(
                    f"{name} = {value} at {self._counters.updates} updates; a record holds finite numbers"
                )
        self.begin()
        self._lines.write(record)
        for sink in list(self._sinks):
            self._attempt(sink, sink.write, record, self._records)
        self._records += 1
        return record

    def close(self) -> None:
        self._lines.sync()
        self._lines.close()
        for sink in list(self._sinks):
            self._attempt(sink, sink.close)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of records, which are on disk from now on."""
        self.begin()
        self._lines.sync()
        return {"records": self._records}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._open:
            raise RecordError("the state of a recorder must be loaded before its first record")
        self._records = _require_count(state["records"], "records")

    def _attempt(self, sink: Sink, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception as error:
            if not sink.remote:
                raise
            self._sinks.remove(sink)
            warnings.warn(f"{type(sink).__name__} failed and is off for the rest of this run: {error}", stacklevel=3)

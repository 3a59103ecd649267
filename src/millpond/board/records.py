"""The records of one run in bounded memory: read once, then from where the last reading ended, merged where there are many.

    R kept rows    M metrics and counters

A kept row is the mean, minimum and maximum of `merged` neighbouring records; a record without a metric is left out of them.
Of counters it is the last record's value. A file larger than `WHOLE_BYTES` is sampled: records at even distances, and every
evaluation, which are rare.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.errors import MillpondError
from millpond.record import COUNTERS, RETURNS
from millpond.record.jsonlines import MAX_LINE
from millpond.safe_read import require_regular

MAX_ROWS = 1024  # that are kept; twice as many are merged in pairs
MAX_METRICS, MAX_NAME = 400, 200
WHOLE_BYTES = 1 << 25
SAMPLES = 1500  # records of a file that is sampled
MAX_EVALUATIONS = 750  # of a file that is sampled; twice as many are halved
CHUNK = 1 << 23
FINGERPRINT = 64  # bytes before the end of a reading, to notice that the file was written again

Floats = npt.NDArray[np.float64]


class RunRecords:
    """The records of a `metrics.jsonl`. `update` reads what is new; several threads may ask at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self.sampled = False
        self.version = 0  # grows with every change
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._names: dict[str, int] = {}
        self._mean: Floats = np.full((2 * MAX_ROWS, 0), np.nan)
        self._low = self._high = np.full((2 * MAX_ROWS, 0), np.nan, np.float32)
        self._rows = 0
        self._merged = 1  # records in a kept row
        self._pending: list[dict[str, float]] = []
        self._offset, self._inode, self._fingerprint = 0, -1, b""
        self.sampled, self.problem, self.count = False, "", 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return int(self._mean.nbytes + self._low.nbytes + self._high.nbytes)

    def update(self) -> None:
        """Read the records that were written since the last call; everything, if the file was replaced or cut."""
        with self._lock:
            if not os.path.lexists(self.path):
                return
            try:
                status = require_regular(self.path)
                if status.st_ino == self._inode and status.st_size == self._offset:
                    return
                with self.path.open("rb") as file:
                    if status.st_ino != self._inode or not self._continues(file, status.st_size):
                        self._clear()
                        self._inode = status.st_ino
                    self._read(file, status.st_size)
            except (MillpondError, OSError) as error:
                self.problem = str(error)
            self.version += 1

    def names(self) -> list[str]:
        return list(self._names)

    def column(self, name: str) -> Floats:
        """Return the means of a metric [R], NaN where no record has it."""
        with self._lock:
            column: Floats = self._column(self._mean, name)
            return column

    def table(self, names: Sequence[str]) -> dict[str, Floats]:
        """Return several columns [R] of the same moment."""
        with self._lock:
            return {name: self._column(self._mean, name) for name in names}

    def curve(self, axis: str, metric: str) -> tuple[Floats, Floats, Floats, Floats]:
        """Return x, mean, minimum and maximum of a metric [points], where it was recorded."""
        with self._lock:
            x, y = self._column(self._mean, axis), self._column(self._mean, metric)
            there = np.isfinite(x) & np.isfinite(y)
            low, high = self._column(self._low, metric), self._column(self._high, metric)
            return x[there], y[there], low[there].astype(np.float64), high[there].astype(np.float64)

    def last(self, name: str) -> float | None:
        """Return the newest kept value of a metric."""
        column = self.column(name)
        finite = column[np.isfinite(column)]
        return float(finite[-1]) if len(finite) else None

    def _column(self, values: Any, name: str) -> Any:
        index = self._names.get(name)
        if index is None:
            return np.full(self._rows, np.nan)
        return values[: self._rows, index].copy()

    # -- reading

    def _continues(self, file: Any, size: int) -> bool:
        """True if the bytes that were read are still there, so that reading can go on after them."""
        if size < self._offset:
            return False
        file.seek(max(0, self._offset - FINGERPRINT))
        return bool(file.read(min(FINGERPRINT, self._offset)) == self._fingerprint)

    def _read(self, file: Any, size: int) -> None:
        if self.problem:
            return  # a line that is no record: curves end before it
        if size - self._offset > WHOLE_BYTES:
            self.sampled = True
            for sample in _sample(file, self._offset, size):
                self._add(sample)
            self._offset = _end_of_line(file, size)
        else:
            file.seek(self._offset)
            data = file.read(size - self._offset)
            whole = data.rfind(b"\n") + 1
            if not whole and len(data) > MAX_LINE:
                self.problem = f"{self.path.name} has a line of more than {MAX_LINE:,} bytes; curves end before it"
            for line in data[:whole].split(b"\n")[:-1]:
                record = parse(line)
                if record is None:
                    self.problem = f"record {self.count + 1:,} of {self.path.name} is not one; curves end before it"
                    break
                self._add(record)
            self._offset += whole
        file.seek(max(0, self._offset - FINGERPRINT))
        self._fingerprint = file.read(min(FINGERPRINT, self._offset))

    def _add(self, record: dict[str, float]) -> None:
        self.count += 1
        self._pending.append(record)
        if len(self._pending) == self._merged:
            self._keep(self._pending)
            self._pending = []
            if self._rows == 2 * MAX_ROWS:
                self._merge_pairs()

    def _keep(self, records: list[dict[str, float]]) -> None:
        names = dict.fromkeys(name for record in records for name in record if len(name) <= MAX_NAME)
        self._add_names([name for name in names if name not in self._names])
        row = self._rows
        for name in names:
            index = self._names.get(name)
            if index is None:
                continue
            values = [record[name] for record in records if name in record]
            self._mean[row, index] = values[-1] if name in COUNTERS else math.fsum(values) / len(values)
            self._low[row, index], self._high[row, index] = min(values), max(values)
        self._rows += 1

    def _add_names(self, names: list[str]) -> None:
        names = names[: MAX_METRICS - len(self._names)]
        if not names:
            return
        for name in names:
            self._names[name] = len(self._names)
        more = ((0, 0), (0, len(names)))
        self._mean = np.pad(self._mean, more, constant_values=np.nan)
        self._low = np.pad(self._low, more, constant_values=np.nan)
        self._high = np.pad(self._high, more, constant_values=np.nan)

    def _merge_pairs(self) -> None:
        def pairs(values: Any) -> tuple[Any, Any]:
            return values[: self._rows : 2], values[1 : self._rows : 2]

        half = self._rows // 2
        first, second = pairs(self._mean)
        mean = np.where(np.isnan(first), second, np.where(np.isnan(second), first, (first + second) / 2))
        for name in COUNTERS:
            if name in self._names:
                index = self._names[name]
                mean[:, index] = np.where(np.isnan(second[:, index]), first[:, index], second[:, index])
        low, high = np.fmin(*pairs(self._low)), np.fmax(*pairs(self._high))
        for values, merged in ((self._mean, mean), (self._low, low), (self._high, high)):
            values[:half] = merged
            values[half:] = np.nan
        self._rows, self._merged = half, 2 * self._merged


def parse(line: bytes) -> dict[str, float] | None:
    """Parse a record; None if it is none. Unlike `parse_record` it says no reason, and is several times as fast."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if type(record) is not dict:
        return None
    try:
        for value in record.values():
            if (type(value) is not float and type(value) is not int) or not math.isfinite(value):
                return None
    except OverflowError:  # an int beyond the largest float
        return None
    return record


def overview(path: Path, samples: int) -> list[dict[str, float]]:
    """Return up to `samples` records at even distances in a file, for a small picture of a run that nobody has opened."""
    try:
        size = require_regular(path).st_size
        with path.open("rb") as file:
            return list(_at_even_distances(file, 0, size, samples))
    except (MillpondError, OSError):
        return []


def _at_even_distances(file: Any, begin: int, size: int, samples: int) -> Iterator[dict[str, float]]:
    position = -1
    for k in range(samples):
        place = begin + (size - begin) * k // samples
        if place < position:
            continue  # within the line that was read last
        file.seek(place)
        if place > begin:
            file.readline(MAX_LINE)
        line = file.readline(MAX_LINE)
        position = file.tell()
        record = parse(line) if line.endswith(b"\n") else None
        if record is not None:
            yield record


def _sample(file: Any, begin: int, size: int) -> list[dict[str, float]]:
    """Return records at even distances and those of evaluations, in order."""
    records = list(_at_even_distances(file, begin, size, SAMPLES))
    rare = list(_with_evaluation(file, begin, size))
    seen = {record.get("seconds") for record in records}
    records += [record for record in rare if record.get("seconds") not in seen]
    return sorted(records, key=lambda record: (record.get("seconds", 0.0), record.get("updates", 0.0)))


def _with_evaluation(file: Any, begin: int, size: int) -> Iterator[dict[str, float]]:
    """Find the lines with an evaluation by their text, without parsing the others; at most `MAX_EVALUATIONS` of them."""
    key = json.dumps(RETURNS[0]).encode()
    lines: list[bytes] = []
    every = 1  # of the lines that are found is kept
    number, rest = 0, b""
    file.seek(begin)
    for start in range(begin, size, CHUNK):
        data = rest + file.read(min(CHUNK, size - start))
        place = data.find(key)
        while place >= 0:
            first, last = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
            if last < 0:
                break  # the line goes on in the next part
            if number % every == 0 and last - first < MAX_LINE:
                lines.append(data[first:last])
            number += 1
            if len(lines) == 2 * MAX_EVALUATIONS:
                lines, every = lines[::2], 2 * every
            place = data.find(key, last)
        rest = data[data.rfind(b"\n") + 1 :][-MAX_LINE:]
    yield from (record for line in lines if (record := parse(line)) is not None)


def _end_of_line(file: Any, size: int) -> int:
    """Return the end of the last whole line."""
    begin = max(0, size - MAX_LINE)
    file.seek(begin)
    return begin + int(file.read(size - begin).rfind(b"\n")) + 1

"""metrics.jsonl: one JSON object per line, the record that all other sinks are made from."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from millpond.durable import open_file
from millpond.errors import MillpondError


class RecordError(MillpondError):
    """A record cannot be written or read."""


Record = dict[str, float]


def read_records(path: Path) -> Iterator[Record]:
    """Read the complete lines of a file of records; an unfinished last line is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise RecordError(f"{path} line {number} is not a record: {line[:60]!r}; fix or remove the line")
            yield record


def last_record(path: Path, tail: int = 1 << 16) -> Record | None:
    """Read the newest complete record, from the end of the file."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - tail))
        lines = file.read().split(b"\n")[:-1]
    if not lines and size > tail:
        return last_record(path, tail * 16)
    try:
        return dict(json.loads(lines[-1])) if lines else None
    except ValueError:
        return last_record(path, tail * 16) if size > tail else None


class JsonLines:
    """The file of records, written line by line.

    A checkpoint holds the number of records. `open` truncates the file to that number, so that a resumed run writes the
    records after the checkpoint again, and each one exists once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def open(self, num_records: int) -> None:
        """Keep the first `num_records` records, drop the others, and continue writing from there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = open_file(self.path, os.O_RDWR | os.O_CREAT)
        end = lines = 0
        with self.path.open("rb") as file:
            while lines < num_records and (line := file.readline()).endswith(b"\n"):
                end += len(line)
                lines += 1
        os.ftruncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)
        if lines < num_records:
            warnings.warn(
                f"{self.path} has {lines} whole records, the checkpoint had {num_records}; the curve has a gap",
                stacklevel=2,
            )

    def write(self, record: Mapping[str, float]) -> None:
        """Write one line. It survives a crash of this process, and after `sync` also a crash of the machine."""
        assert self._descriptor is not None
        left = json.dumps(record, allow_nan=False).encode() + b"\n"
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            raise RecordError(
                f"cannot write {self.path}: {error.strerror}; free some space and resume the run"
            ) from error

    def sync(self) -> None:
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


# The headline metric of a run: its return, or a figure of the learned reward if no agent acts. The first that exists is
# used, so an evaluation takes precedence over the episodes of training.
RETURNS = ("eval/episode_return", "episode_return")
HELD_OUT = ("step_pearson", "voc", "success_auc", "return_pearson")
HEADLINES = (*RETURNS, *(f"held_out/{name}" for name in HELD_OUT), "R_loss")


def newest_headline(path: Path) -> tuple[str, float] | None:
    """Return name and newest value of the first headline metric in a `metrics.jsonl`; not every record has one."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return None
    for name in HEADLINES:
        quoted = json.dumps(name).encode()
        for line in reversed(lines):
            if quoted in line:
                try:
                    return name, float(json.loads(line)[name])
                except (ValueError, KeyError, TypeError):
                    continue  # an unfinished line, or not a record
    return None

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
    """A record that cannot be written or read."""


Record = dict[str, float]


def read_records(path: Path) -> Iterator[Record]:
    """The complete lines of a file of records; one that a writer has not finished is left out."""
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
                raise RecordError(f"{path} line {number} is not a record: {line[:60]!r}; mend or remove the line")
            yield record


def last_record(path: Path, tail: int = 1 << 16) -> Record | None:
    """The newest complete record, found from the end of the file."""
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

    A checkpoint remembers how many records there were. `open` cuts the file back to that number, so that a resumed
    run writes again what came after the checkpoint, once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def open(self, kept: int) -> None:
        """Keep the first `kept` records, drop what follows, and write from there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = open_file(self.path, os.O_RDWR | os.O_CREAT)
        end = lines = 0
        with self.path.open("rb") as file:
            while lines < kept and (line := file.readline()).endswith(b"\n"):
                end += len(line)
                lines += 1
        os.ftruncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)
        if lines < kept:
            warnings.warn(
                f"{self.path} has {lines} whole records, the checkpoint knew {kept}; the curve has a gap", stacklevel=2
            )

    def write(self, record: Mapping[str, float]) -> None:
        """Write one line. It survives the end of this process, and after `sync` also that of the machine."""
        assert self._descriptor is not None
        left = json.dumps(record, allow_nan=False).encode() + b"\n"
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            raise RecordError(f"cannot write {self.path}: {error.strerror}; make room and resume the run") from error

    def sync(self) -> None:
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


RETURNS = ("eval/episode_return", "episode_return")  # an evaluation counts more than the episodes of training
HELD_OUT = ("step_pearson", "voc", "success_auc", "return_pearson")  # of a learned reward; the first there is
HEADLINES = (*RETURNS, *(f"held_out/{name}" for name in HELD_OUT), "R_loss")


def newest_headline(path: Path) -> tuple[str, float] | None:
    """Return name and newest value of the first headline that a `metrics.jsonl` has; not every record has one."""
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
                    continue  # a line half written, or one that is no record
    return None

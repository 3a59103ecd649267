"""metrics.jsonl: one JSON object per line, the record that all other sinks are made from."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from millpond.durable import open_file
from millpond.errors import MillpondError
from millpond.safe_read import UnreadableFileError, is_finite_number, parse_json_object, require_regular

MAX_LINE = 1 << 22  # bytes of a record; one of a hundred metrics has five thousand
MAX_TAIL = 1 << 26  # bytes at the end of a file in which a headline is looked for


class RecordError(MillpondError):
    """A record cannot be written or read."""

    one_line = True


Record = dict[str, float]


def read_records(path: Path) -> Iterator[Record]:
    """Read the complete lines of a file of records; an unfinished last line is left out."""
    if not os.path.lexists(path):
        return
    require_regular(path)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if not line.endswith(b"\n") and len(line) < MAX_LINE:
                return
            yield parse_record(line, f"{path} line {number}")


def parse_record(line: bytes, name: str) -> Record:
    """Parse one line; `name` is its place, for errors. A record is an object of finite numbers."""
    try:
        record = parse_json_object(line, name)
    except UnreadableFileError as error:
        raise RecordError(f"{name} is not a record: {line[:60]!r}; fix or remove the line") from error
    for metric, value in record.items():
        if not is_finite_number(value):
            raise RecordError(f"{name} has {metric}={value!r}, not a finite number; fix or remove the line")
    return record


def last_record(path: Path, tail: int = 1 << 16) -> Record | None:
    """Read the newest complete record, from the end of the file; None if there is none."""
    if not os.path.lexists(path):
        return None
    size = require_regular(path).st_size
    begins = size <= tail  # the first line that is read is complete
    lines = _read_tail(path, tail)[:-1]
    if len(lines) > 1 or (lines and begins):
        return parse_record(lines[-1], f"the last line of {path}")
    if begins:
        return None
    if tail >= MAX_LINE:
        raise RecordError(f"the last line of {path} has more than {MAX_LINE:,} bytes, so it is not a record; remove it")
    return last_record(path, min(tail * 16, MAX_LINE))


def _read_tail(path: Path, tail: int) -> list[bytes]:
    """Read the lines in the last bytes of a file; the first of them may be incomplete, and the last is unfinished."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - tail))
        return file.read(tail).split(b"\n")


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
        if os.path.lexists(self.path):
            require_regular(self.path, "move it away")
        self._descriptor = open_file(self.path, os.O_RDWR | os.O_CREAT)
        end = lines = 0
        with self.path.open("rb") as file:
            while lines < num_records and (line := file.readline(MAX_LINE)).endswith(b"\n"):
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


def newest_headline(path: Path, *, evaluated: bool = True) -> tuple[str, float] | None:
    """Return name and newest value of the first headline metric in a `metrics.jsonl`; not every record has one.

    The end of the file is searched: its last 64 KiB, then MiB; at most 64 MiB, if an evaluation, which may be rare, is
    known to exist (`evaluated`).
    """
    found = None
    for tail in (1 << 16, 1 << 20, MAX_TAIL):
        try:
            size = require_regular(path).st_size
            lines = _read_tail(path, tail)
        except (UnreadableFileError, OSError):
            return None
        found = _newest_headline(lines, str(path))
        if size <= tail or (found is not None and (found[0] == HEADLINES[0] or not evaluated)):
            break
    return found


def _newest_headline(lines: list[bytes], path: str) -> tuple[str, float] | None:
    for name in HEADLINES:
        quoted = json.dumps(name).encode()
        for line in reversed(lines):
            if quoted in line:
                try:
                    return name, float(parse_record(line, path)[name])
                except (RecordError, KeyError):
                    continue  # an unfinished line, or not a record
    return None

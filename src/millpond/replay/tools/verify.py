"""Every checksum of a lake compared: what is damaged, and how much is readable all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from millpond.plurals import plural
from millpond.replay.errors import LakeError
from millpond.replay.lake.format import Manifest, StreamFolder, StreamHead, read_log
from millpond.replay.lake.read import SpanReader, read_frames, read_records
from millpond.replay.lake.stream import StreamReader, build_index, load_index
from millpond.replay.schema import DAMAGED, Schema
from millpond.replay.walk import count_transitions

ROWS_AT_ONCE = 4_096
Progress = Callable[[str, int, int], None]  # stream, rows read, rows in all


@dataclass
class StreamReport:
    """`transitions` are those that the stream should hold, `readable` those whose every byte matches."""

    name: str
    rows: int = 0
    transitions: int = 0
    readable: int = 0
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class VerifyReport:
    folder: str
    streams: list[StreamReport]
    damage: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.damage and not any(stream.damage for stream in self.streams)

    def lines(self) -> list[str]:
        """The report in words."""
        lines = [f"{self.folder}: {'every checksum matches' if self.good else 'DAMAGED'}", *self.damage]
        for stream in self.streams:
            lines.append(
                f"  {stream.name}: {plural(stream.rows, 'row')}, "
                f"{stream.readable:,} of {stream.transitions:,} transitions readable"
            )
            lines += [f"    damaged: {what}" for what in stream.damage]
            lines += [f"    note: {what}" for what in stream.notes]
        return lines


def verify(folder: str | Path, *, progress: Progress | None = None) -> VerifyReport:
    """Read everything. Nothing is changed."""
    folder = Path(folder)
    try:
        schema = Manifest.read(folder).schema
    except LakeError as error:
        return VerifyReport(str(folder), [], [str(error)])
    report = VerifyReport(str(folder), [])
    reader = SpanReader()
    try:
        for path in sorted((folder / "streams").glob("*")):
            try:
                report.streams.append(_verify_stream(StreamFolder.read(path), schema, reader, progress))
            except LakeError as error:
                report.streams.append(StreamReport(path.name, damage=[str(error)]))
    finally:
        reader.close()
    return report


def _verify_stream(folder: StreamFolder, schema: Schema, reader: SpanReader, progress: Progress | None) -> StreamReport:
    report = StreamReport(folder.name)
    found = read_log(folder, schema)
    if found.lost:
        report.damage.append(
            f"{folder.commits}: entry {len(found.entries)} and {found.lost - 1} behind it are not readable"
        )
    report.damage += [f"{folder.commits}: entry {k} was damaged; rebuilt from the records" for k in found.rebuilt]
    if found.tail:
        report.notes.append(
            f"{folder.commits}: {found.tail} bytes behind the last whole entry; the next writer cuts them off"
        )
    head = StreamHead.read(folder.head)
    if head is None and folder.head.exists():
        report.damage.append(f"{folder.head} does not match its checksum; the next writer makes it anew")
    readable = len(found.entries) + found.lost
    if head is not None and head.commits > readable:
        missing = f"{head.commits - readable} acknowledged appends behind entry {readable} are missing or unreadable"
        report.damage.append(f"{folder.commits}: {missing}")
    view = StreamReader(folder, schema).view
    report.rows, report.transitions = view.rows, view.transitions()
    flags = view.flags.copy()
    for segment in view.segments:
        path = folder.segment(segment.number, "index")
        whole = build_index(folder, segment.number, segment.codec, schema, 0, segment.rows, 0)
        kept = load_index(folder, segment.number, segment.codec, schema, segment.rows)
        sealed = segment.number != view.segments[-1].number
        if kept is None and path.exists() and sealed:
            report.damage.append(f"{path} does not match; readers build it anew")
        elif kept is not None and not np.any(whole.flags == DAMAGED) and not np.array_equal(kept.flags, whole.flags):
            report.damage.append(f"{path} differs from the records")
    width = [field.nbytes for field in schema.compressed]
    for begin in range(0, view.rows, ROWS_AT_ONCE):
        rows = np.arange(begin, min(begin + ROWS_AT_ONCE, view.rows))
        targets = {f.name: np.empty(len(rows) * n, np.uint8) for f, n in zip(schema.compressed, width, strict=True)}
        bad = read_records(view, schema, reader, rows)[1]
        if targets:
            bad += read_frames(view, schema, reader, rows, np.arange(len(rows)), targets)
        for place, damage in bad:
            report.damage.append(str(damage))
            flags[rows[place]] = DAMAGED
        if progress:
            progress(folder.name, int(rows[-1]) + 1, view.rows)
    report.readable = int(count_transitions(flags, view.run_begin, view.lanes, 1, 1))
    return report

"""Compare every checksum of a lake: list what is damaged, and count what is still readable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from millpond.formatting import plural
from millpond.replay.errors import LakeError
from millpond.replay.lake.format import Manifest, StreamFolder, StreamHead, read_log
from millpond.replay.lake.read import SpanReader, read_frames, read_records
from millpond.replay.lake.stream import StreamReader, build_index, load_index
from millpond.replay.schema import DAMAGED, Schema
from millpond.replay.walk import count_transitions

RECORDS_PER_BLOCK = 4_096
Progress = Callable[[str, int, int], None]  # stream, records read, records in all


@dataclass
class StreamReport:
    """`rows`: records; `transitions`: those that the stream should have; `readable`: those whose every byte matches."""

    name: str
    rows: int = 0
    transitions: int = 0
    readable: int = 0
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class VerifyReport:
    """Damage of a lake: its own, and each stream's."""

    folder: str
    streams: list[StreamReport]
    damage: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.damage and not any(stream.damage for stream in self.streams)

    def lines(self) -> list[str]:
        """Return the report as text."""
        lines = [f"{self.folder}: {'every checksum matches' if self.good else 'DAMAGED'}", *self.damage]
        for stream in self.streams:
            lines.append(
                f"  {stream.name}: {plural(stream.rows, 'record')}, "
                f"{stream.readable:,} of {stream.transitions:,} transitions readable"
            )
            lines += [f"    damaged: {damage}" for damage in stream.damage]
            lines += [f"    note: {note}" for note in stream.notes]
        return lines


def verify(folder: str | Path, *, progress: Progress | None = None) -> VerifyReport:
    """Read and check everything. Nothing is changed."""
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
    log = read_log(folder, schema)
    if log.lost:
        report.damage.append(f"{folder.commits}: entry {len(log.entries)} and {log.lost - 1} after it are not readable")
    report.damage += [f"{folder.commits}: entry {k} was damaged; rebuilt from the records" for k in log.rebuilt]
    if log.tail:
        report.notes.append(
            f"{folder.commits}: {log.tail} bytes after the last complete entry; the next writer cuts them off"
        )
    head = StreamHead.read(folder.head)
    if head is None and folder.head.exists():
        report.damage.append(f"{folder.head} does not match its checksum; the next writer writes it again")
    readable = len(log.entries) + log.lost
    if head is not None and head.commits > readable:
        missing = f"{head.commits - readable} acknowledged appends after entry {readable} are missing or unreadable"
        report.damage.append(f"{folder.commits}: {missing}")
    view = StreamReader(folder, schema).view
    report.rows, report.transitions = view.num_records, view.transitions()
    flags = view.flags.copy()
    for segment in view.segments:
        path = folder.segment(segment.number, "index")
        built = build_index(folder, segment.number, segment.codec, schema, 0, segment.num_records, 0)
        stored = load_index(folder, segment.number, segment.codec, schema, segment.num_records)
        complete = segment.number != view.segments[-1].number
        if stored is None and path.exists() and complete:
            report.damage.append(f"{path} does not match; readers rebuild it")
        elif (
            stored is not None and not np.any(built.flags == DAMAGED) and not np.array_equal(stored.flags, built.flags)
        ):
            report.damage.append(f"{path} differs from the records")
    for begin in range(0, view.num_records, RECORDS_PER_BLOCK):
        numbers = np.arange(begin, min(begin + RECORDS_PER_BLOCK, view.num_records))
        targets = {field.name: np.empty(len(numbers) * field.nbytes, np.uint8) for field in schema.compressed}
        bad = read_records(view, schema, reader, numbers)[1]
        if targets:
            bad += read_frames(view, schema, reader, numbers, np.arange(len(numbers)), targets)
        for place, damage in bad:
            report.damage.append(str(damage))
            flags[numbers[place]] = DAMAGED
        if progress:
            progress(folder.name, int(numbers[-1]) + 1, view.num_records)
    report.readable = int(count_transitions(flags, view.run_begin, view.lanes, 1, 1))
    return report

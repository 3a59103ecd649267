"""`millpond lake verify`: compare every checksum of a lake, and every number with every other. Nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from millpond.formatting import plural
from millpond.replay.lake.format import Manifest, StreamFolder
from millpond.replay.lake.index import build_index, load_index
from millpond.replay.lake.read import SpanReader, read_frames, read_records
from millpond.replay.lake.recover import examine
from millpond.replay.lake.stream import Damage, Segment, StreamReader, View
from millpond.replay.schema import DAMAGED, LakeError, Schema
from millpond.replay.tools.info import Progress
from millpond.replay.transitions import count_transitions

Array = np.ndarray[Any, Any]
RECORDS_PER_BLOCK = 4_096  # read at once
VERSION_1 = (
    "format version 1: checksums cover bytes, not their place, so data in the wrong file or row is not noticed, and after a "
    "restart of the machine a missing first segment looks like a dropped one. `millpond lake compact` upgrades the lake."
)


@dataclass
class StreamReport:
    """Result for one stream.

    `rows`: records; `transitions`: those of all step records that can be read; `readable`: those whose every byte matches.
    `places`: segment and row of every record that is damaged, or accepted as lost.
    """

    name: str
    rows: int = 0
    transitions: int = 0
    readable: int = 0
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class VerifyReport:
    """Damage of a lake: its own, and each stream's."""

    folder: str
    streams: list[StreamReport]
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.damage and not any(stream.damage for stream in self.streams)

    def lines(self) -> list[str]:
        """Return the report as text."""
        lines = [f"{self.folder}: {'every checksum matches' if self.good else 'DAMAGED'}"]
        lines += [f"  damaged: {damage}" for damage in self.damage]
        lines += [f"  note: {note}" for note in self.notes]
        for stream in self.streams:
            lines.append(
                f"  {stream.name}: {plural(stream.rows, 'record')}, "
                f"{stream.readable:,} of {stream.transitions:,} transitions readable"
            )
            lines += [f"    damaged: {damage}" for damage in stream.damage]
            lines += [f"    note: {note}" for note in stream.notes]
        return lines


def verify(folder: str | Path, *, progress: Progress | None = None) -> VerifyReport:
    """Read and check everything; go on past what is missing or unreadable."""
    folder = Path(folder)
    report = VerifyReport(str(folder), [])
    try:
        manifest = Manifest.read(folder)
    except LakeError as error:
        report.damage.append(str(error))
        return report
    if manifest.version == 1:
        report.notes.append(VERSION_1)
    paths, problems = manifest.stream_paths(folder)
    report.damage += problems
    reader = SpanReader()
    try:
        for path in paths:
            try:
                stream = StreamFolder.read(path, manifest)
                report.streams.append(verify_stream(stream, manifest.schema, reader, progress))
            except LakeError as error:
                report.streams.append(StreamReport(path.name, damage=[str(error)]))
            except OSError as error:
                report.streams.append(StreamReport(path.name, damage=[f"{error.filename or path}: {error.strerror}"]))
    finally:
        reader.close()
    return report


def verify_stream(folder: StreamFolder, schema: Schema, reader: SpanReader, progress: Progress | None) -> StreamReport:
    """Check one stream: log, head and sizes of files first, then every record and frame."""
    report = StreamReport(folder.name)
    state = examine(folder, schema)
    report.damage += [f"{folder.commits}: entry {k} was damaged; rebuilt from the records" for k in state.log.rebuilt]
    if state.log.tail:
        report.notes.append(
            f"{folder.commits}: {state.log.tail} bytes after the last complete entry; the next writer cuts them off"
        )
    if state.head.torn:
        report.damage.append(
            f"{folder.head}: one of its two copies does not match its checksum; the next writer writes it again"
        )
    report.notes += [f"accepted as lost: {loss}" for loss in state.losses]
    follower = StreamReader(folder, schema)
    view = follower.view
    report.damage += map(str, dict.fromkeys(state.damage + follower.damage))
    report.rows, report.transitions = view.num_records, view.transitions()
    flags = view.flags.copy()
    for segment in view.segments:
        if not np.all(_rows(flags, segment) & DAMAGED):
            found = _verify_segment(view, schema, reader, segment, flags, progress)
            report.damage += [line for line in map(str, found) if line not in report.damage]
        report.places += [(segment.number, row) for row in np.flatnonzero(_rows(flags, segment) & DAMAGED).tolist()]
    report.readable = int(count_transitions(flags, view.runs, 1, 1))
    return report


def _rows(flags: Array, segment: Segment) -> Array:
    """Return the flags of a segment's records."""
    return flags[segment.begin : segment.begin + segment.num_records]


def _verify_segment(
    view: View, schema: Schema, reader: SpanReader, segment: Segment, flags: Array, progress: Progress | None
) -> list[Damage]:
    """Check the index, the records and the frames of a segment; mark what is damaged in `flags`."""
    folder = view.folder
    path = folder.segment(segment.number, "index")
    damage: list[Damage] = []
    try:
        built = build_index(folder, segment.number, segment.codec, schema, 0, segment.num_records, 0)
        stored = load_index(folder, segment.number, segment.codec, schema, segment.num_records)
        # An index that a crash during compaction left is right, of the file that there was before.
        before = {"zst": "lz4", "lz4": "zst"}[segment.codec]
        stale = load_index(folder, segment.number, before, schema, segment.num_records) is not None
        complete = segment.number != view.segments[-1].number
        if stored is None and path.exists() and complete and not stale:
            damage.append(Damage(str(path), -1, "does not match; readers rebuild it"))
        elif stored is not None and not np.any(built.flags & DAMAGED) and not np.array_equal(stored.flags, built.flags):
            damage.append(Damage(str(path), -1, "differs from the records"))
        end = segment.begin + segment.num_records
        for begin in range(segment.begin, end, RECORDS_PER_BLOCK):
            numbers = np.arange(begin, min(begin + RECORDS_PER_BLOCK, end))
            numbers = numbers[view.flags[numbers] & DAMAGED == 0]
            targets = {field.name: np.empty(len(numbers) * field.nbytes, np.uint8) for field in schema.compressed}
            bad = read_records(view, schema, reader, numbers)[1]
            if targets:
                bad += read_frames(view, schema, reader, numbers, np.arange(len(numbers)), targets)
            for place, each in bad:
                damage.append(each)
                flags[numbers[place]] = DAMAGED
            if progress:
                progress(folder.name, min(begin + RECORDS_PER_BLOCK, end), view.num_records)
    except OSError as error:
        damage.append(Damage(str(error.filename or path), -1, error.strerror or str(error)))
        _rows(flags, segment)[:] = DAMAGED
    return damage

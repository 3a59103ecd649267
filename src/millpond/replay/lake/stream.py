"""A reader's view of one stream: five bytes per record, the runs of each append, and the segments."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from millpond.replay.lake.format import Loss, StreamFolder, StreamHead, is_accepted, is_number, read_losses, this_boot
from millpond.replay.lake.index import SegmentIndex, build_index, load_index
from millpond.replay.lake.log import CommitLog, read_log
from millpond.replay.schema import DAMAGED, LakeDamaged, Schema
from millpond.replay.transitions import Runs, count_transitions

Array = np.ndarray[Any, Any]
MAX_RETRIES = 10  # of a refresh during which a writer removed records


@dataclass(frozen=True)
class Damage:
    """Something on disk that is missing, or does not match its checksum. `record` is -1 for a whole file."""

    file: str
    record: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file}{f', record {self.record}' if self.record >= 0 else ''}: {self.problem}"


@dataclass(frozen=True)
class Segment:
    """A segment as a reader sees it. `begin` is its first record, counted over the records that the stream still has."""

    number: int
    codec: str
    begin: int
    num_records: int = 0
    frame_bytes: int = 0


@dataclass(frozen=True)
class View:
    """A stream at one moment; it does not change while the reader follows the writer.

    flags      u1[records]  see the schema
    position   u4[records]  lz4: where the record's frames end in its segment; zst: where its chunk begins
    run_begin  i8[runs+1]   first record of each run, see `transitions`
    """

    folder: StreamFolder
    flags: Array
    position: Array
    run_begin: Array
    segments: tuple[Segment, ...]
    segment_begin: Array
    counts: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        return len(self.flags)

    @property
    def lanes(self) -> int:
        return self.folder.lanes

    @cached_property
    def runs(self) -> Runs:
        return Runs.of_appends(self.run_begin, self.lanes)

    def records(self, numbers: Array) -> Array:
        """Return these numbers: records are counted from the first that the stream still has."""
        return numbers

    def transitions(self, stack: int = 1, n_step: int = 1) -> int:
        """Return the number of valid transitions."""
        key = (stack, n_step)
        if key not in self.counts:
            self.counts[key] = int(count_transitions(self.flags, self.runs, stack, n_step))
        return self.counts[key]

    def segment_of(self, numbers: Array) -> Array:
        """Return the index in `segments` for each of these record numbers."""
        return np.searchsorted(self.segment_begin, numbers, side="right") - 1

    @cached_property
    def steps_files(self) -> list[Path]:
        return [self.folder.segment(each.number, "steps") for each in self.segments]

    @cached_property
    def frames_files(self) -> list[Path]:
        """Files of the segments' frames, of either codec."""
        return [self.folder.segment(each.number, each.codec) for each in self.segments]

    @cached_property
    def segment_numbers(self) -> Array:
        """i8[segments]: their numbers, which checksums are bound to."""
        return np.array([each.number for each in self.segments], np.int64)

    @cached_property
    def compacted(self) -> Array:
        """bool[segments]: compacted to zstd."""
        return np.array([each.codec == "zst" for each in self.segments], bool)

    @cached_property
    def frame_bytes(self) -> Array:
        """i8[segments]: where the frames of each segment end."""
        return np.array([each.frame_bytes for each in self.segments], np.int64)


class GrowingArray:
    """A one-dimensional array that is appended to in place, and copied only when its capacity is used up."""

    def __init__(self, dtype: Any) -> None:
        self._allocated = np.empty(0, dtype)
        self._length = 0

    @property
    def values(self) -> Array:
        return self._allocated[: self._length]

    def extend(self, values: Array) -> None:
        needed = self._length + len(values)
        if needed > len(self._allocated):
            # A quarter more than needed; the unused part is never touched, and takes no memory.
            larger = np.empty(needed + needed // 4, self._allocated.dtype)
            larger[: self._length] = self.values
            self._allocated = larger
        self._allocated[self._length : needed] = values
        self._length = needed


class StreamReader:
    """Follows one stream. Only acknowledged appends are ever seen.

    `damage` lists what is missing or unreadable as far as a view shows it: entries of the log, whole files, step records.
    Such records are marked DAMAGED and never drawn. Losses that were accepted by `lake repair` are marked, but not listed.
    """

    def __init__(self, folder: StreamFolder, schema: Schema) -> None:
        self.folder, self.schema, self.name = folder, schema, folder.name
        self.replayed = 0
        self._restart(0)
        self.refresh()

    def _restart(self, generation: int) -> None:
        self.generation, self.commits = generation, 0
        self.rebuilt: list[int] = []
        self.damage: list[Damage] = []
        self._file_damage: list[Damage] = []
        self._stale = False
        self._losses: list[Loss] = []
        self._segments: list[Segment] = []
        self._flags, self._position = GrowingArray(np.uint8), GrowingArray(np.uint32)
        self._run_begin = GrowingArray(np.int64)
        self._run_begin.extend(np.zeros(1, np.int64))
        self._update_view()
        try:
            self._losses = read_losses(self.folder)
        except LakeDamaged as error:
            self._file_damage.append(Damage(str(self.folder.losses), -1, str(error)))

    def reread(self) -> None:
        """Make the next `refresh` read everything again: a file that the view names is gone."""
        self._stale = True

    def refresh(self) -> bool:
        """Read what was acknowledged since the last call; return True if anything changed."""
        changed = False
        for _ in range(MAX_RETRIES):
            head = StreamHead.read(self.folder)
            changed |= self._read(head)
            now = StreamHead.read(self.folder)
            if _generation(now) == _generation(head):
                break
        return changed

    def _read(self, head: StreamHead | None) -> bool:
        """Bring the view to the state of a head, which was read before the log: the log then holds all it promises."""
        generation = _generation(head)
        restarted = generation != self.generation or self._stale or self._compacted_since()
        if restarted:
            self._restart(generation)
        log = read_log(self.folder, self.schema, self.commits)
        if log.lost and self.commits:  # a damaged entry is rebuilt from the one before it: read the whole log
            self._restart(generation)
            restarted, log = True, read_log(self.folder, self.schema)
        written = self.commits + len(log.entries)
        visible = max(head.acknowledged(written) if head else written, self.commits)
        entries = log.entries[: visible - self.commits]
        self.rebuilt += [number for number in log.rebuilt if number < visible]
        self.commits += len(entries)
        entries = entries[entries["segment"] >= first_segment(self.folder, head)]
        for number in np.unique(entries["segment"]).tolist():
            self._extend(number, entries[entries["segment"] == number])
        self.damage = log_damage(self.folder, log, head, written) + self._file_damage
        if restarted or len(entries):
            self._update_view()
        return restarted or len(entries) > 0

    def _update_view(self) -> None:
        """Make the view show everything that was read."""
        begins = np.array([segment.begin for segment in self._segments], np.int64)
        arrays = (self._flags.values, self._position.values, self._run_begin.values)
        self.view = View(self.folder, *arrays, tuple(self._segments), begins)

    def _compacted_since(self) -> bool:
        """Return True if a segment that was read as lz4 has been compacted."""
        if not any(segment.codec == "lz4" for segment in self._segments):
            return False
        compacted = {int(path.stem) for path in self.folder.path.glob("*.zst") if is_number(path.stem)}
        return any(segment.codec == "lz4" and segment.number in compacted for segment in self._segments)

    def _extend(self, number: int, entries: Array) -> None:
        """Add appends of one segment to the view."""
        if not self._segments or self._segments[-1].number != number:
            self._segments.append(Segment(number, self.folder.codec(number), len(self._flags.values)))
        segment = self._segments[-1]
        begin, end = segment.num_records, int(entries["row_end"][-1])
        frame_end = int(entries["frame_end"][-1])
        index = self._index(segment, begin, end, frame_end)
        flags = index.flags.copy()
        for loss in self._losses:
            if loss.segment == number:
                flags[max(loss.begin - begin, 0) : max(loss.end - begin, 0)] = DAMAGED
        self._flags.extend(flags)
        self._position.extend(index.position)
        lane_rows = entries["lane_rows"].reshape(-1)
        self._run_begin.extend(segment.begin + begin + np.cumsum(lane_rows, dtype=np.int64))
        self._segments[-1] = replace(segment, num_records=end, frame_bytes=frame_end)

    def _index(self, segment: Segment, begin: int, end: int, frame_end: int) -> SegmentIndex:
        """Return flags and positions of records `begin` to `end`; note what is missing or damaged."""
        problem = missing_file(self.folder, self.schema, segment.number, frame_end)
        if problem is not None:
            if not is_accepted(self._losses, segment.number, begin, end):
                self._file_damage.append(problem)
            positions = end - begin if self.schema.compressed else 0
            return SegmentIndex(np.full(end - begin, DAMAGED, np.uint8), np.zeros(positions, np.uint32))
        index = load_index(self.folder, segment.number, segment.codec, self.schema, end) if begin == 0 else None
        if index is not None:
            return index
        index = build_index(self.folder, segment.number, segment.codec, self.schema, begin, end, segment.frame_bytes)
        file = str(self.folder.segment(segment.number, "steps"))
        self._file_damage += [
            Damage(file, row, "checksum does not match")
            for row in (begin + np.flatnonzero(index.flags & DAMAGED)).tolist()
            if not is_accepted(self._losses, segment.number, row, row + 1)
        ]
        return index


def _generation(head: StreamHead | None) -> int:
    return head.generation if head else 0


def first_segment(stream: StreamFolder, head: StreamHead | None) -> int:
    """Return the oldest segment that was not dropped.

    In lakes of version 1 the head was never synced, so after a restart of the machine it may be older than the last drop;
    then a missing segment at the beginning cannot be told from a dropped one.
    """
    first = head.first_segment if head else 0
    if not stream.binding and (head is None or head.boot != this_boot()):
        numbers = stream.segments()
        return max(first, numbers[0] if numbers else 0)
    return first


def log_damage(stream: StreamFolder, log: CommitLog, head: StreamHead | None, written: int) -> list[Damage]:
    """Return what is wrong with the log and the head; `written` appends of the log are valid."""
    damage: list[Damage] = []
    if log.lost:
        what = f"{log.problem}, so {log.lost} that can be read from there on are left out"
        damage.append(Damage(str(stream.commits), -1, what))
    if head is None:
        # The head is durable before the first append, so an empty stream without one was never acknowledged anything.
        torn = not stream.binding and stream.head.exists() and stream.head.stat().st_size
        if torn or (stream.binding and (written or log.tail or stream.segments())):
            damage.append(Damage(str(stream.head), -1, "missing, or does not match its checksum"))
    elif head.commits > min(written, head.limit) + log.lost:
        missing = head.commits - written - log.lost
        damage.append(
            Damage(str(stream.commits), -1, f"{missing} acknowledged appends after entry {written} are missing")
        )
    elif len(log.entries) and head.first_segment > int(log.entries["segment"][-1]) + 1:
        what = f"names segment {head.first_segment} as the first, the log ends in {int(log.entries['segment'][-1])}"
        damage.append(Damage(str(stream.head), -1, what))
    return damage


def missing_file(stream: StreamFolder, schema: Schema, number: int, frame_end: int) -> Damage | None:
    """Return which file of a segment is missing, if one is; the shortest frames file that counts has `frame_end` bytes."""
    if stream.file_bytes(number, "steps") < 0:
        return Damage(str(stream.segment(number, "steps")), -1, "the file is missing, or not a regular file")
    if schema.compressed and frame_end and stream.file_bytes(number, stream.codec(number)) < 0:
        return Damage(
            str(stream.segment(number, stream.codec(number))), -1, "the file is missing, or not a regular file"
        )
    return None

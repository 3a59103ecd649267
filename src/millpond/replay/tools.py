"""Tools on a whole lake, each a command: `millpond lake info | verify | compact`.

info      summarise it: streams, episodes, transitions, bytes, and returns by stream and round
verify    compare every checksum: list what is damaged, and count what is still readable
compact   compress the frames of cold segments again with zstd, several of a lane together

Compacting changes no records, commits or record numbers, and so no samples. The new file replaces the old one only when
it is complete and synced; readers that have the old one open continue to read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from millpond.durable import sync_folder
from millpond.formatting import plural
from millpond.replay.lake.codec import encode_chunk
from millpond.replay.lake.format import Manifest, StreamFolder, StreamHead, lock_stream, read_log
from millpond.replay.lake.lake import Lake
from millpond.replay.lake.read import SpanReader, read_frames, read_records
from millpond.replay.lake.stream import StreamReader, View, build_index, load_index, write_index
from millpond.replay.schema import DAMAGED, ENDED, FINAL, FIRST, LakeDamaged, LakeError, Schema
from millpond.replay.transitions import count_transitions

Array = np.ndarray[Any, Any]
BARS = " ▁▂▃▄▅▆▇█"
BINS = 16
RECORDS_PER_BLOCK = 4_096  # read at once by `verify`
FRAMES_PER_CHUNK = 16
Progress = Callable[[str, int, int], None]  # stream, files or records done, and in all


# -- info


@dataclass
class Returns:
    """Returns of the complete episodes that began in one round. `histogram` has the same bins for the whole lake."""

    round: int
    episodes: int
    mean: float
    lowest: float
    highest: float
    mean_length: float
    histogram: list[int]

    @property
    def bars(self) -> str:
        most = max(self.histogram)
        return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in self.histogram)


@dataclass
class StreamInfo:
    """Contents of one stream. `rows`: records; `raw_bytes`: their size as plain arrays, each observation once."""

    name: str
    lanes: int
    commits: int
    segments: int
    compacted_segments: int
    rows: int
    transitions: int
    episodes: int
    stored_bytes: int
    raw_bytes: int
    returns: list[Returns] = field(default_factory=list)


@dataclass
class LakeInfo:
    """Contents of a lake."""

    folder: str
    streams: list[StreamInfo]
    lowest_return: float
    highest_return: float

    @property
    def transitions(self) -> int:
        return sum(stream.transitions for stream in self.streams)

    @property
    def stored_bytes(self) -> int:
        return sum(stream.stored_bytes for stream in self.streams)

    @property
    def raw_bytes(self) -> int:
        return sum(stream.raw_bytes for stream in self.streams)

    @property
    def bytes_a_transition(self) -> float:
        return self.stored_bytes / max(self.transitions, 1)

    def to_json(self) -> dict[str, Any]:
        totals = ("transitions", "stored_bytes", "raw_bytes", "bytes_a_transition")
        return {**asdict(self), **{name: getattr(self, name) for name in totals}}

    def lines(self) -> list[str]:
        """Return the contents as text."""
        lines = [
            f"{self.folder}: {plural(self.transitions, 'transition')} in {plural(len(self.streams), 'stream')}",
            f"  {self.stored_bytes:,} bytes stored, {self.raw_bytes:,} raw ({self.raw_bytes / max(self.stored_bytes, 1):.1f} "
            f"times as many), {self.bytes_a_transition:,.1f} bytes per transition",
        ]
        for stream in self.streams:
            lines.append(
                f"  {stream.name}: {plural(stream.transitions, 'transition')}, {plural(stream.episodes, 'episode')}, "
                f"{plural(stream.lanes, 'lane')}, {plural(stream.commits, 'append')}, "
                f"{plural(stream.segments, 'file')} ({stream.compacted_segments} compacted), "
                f"{stream.stored_bytes:,} bytes"
            )
            lines += [
                f"    round {each.round}: {plural(each.episodes, 'episode')}, return {each.mean:,.1f} "
                f"({each.lowest:,.1f} to {each.highest:,.1f}), {each.mean_length:,.1f} steps |{each.bars}|"
                for each in stream.returns
            ]
        if any(stream.returns for stream in self.streams):
            lines.append(f"  bars: returns from {self.lowest_return:,.1f} to {self.highest_return:,.1f}, {BINS} bins")
        return lines


def info(folder: str | Path, *, progress: Progress | None = None) -> LakeInfo:
    """Read all records, in order; frames are not read."""
    with Lake(folder) as lake:
        sums_by_stream = {name: _episode_sums(lake, name, progress) for name in lake.streams}
        returns = np.concatenate([sums[0] for sums in sums_by_stream.values()]) if sums_by_stream else np.empty(0)
        low, high = (float(returns.min()), float(returns.max())) if len(returns) else (0.0, 0.0)
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
        streams = [
            _stream_info(lake, name, [_by_round(sums, number, edges) for number in np.unique(sums[2]).tolist()])
            for name, sums in sums_by_stream.items()
        ]
        return LakeInfo(str(folder), streams, low, high)


def _stream_info(lake: Lake, name: str, returns: list[Returns]) -> StreamInfo:
    view, reader = lake.view(name), lake.reader(name)
    return StreamInfo(
        name=name,
        lanes=view.lanes,
        commits=reader.commits,
        segments=len(view.segments),
        compacted_segments=sum(segment.codec == "zst" for segment in view.segments),
        rows=view.num_records,
        transitions=view.transitions(),
        episodes=sum(each.episodes for each in returns),
        stored_bytes=reader.folder.stored_bytes(),
        raw_bytes=view.num_records * lake.schema.raw_record_bytes,
        returns=returns,
    )


def _by_round(sums: tuple[Array, Array, Array], number: int, edges: Array) -> Returns:
    mine = sums[2] == number
    returns, lengths = sums[0][mine], sums[1][mine]
    histogram = np.histogram(returns, edges)[0].tolist()
    ends = float(returns.min()), float(returns.max())
    return Returns(number, len(returns), float(returns.mean()), *ends, float(lengths.mean()), histogram)


def _episode_sums(lake: Lake, stream: str, progress: Progress | None) -> tuple[Array, Array, Array]:
    """Compute return, length and round of every complete episode. Episodes of a stream are numbered without gaps."""
    total, length, begun, ended, rounds = (np.zeros(0) for _ in range(5))
    view = lake.view(stream)
    for done, (path, segment) in enumerate(zip(view.steps_files, view.segments, strict=True)):
        if progress:
            progress(stream, done, len(view.segments))
        records = np.fromfile(path, lake.schema.record, count=segment.num_records)
        records = records[records["flags"] & FINAL == 0]
        if not len(records):
            continue
        size = max(len(total), int(records["episode"].max()) + 1)
        total, length, begun, ended, rounds = (
            np.pad(a, (0, size - len(a))) for a in (total, length, begun, ended, rounds)
        )
        total += np.bincount(records["episode"], records["reward"], size)
        length += np.bincount(records["episode"], minlength=size)
        first = records[records["flags"] & FIRST > 0]
        begun[first["episode"]], rounds[first["episode"]] = 1, first["round"]
        ended[records["episode"][records["flags"] & ENDED > 0]] = 1
    complete = (begun > 0) & (ended > 0)
    return total[complete], length[complete], rounds[complete].astype(np.int64)


# -- verify


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


# -- compact


@dataclass(frozen=True)
class Compacted:
    """Number of compacted segments, and the bytes of their frames before and after."""

    segments: int
    before: int
    after: int


def compact(
    folder: str | Path,
    stream: str | None = None,
    *,
    keep: int = 1,
    progress: Progress | None = None,
) -> Compacted:
    """Compact all segments but the newest `keep` of each stream; a writer may be active meanwhile.

    `progress` is called with the stream, its segments done, and its segments in all.
    """
    folder = Path(folder)
    schema = Manifest.read(folder).schema
    if keep < 1:
        raise LakeError(f"keep={keep} must be at least 1: the newest segment may still be written to")
    if not schema.compressed:
        return Compacted(0, 0, 0)
    paths = sorted((folder / "streams").glob("*/stream.json"))
    if stream is not None:
        paths = [path for path in paths if path.parent.name == stream]
        if not paths:
            raise LakeError(f"{folder} has no stream {stream!r}")
    segments = before = after = 0
    for path in paths:
        streams = StreamFolder.read(path.parent)
        cold = [number for number in streams.segments()[:-keep] if streams.codec(number) == "lz4"]
        for done, number in enumerate(cold, start=1):
            sizes = _compact_segment(streams, schema, number)
            if sizes is not None:
                segments, before, after = segments + 1, before + sizes[0], after + sizes[1]
            if progress:
                progress(streams.name, done, len(cold))
    return Compacted(segments, before, after)


def _compact_segment(stream: StreamFolder, schema: Schema, number: int) -> tuple[int, int] | None:
    """Return the bytes before and after; None if the segment was dropped meanwhile."""
    maintenance = lock_stream(stream.path / "maintenance", "maintenance", wait=True)
    reader = SpanReader()
    try:
        view = StreamReader(stream, schema).view
        which = next((k for k, segment in enumerate(view.segments) if segment.number == number), None)
        if which is None:
            return None
        old, new = stream.segment(number, "lz4"), stream.segment(number, "zst")
        before = old.stat().st_size
        temporary = stream.path / f".{new.name}.tmp"
        with open(temporary, "wb") as file:
            for numbers in _lane_chunks(view, which):
                file.write(_encode(view, schema, reader, numbers, which))
            file.flush()
            os.fsync(file.fileno())
        after = temporary.stat().st_size
        os.replace(temporary, new)
        sync_folder(stream.path)
        write_index(stream, number, schema, view.segments[which].num_records)
        old.unlink()
        return before, after
    finally:
        reader.close()
        maintenance.release()


def _lane_chunks(view: View, which: int) -> list[Array]:
    """Return the record numbers of a segment in chunks of consecutive ones, lane by lane."""
    segment = view.segments[which]
    first_run = int(np.searchsorted(view.run_begin, segment.begin, side="left"))
    # Empty runs may begin at the same record; a segment begins with the run of lane 0.
    first_run -= first_run % view.lanes
    last_run = int(np.searchsorted(view.run_begin, segment.begin + segment.num_records, side="left"))
    chunks = []
    for lane in range(view.lanes):
        runs = range(first_run + lane, last_run, view.lanes)
        numbers = np.concatenate([np.arange(view.run_begin[run], view.run_begin[run + 1]) for run in runs])
        chunks += [numbers[k : k + FRAMES_PER_CHUNK] for k in range(0, len(numbers), FRAMES_PER_CHUNK)]
    return chunks


def _encode(view: View, schema: Schema, reader: SpanReader, numbers: Array, which: int) -> bytes:
    """Return one chunk. A damaged frame stops the compaction: the old file, which still has its bytes, stays."""
    targets = {field.name: np.empty(len(numbers) * field.nbytes, np.uint8) for field in schema.compressed}
    damaged = read_frames(view, schema, reader, numbers, np.arange(len(numbers)), targets)
    if damaged:
        raise LakeDamaged(f"{damaged[0][1]}; the segment is left unchanged. Run `millpond lake verify`.")
    frames = np.concatenate([targets[field.name].reshape(len(numbers), -1) for field in schema.compressed], axis=1)
    return encode_chunk(numbers - view.segments[which].begin, frames)

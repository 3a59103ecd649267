"""`millpond lake compact`: compress the frames of cold segments again with zstd, several of a lane together.

Compacting changes no records, commits or record numbers, and so no samples. The new file replaces the old one only when
it is complete and synced; readers that have the old one open continue to read it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millpond.durable import DiskFile, sync_folder
from millpond.replay.lake.codec import RECORDS_PER_CHUNK, encode_chunk
from millpond.replay.lake.format import Manifest, StreamFolder, lock_stream
from millpond.replay.lake.index import write_index
from millpond.replay.lake.read import SpanReader, read_frames
from millpond.replay.lake.stream import StreamReader, View
from millpond.replay.schema import LakeDamaged, LakeError, Schema
from millpond.replay.tools.info import Progress
from millpond.replay.tools.upgrade import upgrade

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Compacted:
    """Number of compacted segments, and the bytes of their frames before and after.

    `upgraded_from` is the version of the format that the lake had, if it was upgraded.
    """

    segments: int
    before: int
    after: int
    upgraded_from: int | None = None


def compact(
    folder: str | Path,
    stream: str | None = None,
    *,
    keep: int = 1,
    progress: Progress | None = None,
) -> Compacted:
    """Compact all segments but the newest `keep` of each stream; a writer may be active meanwhile.

    A lake of an older format is upgraded first, while no writer may be active. `progress` is called with the stream, its
    segments done, and its segments in all.
    """
    folder = Path(folder)
    if keep < 1:
        raise LakeError(f"keep={keep} must be at least 1: the newest segment may still be written to")
    upgraded_from = upgrade(folder, progress=progress)
    manifest = Manifest.read(folder)
    schema = manifest.schema
    paths = manifest.stream_paths(folder)[0]
    if stream is not None:
        paths = [path for path in paths if path.name == stream]
        if not paths:
            raise LakeError(f"{folder} has no stream {stream!r}")
    if not schema.compressed:
        return Compacted(0, 0, 0, upgraded_from)
    segments = before = after = 0
    for path in paths:
        streams = StreamFolder.read(path, manifest)
        cold = [number for number in streams.segments()[:-keep] if streams.codec(number) == "lz4"]
        for done, number in enumerate(cold, start=1):
            sizes = _compact_segment(streams, schema, number)
            if sizes is not None:
                segments, before, after = segments + 1, before + sizes[0], after + sizes[1]
            if progress:
                progress(streams.name, done, len(cold))
    return Compacted(segments, before, after, upgraded_from)


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
        temporary = stream.path / f".{new.name}.{os.getpid()}.tmp"
        temporary.unlink(missing_ok=True)
        file = DiskFile(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        after = 0
        try:
            for numbers in _lane_chunks(view, which):
                chunk = _encode(view, schema, reader, numbers, which)
                file.write(chunk, after)
                after += len(chunk)
            file.sync()
            os.replace(temporary, new)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            file.close()
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
        chunks += [numbers[k : k + RECORDS_PER_CHUNK] for k in range(0, len(numbers), RECORDS_PER_CHUNK)]
    return chunks


def _encode(view: View, schema: Schema, reader: SpanReader, numbers: Array, which: int) -> bytes:
    """Return one chunk. A damaged frame stops the compaction: the old file, which still has its bytes, stays."""
    targets = {field.name: np.empty(len(numbers) * field.nbytes, np.uint8) for field in schema.compressed}
    damaged = read_frames(view, schema, reader, numbers, np.arange(len(numbers)), targets)
    if damaged:
        raise LakeDamaged(f"{damaged[0][1]}; the segment is left unchanged. Run `millpond lake verify`.")
    frames = np.concatenate([targets[field.name].reshape(len(numbers), -1) for field in schema.compressed], axis=1)
    segment = view.segments[which]
    return encode_chunk(numbers - segment.begin, frames, view.folder.binding, segment.number)

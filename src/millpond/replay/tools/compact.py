"""Making cold segments denser: their frames again, several of a lane together, with zstd instead of one by one.

Records, commits and row numbers stay as they are, so a sample drawn before and after is the same. The new file takes
the place of the old one only when it is whole and synced; readers that have the old one open read on in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millpond.durable import sync_folder
from millpond.replay.errors import LakeDamaged, LakeError
from millpond.replay.lake.codec import encode_chunk
from millpond.replay.lake.format import Manifest, StreamFolder
from millpond.replay.lake.lock import Lock
from millpond.replay.lake.read import SpanReader, read_frames
from millpond.replay.lake.stream import StreamReader, View, write_index
from millpond.replay.schema import Schema

Array = np.ndarray[Any, Any]
FRAMES_A_CHUNK = 16


@dataclass(frozen=True)
class Compacted:
    """Bytes of the frames before and after."""

    segments: int
    before: int
    after: int


def compact(
    folder: str | Path,
    stream: str | None = None,
    *,
    keep: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> Compacted:
    """Compact all segments but the newest `keep` of each stream; a writer may be at work meanwhile.

    `progress` is told the stream and how many of its segments are done, of how many.
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
    """None where the segment went away meanwhile."""
    maintenance = Lock(stream.path / "maintenance", "maintenance", wait=True)
    reader = SpanReader()
    try:
        view = StreamReader(stream, schema).view
        found = [k for k, segment in enumerate(view.segments) if segment.number == number]
        if not found:
            return None
        old, new = stream.segment(number, "lz4"), stream.segment(number, "zst")
        before = old.stat().st_size
        temporary = stream.path / f".{new.name}.tmp"
        with open(temporary, "wb") as file:
            for rows in _lane_chunks(view, found[0]):
                file.write(_encode(view, schema, reader, rows, found[0]))
            file.flush()
            os.fsync(file.fileno())
        after = temporary.stat().st_size
        os.replace(temporary, new)
        sync_folder(stream.path)
        write_index(stream, number, schema, view.segments[found[0]].rows)
        old.unlink()
        return before, after
    finally:
        reader.close()
        maintenance.release()


def _lane_chunks(view: View, which: int) -> list[Array]:
    """The rows of a segment, lane by lane, in chunks of consecutive ones."""
    segment = view.segments[which]
    first_run = int(np.searchsorted(view.run_begin, segment.begin, side="left"))
    # Empty runs may begin at the same row; a segment begins with the run of lane 0.
    first_run -= first_run % view.lanes
    last_run = int(np.searchsorted(view.run_begin, segment.begin + segment.rows, side="left"))
    chunks = []
    for lane in range(view.lanes):
        runs = range(first_run + lane, last_run, view.lanes)
        rows = np.concatenate([np.arange(view.run_begin[run], view.run_begin[run + 1]) for run in runs])
        chunks += [rows[k : k + FRAMES_A_CHUNK] for k in range(0, len(rows), FRAMES_A_CHUNK)]
    return chunks


def _encode(view: View, schema: Schema, reader: SpanReader, rows: Array, which: int) -> bytes:
    """One chunk. A damaged frame stops the compaction: what it was is better looked at in the old file."""
    targets = {field.name: np.empty(len(rows) * field.nbytes, np.uint8) for field in schema.compressed}
    damaged = read_frames(view, schema, reader, rows, np.arange(len(rows)), targets)
    if damaged:
        raise LakeDamaged(f"{damaged[0][1]}; the segment is left as it is. Run `millpond lake verify`.")
    frames = np.concatenate([targets[field.name].reshape(len(rows), -1) for field in schema.compressed], axis=1)
    return encode_chunk(rows - view.segments[which].begin, frames)

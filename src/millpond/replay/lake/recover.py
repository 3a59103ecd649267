"""Find the end of a stream when a writer opens it, after a crash or not, and when appends are rolled back."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.durable import open_file, sync, sync_folder
from millpond.replay.lake.codec import record_checksums
from millpond.replay.lake.format import StreamFolder, StreamHead, commit_dtype, read_log
from millpond.replay.lake.stream import write_index
from millpond.replay.schema import ENDED, FINAL, LakeDamaged, LakeError, Schema
from millpond.replay.steps import LaneState

Array = np.ndarray[Any, Any]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recovered:
    """The end of a stream; `cut_bytes` were removed after it: appends that were never acknowledged."""

    commits: int
    generation: int
    first_segment: int
    segment: int
    num_records: int  # of that segment
    frame_bytes: int
    lanes: LaneState
    cut_bytes: int = 0


def recover(stream: StreamFolder, schema: Schema) -> Recovered:
    """Find the longest valid prefix and cut off everything after it."""
    commit_log = read_log(stream, schema)
    if commit_log.lost:
        raise LakeDamaged(
            f"stream {stream.name!r}: entry {len(commit_log.entries)} of the commit log is damaged and "
            f"{commit_log.lost - 1} good ones follow; appending would cut them off. Run `millpond lake verify`, and write "
            "to a new stream."
        )
    commits = len(commit_log.entries)
    while commits and not _has_bytes(stream, schema, commit_log.entries[commits - 1]):
        commits -= 1
    end = cut_after(stream, schema, commits)
    if end.cut_bytes:
        log.warning(
            "stream %s: cut off %d bytes after append %d, never acknowledged", stream.name, end.cut_bytes, commits
        )
    return end


def _has_bytes(stream: StreamFolder, schema: Schema, entry: Array) -> bool:
    """Return True if the files of a commit are as long as it requires; a dropped segment counts as complete."""
    segment = int(entry["segment"])
    steps, frames = stream.segment(segment, "steps"), stream.segment(segment, "lz4")
    if not steps.exists():
        return _first_segment(stream) > segment
    if steps.stat().st_size < int(entry["row_end"]) * schema.record.itemsize:
        return False
    if not schema.compressed or stream.codec(segment) == "zst":
        return True
    return frames.exists() and frames.stat().st_size >= int(entry["frame_end"])


def _first_segment(stream: StreamFolder) -> int:
    """Return the oldest segment that was not dropped."""
    head, numbers = StreamHead.read(stream.head), stream.segments()
    return max(head.first_segment if head else 0, numbers[0] if numbers else 0)


def cut_after(stream: StreamFolder, schema: Schema, commits: int, *, acknowledged: bool = False) -> Recovered:
    """Cut the log and the data files after the first `commits` appends.

    `acknowledged`: readers may have seen the removed appends, and may have mapped their files. Then whole files are
    unlinked, which such readers keep open, but none is truncated: the last one stays unchanged, and a new segment begins.
    """
    entries = read_log(stream, schema).entries
    first, head = _first_segment(stream), StreamHead.read(stream.head)
    last = entries[commits - 1] if commits else None
    if last is not None and int(last["segment"]) < first and len(entries) > commits:
        raise LakeError(
            f"stream {stream.name!r}: position={commits} is in segment {int(last['segment'])}, which was dropped to "
            f"keep max_bytes; the oldest remaining one is {first}"
        )
    # The log first: if the machine stops in between, the data after it is cut when a writer opens the stream.
    cut = _truncate(stream.commits, commits * commit_dtype(stream.lanes).itemsize)
    segment = first if last is None else max(first, int(last["segment"]))
    num_records = frame_bytes = 0
    if last is not None and int(last["segment"]) >= first:
        num_records, frame_bytes = int(last["row_end"]), int(last["frame_end"])
    for path in stream.path.glob("[0-9]*.*"):
        number = int(path.stem)
        if number > segment or number < first or (path.suffix == ".lz4" and stream.codec(number) == "zst"):
            cut += path.stat().st_size if number > segment and path.suffix != ".index" else 0
            path.unlink(missing_ok=True)
    closed = acknowledged or stream.codec(segment) == "zst"  # a compacted segment is never appended to
    if not closed:
        cut += _truncate(stream.segment(segment, "steps"), num_records * schema.record.itemsize)
        cut += _truncate(stream.segment(segment, "lz4"), frame_bytes)
        stream.segment(segment, "index").unlink(missing_ok=True)
    elif num_records:
        write_index(stream, segment, schema, num_records)
    sync_folder(stream.path)
    lanes = LaneState.fresh(stream.lanes) if last is None else _lane_state(stream, schema, last)
    if closed:
        segment, num_records, frame_bytes = segment + 1, 0, 0
    generation = head.generation if head else 0
    return Recovered(commits, generation + bool(cut), first, segment, num_records, frame_bytes, lanes, cut)


def _truncate(path: Any, size: int) -> int:
    """Truncate a file to `size`; return the number of bytes removed."""
    try:
        fd = open_file(path, os.O_RDWR)
    except FileNotFoundError:
        return 0
    try:
        excess = os.fstat(fd).st_size - size
        if excess > 0:
            os.ftruncate(fd, size)
            sync(fd)
        return max(excess, 0)
    finally:
        os.close(fd)


def _lane_state(stream: StreamFolder, schema: Schema, entry: Array) -> LaneState:
    """Return each lane's state after a commit, from its last record; a damaged one ends its episode."""
    lanes = LaneState.fresh(stream.lanes, int(entry["next_episode"]))
    path, count = stream.segment(int(entry["segment"]), "steps"), int(entry["row_end"] - entry["row_begin"])
    if not path.exists():
        return lanes
    begin = int(entry["row_begin"]) * schema.record.itemsize
    records = np.fromfile(path, schema.record, count=count, offset=begin)
    last = records[np.cumsum(entry["lane_rows"]) - 1]
    readable = record_checksums(last) == last["checksum"]
    lanes.episode[:] = np.where(readable, last["episode"], 0)
    lanes.episode_step[:] = np.where(readable, last["episode_step"] + 1, 0)
    lanes.open[:] = readable & ((last["flags"] & (ENDED | FINAL)) == 0)
    return lanes

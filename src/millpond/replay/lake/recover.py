"""Where a stream ends: found when a writer opens it, after a crash or not, and when appends are taken back."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.durable import open_file, sync, sync_folder
from millpond.replay.errors import LakeDamaged, LakeError
from millpond.replay.lake.codec import row_checksums
from millpond.replay.lake.format import StreamFolder, StreamHead, commit_dtype, read_log
from millpond.replay.lake.stream import write_index
from millpond.replay.schema import ENDED, FINAL, Schema
from millpond.replay.steps import LaneState

Array = np.ndarray[Any, Any]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recovered:
    """The end of a stream, and what was cut off behind it: appends that were never acknowledged."""

    commits: int
    generation: int
    first_segment: int
    segment: int
    rows: int
    frame_bytes: int
    lanes: LaneState
    cut_bytes: int = 0


def recover(stream: StreamFolder, schema: Schema) -> Recovered:
    """Find the longest valid prefix and cut off what lies behind it."""
    found = read_log(stream, schema)
    if found.lost:
        raise LakeDamaged(
            f"stream {stream.name!r}: entry {len(found.entries)} of the commit log is damaged and {found.lost - 1} good "
            "ones follow; appending would cut them off. Run `millpond lake verify`, and write to a new stream."
        )
    commits = len(found.entries)
    while commits and not _has_bytes(stream, schema, found.entries[commits - 1]):
        commits -= 1
    state = cut_behind(stream, schema, commits)
    if state.cut_bytes:
        log.warning(
            "stream %s: cut off %d bytes behind append %d, never acknowledged", stream.name, state.cut_bytes, commits
        )
    return state


def _has_bytes(stream: StreamFolder, schema: Schema, entry: Array) -> bool:
    """Whether the files of a commit are as long as it says; a dropped segment counts as whole."""
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
    """The oldest segment that was not dropped."""
    head, numbers = StreamHead.read(stream.head), stream.segments()
    return max(head.first_segment if head else 0, numbers[0] if numbers else 0)


def cut_behind(stream: StreamFolder, schema: Schema, commits: int, *, acknowledged: bool = False) -> Recovered:
    """Cut the log and the data files behind the first `commits` appends.

    `acknowledged`: readers may have seen what is cut, and may have mapped it. Then whole files go, which such readers
    keep, but none is made shorter under them: the last one stays as it is, and a new segment begins.
    """
    entries = read_log(stream, schema).entries
    first, head = _first_segment(stream), StreamHead.read(stream.head)
    last = entries[commits - 1] if commits else None
    if last is not None and int(last["segment"]) < first and len(entries) > commits:
        raise LakeError(
            f"stream {stream.name!r}: position={commits} lies in segment {int(last['segment'])}, which was dropped to "
            f"keep max_bytes; the oldest that is left is {first}"
        )
    # The log first: should the machine stop in between, the data behind it is cut when a writer opens the stream.
    cut = _truncate(stream.commits, commits * commit_dtype(stream.lanes).itemsize)
    segment = first if last is None else max(first, int(last["segment"]))
    rows = frame_bytes = 0
    if last is not None and int(last["segment"]) >= first:
        rows, frame_bytes = int(last["row_end"]), int(last["frame_end"])
    for path in stream.path.glob("[0-9]*.*"):
        number = int(path.stem)
        if number > segment or number < first or (path.suffix == ".lz4" and stream.codec(number) == "zst"):
            cut += path.stat().st_size if number > segment and path.suffix != ".index" else 0
            path.unlink(missing_ok=True)
    closed = acknowledged or stream.codec(segment) == "zst"  # a compacted segment is never appended to
    if not closed:
        cut += _truncate(stream.segment(segment, "steps"), rows * schema.record.itemsize)
        cut += _truncate(stream.segment(segment, "lz4"), frame_bytes)
        stream.segment(segment, "index").unlink(missing_ok=True)
    elif rows:
        write_index(stream, segment, schema, rows)
    sync_folder(stream.path)
    lanes = LaneState.fresh(stream.lanes) if last is None else _lanes(stream, schema, last)
    if closed:
        segment, rows, frame_bytes = segment + 1, 0, 0
    generation = head.generation if head else 0
    return Recovered(commits, generation + bool(cut), first, segment, rows, frame_bytes, lanes, cut)


def _truncate(path: Any, size: int) -> int:
    """Cut a file to `size`; returns the bytes that went."""
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


def _lanes(stream: StreamFolder, schema: Schema, entry: Array) -> LaneState:
    """Each lane's state, from its last record. One that cannot be read ends its episode: the next begins a new one."""
    lanes = LaneState.fresh(stream.lanes, int(entry["next_episode"]))
    path, count = stream.segment(int(entry["segment"]), "steps"), int(entry["row_end"] - entry["row_begin"])
    if not path.exists():
        return lanes
    begin = int(entry["row_begin"]) * schema.record.itemsize
    records = np.fromfile(path, schema.record, count=count, offset=begin)
    last = records[np.cumsum(entry["lane_rows"]) - 1]
    readable = row_checksums(last) == last["checksum"]
    lanes.episode[:] = np.where(readable, last["episode"], 0)
    lanes.episode_step[:] = np.where(readable, last["episode_step"] + 1, 0)
    lanes.open[:] = readable & ((last["flags"] & (ENDED | FINAL)) == 0)
    return lanes

"""Find the end of a stream when a writer opens it, after a crash or not, and when appends are rolled back.

Nothing is removed that was acknowledged: if the head promises more than the log and the files hold, a writer is refused, and
`millpond lake repair` decides.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from millpond.durable import DiskFile, replace_by_prefix, sync_folder
from millpond.replay.lake.checksum import consecutive_places, record_checksums
from millpond.replay.lake.format import (
    UNLIMITED,
    Loss,
    StreamFolder,
    StreamHead,
    is_accepted,
    is_number,
    lock_stream,
    read_losses,
    this_boot,
)
from millpond.replay.lake.index import write_index
from millpond.replay.lake.log import CommitLog, commit_dtype, read_log, read_steps
from millpond.replay.lake.stream import Damage, first_segment, log_damage, missing_file
from millpond.replay.schema import ENDED, FINAL, LakeBusy, LakeDamaged, LakeError, Schema
from millpond.replay.steps import LaneState

Array = np.ndarray[Any, Any]
SUFFIXES = ("steps", "lz4", "zst", "index")  # of a segment's files
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamState:
    """What a stream's log, head and files say. `entries` are those that count; nothing of them was read but the log."""

    log: CommitLog
    head: StreamHead
    entries: Array
    damage: list[Damage]
    losses: list[Loss]


def examine(stream: StreamFolder, schema: Schema) -> StreamState:
    """Compare the log, the head and the sizes of all files. Nothing is changed."""
    stored, commit_log = StreamHead.read(stream), read_log(stream, schema)
    written = len(commit_log.entries)
    damage = log_damage(stream, commit_log, stored, written)
    first = first_segment(stream, stored)
    head = stored or StreamHead(this_boot() or b"", 0, first, written)
    head = replace(head, first_segment=first)
    entries = commit_log.entries[: head.limit]
    losses: list[Loss] = []
    try:
        losses = read_losses(stream)
    except LakeDamaged as error:
        damage.append(Damage(str(stream.losses), -1, str(error)))
    last_of_segment = np.append(entries["segment"][1:] != entries["segment"][:-1], True)[: len(entries)]
    for entry in entries[last_of_segment]:
        if int(entry["segment"]) >= first:
            damage += _file_damage(stream, schema, entry, losses)
    return StreamState(commit_log, head, entries, damage, losses)


def _file_damage(stream: StreamFolder, schema: Schema, entry: Array, losses: list[Loss]) -> list[Damage]:
    """Return which files of an entry's segment are missing, or shorter than the entry requires; not what was accepted."""
    number, rows, frame_end = int(entry["segment"]), int(entry["row_end"]), int(entry["frame_end"])
    missing = missing_file(stream, schema, number, frame_end)
    if missing is not None:
        return [] if is_accepted(losses, number, 0, rows) else [missing]
    required = {"steps": rows * schema.record.itemsize}
    if schema.compressed and stream.codec(number) == "lz4" and frame_end:
        required["lz4"] = frame_end
    return [
        Damage(str(stream.segment(number, kind)), -1, f"has {held:,} bytes; the log requires {nbytes:,}")
        for kind, nbytes in required.items()
        if (held := stream.file_bytes(number, kind)) < nbytes and not is_accepted(losses, number, rows - 1, rows)
    ]


@dataclass(frozen=True)
class Recovered:
    """The end of a stream; `cut_bytes` were removed after it: appends that were never acknowledged, or rolled back."""

    commits: int
    generation: int
    first_segment: int
    segment: int
    num_records: int  # of that segment
    frame_bytes: int
    lanes: LaneState
    sequence: int  # of the head
    cut_bytes: int = 0


def recover(stream: StreamFolder, schema: Schema) -> Recovered:
    """Cut off everything after the last entry of the log; refuse if anything acknowledged is missing."""
    state = examine(stream, schema)
    if state.damage:
        more = f" and {len(state.damage) - 3} more" if len(state.damage) > 3 else ""
        raise LakeDamaged(
            f"stream {stream.name!r} has lost acknowledged data: {'; '.join(map(str, state.damage[:3]))}{more}. Nothing was "
            f"changed. Restore the files, write to another stream, or run `millpond lake repair {stream.path.parent.parent}`."
        )
    rolled_back = state.head.limit != UNLIMITED  # and the process died before it was done
    end = cut(stream, schema, state.entries, state.head, seen=rolled_back)
    if end.cut_bytes and not rolled_back:
        log.warning("stream %s: cut off %d bytes after append %d", stream.name, end.cut_bytes, end.commits)
    return end


def require_position(stream: StreamFolder, entries: Array, position: int, first: int) -> None:
    """Refuse a rollback to an append whose records were dropped."""
    if 0 < position < len(entries) and int(entries["segment"][position - 1]) < first:
        raise LakeError(
            f"stream {stream.name!r}: position={position} is in segment {int(entries['segment'][position - 1])}, which "
            f"was dropped to keep max_bytes; the oldest remaining one is {first}"
        )


def cut(stream: StreamFolder, schema: Schema, entries: Array, head: StreamHead, *, seen: bool = False) -> Recovered:
    """Remove everything after `entries`, the first entries of the log, from the log and the data files.

    `seen`: readers may have seen the removed appends, and may have mapped their files. Then a file is not truncated, but
    replaced by a copy of its beginning: whoever has the old one open keeps it.
    """
    first, last = head.first_segment, entries[-1] if len(entries) else None
    removed = _truncate(stream.commits, len(entries) * commit_dtype(stream.lanes).itemsize)
    segment = first if last is None else max(first, int(last["segment"]))
    num_records = frame_bytes = 0
    if last is not None and int(last["segment"]) >= first:
        num_records, frame_bytes = int(last["row_end"]), int(last["frame_end"])
    for path in stream.path.glob("[0-9]*.*"):
        number = int(path.stem) if is_number(path.stem) and path.suffix[1:] in SUFFIXES else segment
        if number > segment or number < first or (path.suffix == ".lz4" and stream.codec(number) == "zst"):
            removed += path.stat().st_size if number > segment and path.suffix != ".index" else 0
            path.unlink(missing_ok=True)
    removed += _cut_file(stream.segment(segment, "steps"), num_records * schema.record.itemsize, seen)
    compacted = stream.codec(segment) == "zst"
    if compacted:  # never appended to; the chunks of removed records stay, and are not read
        if num_records:
            write_index(stream, segment, schema, num_records)
    else:
        removed += _cut_file(stream.segment(segment, "lz4"), frame_bytes, seen)
        stream.segment(segment, "index").unlink(missing_ok=True)
    _remove_temporary(stream)
    sync_folder(stream.path)
    lanes = LaneState.fresh(stream.lanes) if last is None else _lane_state(stream, schema, last)
    if compacted:
        segment, num_records, frame_bytes = segment + 1, 0, 0
    position = (segment, num_records, frame_bytes)
    return Recovered(
        len(entries), head.generation + bool(removed), first, *position, lanes, head.sequence, cut_bytes=removed
    )


def _cut_file(path: Path, size: int, seen: bool) -> int:
    """Cut a file after `size` bytes; return the number of bytes removed."""
    if not seen:
        return _truncate(path, size)
    excess = path.stat().st_size - size if path.exists() else 0
    if excess > 0:
        replace_by_prefix(path, size)
    return max(excess, 0)


def _truncate(path: Path, size: int) -> int:
    """Truncate a file to `size`; return the number of bytes removed."""
    try:
        file = DiskFile(path, os.O_RDWR)
    except FileNotFoundError:
        return 0
    try:
        excess = file.size - size
        if excess > 0:
            file.truncate(size)
            file.sync()
        return max(excess, 0)
    finally:
        file.close()


def _remove_temporary(stream: StreamFolder) -> None:
    """Remove the unfinished files of processes that died; none while another process compacts."""
    leftover = [path for path in stream.path.glob(".*.tmp") if path.name.split(".")[-2] != str(os.getpid())]
    if not leftover:
        return
    try:
        maintenance = lock_stream(stream.path / "maintenance", "maintenance")
    except LakeBusy:
        return
    try:
        for path in leftover:
            path.unlink(missing_ok=True)
    finally:
        maintenance.release()


def _lane_state(stream: StreamFolder, schema: Schema, entry: Array) -> LaneState:
    """Return each lane's state after a commit, from its last record; a damaged one ends its episode."""
    lanes = LaneState.fresh(stream.lanes, int(entry["next_episode"]))
    segment, begin, end = (int(entry[name]) for name in ("segment", "row_begin", "row_end"))
    try:
        records = read_steps(stream, schema, segment, begin, end - begin)
    except FileNotFoundError:  # dropped
        return lanes
    lane_end = np.cumsum(entry["lane_rows"], dtype=np.int64)
    known = (entry["lane_rows"] > 0) & (lane_end <= len(records))
    if not known.any():
        return lanes
    rows = np.where(known, lane_end - 1, 0)
    last = records[rows]
    places = consecutive_places(segment, begin, end - begin)[rows]
    known &= record_checksums(last, stream.binding, "steps", places) == last["checksum"]
    lanes.episode[:] = np.where(known, last["episode"], 0)
    lanes.episode_step[:] = np.where(known, last["episode_step"] + 1, 0)
    lanes.open[:] = known & ((last["flags"] & (ENDED | FINAL)) == 0)
    return lanes

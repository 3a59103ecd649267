"""The writer of a stream: append, acknowledge, roll back, drop the oldest segments.

An append is written after the existing records and frames, synced, then entered in the commit log, which is synced,
too; only then is it acknowledged. If anything fails before that, the stream stays unchanged. The head, which tells readers how
far they may read, is synced only before something is removed, so that a removal is never mistaken for a loss.

The records of one append are ordered by lane, so that consecutive steps of a lane are neighbours on disk, and a stack
of frames with the next observation is mostly one read. A final observation is the record after its step.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from millpond.durable import DiskFile, FileLock, sync_folder
from millpond.replay.lake.checksum import Binding, consecutive_places, record_checksums
from millpond.replay.lake.codec import compress_frames
from millpond.replay.lake.drop import drop_for_space
from millpond.replay.lake.format import (
    MAX_APPEND_BYTES,
    UNLIMITED,
    Manifest,
    StreamFolder,
    StreamHead,
    lock_stream,
    this_boot,
)
from millpond.replay.lake.index import write_index
from millpond.replay.lake.log import commit_dtype, entry_checksums, read_log
from millpond.replay.lake.recover import Recovered, cut, recover, require_position
from millpond.replay.schema import (
    FINAL,
    FIRST,
    HAS_FINAL,
    TERMINATED,
    TRUNCATED,
    LakeDamaged,
    LakeError,
    LakeFull,
    Schema,
)
from millpond.replay.steps import LaneState, Steps, number_episodes, validate

Array = np.ndarray[Any, Any]
MAX_EPISODES = 2**32 - 1  # of a stream: their numbers have four bytes
NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@dataclass(frozen=True)
class Ack:
    """Proof that an append is on disk. `commits` is the stream's position, for `rollback`."""

    stream: str
    commits: int
    steps: int
    records: int
    nbytes: int


class Writer:
    """Appends to one stream. Created by `Lake.writer`; use it in a `with` block or call `close`."""

    def __init__(self, lake: Path, manifest: Manifest, stream: StreamFolder, *, continue_episodes: bool) -> None:
        self.lake, self.manifest, self.stream = lake, manifest, stream
        self.schema = manifest.schema
        self._lock: FileLock | None = lock_stream(stream.path / "lock", f"stream {stream.name!r}")
        self._files: dict[str, DiskFile] = {}
        self._broken = ""
        try:
            self.recovered = recover(stream, self.schema)
            self._continue_at(self.recovered)
            if not continue_episodes:
                self._lanes.open[:] = False
            self._open_log()
            self._publish(durable=True)
        except BaseException:
            self.close()
            raise

    def _continue_at(self, end: Recovered) -> None:
        """Continue where the stream ends."""
        self.commits, self._generation, self._first = end.commits, end.generation, end.first_segment
        self._segment, self._num_records, self._frame_bytes = end.segment, end.num_records, end.frame_bytes
        self._lanes: LaneState = end.lanes
        self._sequence = end.sequence

    @property
    def position(self) -> int:
        """Number of acknowledged appends: stored in checkpoints, for `rollback`."""
        return self.commits

    def append(self, steps: Steps) -> Ack:
        """Write `[T, L]` steps. When this returns they are on disk, and survive any crash."""
        if self._broken or self._lock is None:
            raise LakeError(f"stream {self.stream.name!r}: {self._broken or 'the writer is closed'}; open a new writer")
        steps = validate(steps, self.schema, self.stream.lanes)
        if self._frame_bytes + self._num_records * self.schema.record.itemsize >= self.manifest.segment_bytes:
            self._next_segment()
        encoded = self._encode(steps)
        if self._frame_bytes + len(encoded.frames) > MAX_APPEND_BYTES and self._num_records:
            self._next_segment()
            encoded = self._encode(steps)
        if encoded.lanes.next_episode > MAX_EPISODES:
            raise LakeError(
                f"stream {self.stream.name!r} has had {MAX_EPISODES:,} episodes, its most; use another stream"
            )
        if len(encoded.frames) > MAX_APPEND_BYTES or encoded.records.nbytes > MAX_APPEND_BYTES:
            raise LakeError(f"one append has {len(encoded.frames):,} bytes; append fewer than 4 GB at once")
        nbytes = len(encoded.frames) + encoded.records.nbytes
        self._commit(encoded, nbytes)
        return Ack(self.stream.name, self.commits, steps.reward.size, len(encoded.records), nbytes)

    def _encode(self, steps: Steps) -> Encoded:
        place = AppendStart(self.stream.binding, self._segment, self._num_records, self._frame_bytes)
        return encode(steps, self.schema, self._lanes, place, time.time())

    def _commit(self, encoded: Encoded, nbytes: int) -> None:
        width = self.schema.record.itemsize
        entry = np.zeros(1, commit_dtype(self.stream.lanes))
        entry["segment"], entry["number"] = self._segment, self.commits
        entry["row_begin"], entry["row_end"] = self._num_records, self._num_records + len(encoded.records)
        entry["frame_begin"], entry["frame_end"] = self._frame_bytes, self._frame_bytes + len(encoded.frames)
        entry["next_episode"], entry["time"] = encoded.lanes.next_episode, encoded.records["time"][0]
        entry["lane_rows"] = encoded.lane_rows
        entry["checksum"] = entry_checksums(entry, self.stream.binding, self.commits)
        syncing = False
        try:
            if len(encoded.frames):
                self._file("lz4").write(encoded.frames.data, self._frame_bytes)
            self._file("steps").write(encoded.records.view(np.uint8).data, self._num_records * width)
            syncing = True
            for kind in ("lz4", "steps") if len(encoded.frames) else ("steps",):
                self._file(kind).sync()
            syncing = False
            self._files["commits"].write(entry.tobytes(), self.commits * entry.itemsize)
            syncing = True
            self._files["commits"].sync()
            self._publish(self.commits + 1)
        except OSError as error:
            self._undo(error, syncing)
            if error.errno in NO_SPACE:
                raise no_space(error, self.stream.path, nbytes) from error
            raise
        self.commits += 1
        self._num_records += len(encoded.records)
        self._frame_bytes += len(encoded.frames)
        self._lanes = encoded.lanes

    def _undo(self, error: OSError, syncing: bool) -> None:
        """Cut the files back to what is acknowledged.

        After a failed sync it is unknown which of the written pages are on disk, and a later sync would not tell. So this
        writer must not continue; a new one reads the files again. Likewise if the files cannot be cut back.
        """
        self._broken = f"a write failed, and what it left could not be removed ({error})"
        ends = {
            "commits": self.commits * commit_dtype(self.stream.lanes).itemsize,
            "steps": self._num_records * self.schema.record.itemsize,
            "lz4": self._frame_bytes,
        }
        for kind, file in self._files.items():
            if kind in ends:
                file.truncate(ends[kind])
        self._broken = f"a sync failed ({error})" if syncing else ""

    def rollback(self, position: int) -> int:
        """Remove every append after `position` (an earlier `self.position`); return the number of appends removed.

        Lanes continue the episodes that were open there, for environments whose state is restored to the same moment.
        The removed bytes are freed; the new end is durable before any of them is removed.
        """
        if not 0 <= position <= self.commits:
            raise LakeError(f"stream {self.stream.name!r}: position={position} is not in 0..{self.commits}")
        entries = read_log(self.stream, self.schema).entries
        if len(entries) < self.commits:
            raise LakeDamaged(f"{self.stream.commits}: {self.commits - len(entries)} acknowledged appends are missing")
        require_position(self.stream, entries, position, self._first)
        removed = self.commits - position
        self._close_segment()
        maintenance = lock_stream(self.stream.path / "maintenance", "maintenance", wait=True)
        self._broken = "a rollback did not finish"
        try:
            self._generation += 1
            self._publish(position, limit=position, durable=True)
            head = StreamHead(b"", self._generation, self._first, position, sequence=self._sequence)
            self._continue_at(cut(self.stream, self.schema, entries[:position], head, seen=True))
            self._publish(durable=True)  # without the limit, after which an append would not count
            self._broken = ""
        finally:
            maintenance.release()
        return removed

    def cut(self, lanes: Any = slice(None)) -> None:
        """Begin a new episode with the next step of these lanes: their envs were reset without a recorded end."""
        self._lanes.open[lanes] = False

    def _next_segment(self) -> None:
        """Close the segment, write its index, drop old ones if the lake has a limit."""
        number = self._segment
        self._close_segment()
        write_index(self.stream, number, self.schema, self._num_records)
        self._segment, self._num_records, self._frame_bytes = number + 1, 0, 0
        if self.manifest.max_bytes is not None:
            first = drop_for_space(self.lake, self.manifest, self.stream, self._first, number, self._announce_drop)
            self._first = max(self._first, first)

    def _announce_drop(self, first: int) -> None:
        self._first = first
        self._generation += 1
        self._publish(durable=True)

    def _file(self, kind: str) -> DiskFile:
        """Return the segment's file of records or frames, opened on first use."""
        if kind not in self._files:
            file = DiskFile(self.stream.segment(self._segment, kind), os.O_RDWR | os.O_CREAT)
            try:
                sync_folder(self.stream.path)
            except BaseException:
                file.close()
                raise
            self._files[kind] = file
        return self._files[kind]

    def _open_log(self) -> None:
        for kind, path in (("commits", self.stream.commits), ("head", self.stream.head)):
            self._files[kind] = DiskFile(path, os.O_RDWR | os.O_CREAT)
        sync_folder(self.stream.path)

    def _publish(self, commits: int | None = None, *, limit: int = UNLIMITED, durable: bool = False) -> None:
        """Make what is acknowledged visible to readers; `durable`: and sync it, before something is removed."""
        acknowledged = self.commits if commits is None else commits
        self._sequence += 1
        head = StreamHead(
            this_boot() or b"", self._generation, self._first, acknowledged, limit, sequence=self._sequence
        )
        head.write(self._files["head"], self.stream.binding, durable=durable)

    def _close_segment(self) -> None:
        for kind in ("steps", "lz4"):
            if kind in self._files:
                self._files.pop(kind).close()

    def close(self) -> None:
        """Close the files and release the lock. Everything acknowledged is on disk already."""
        for kind in list(self._files):
            self._files.pop(kind).close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def no_space(error: OSError, folder: Path, needed: int) -> LakeFull:
    """Return an error that names the folder, the bytes needed and the bytes free."""
    try:
        free = f"{shutil.disk_usage(folder).free:,} bytes are free"
    except OSError:
        free = "the free space cannot be read"
    return LakeFull(
        f"{folder}: no space for an append of {needed:,} bytes ({os.strerror(error.errno or 0)}; {free}). "
        "Acknowledged appends are safe. Free some space or set a lower max_bytes, then append again."
    )


# -- from steps to bytes


@dataclass(frozen=True)
class AppendStart:
    """Where an append begins: row and byte of the frames in a segment."""

    binding: Binding
    segment: int
    row: int
    frame_begin: int


@dataclass(frozen=True)
class Encoded:
    """The bytes of one append, and the lanes after it."""

    records: Array
    frames: Array
    lane_rows: Array
    lanes: LaneState


def encode(steps: Steps, schema: Schema, lanes: LaneState, at: AppendStart, time: float) -> Encoded:
    """Return the bytes of one append; `lanes` is not changed."""
    count = len(lanes.episode)
    has_final = steps.has_final
    lane_rows = len(steps.reward) + has_final.sum(axis=0)
    lane_begin = np.cumsum(lane_rows) - lane_rows
    earlier_finals = np.cumsum(has_final, axis=0) - has_final
    place = lane_begin + np.arange(len(steps.reward))[:, None] + earlier_finals  # [T, L] record of each step
    final_place = place[has_final] + 1

    episode, episode_step, first, after = number_episodes(steps, lanes)
    records = np.zeros(int(lane_rows.sum()), schema.record)
    flags = first * FIRST + steps.terminated * TERMINATED + steps.truncated * TRUNCATED + has_final * HAS_FINAL
    columns = {
        **steps.columns(),
        "flags": flags,
        "lane": np.broadcast_to(np.arange(count), place.shape),
        "episode": episode,
        "episode_step": episode_step,
    }
    provenance = ("lane", "episode", "agent", "round", "policy_version", "epsilon")
    for name, values in columns.items():
        records[name][place] = values
        if name in provenance:
            records[name][final_place] = values[has_final]
    records["flags"][final_place] = FINAL
    records["episode_step"][final_place] = episode_step[has_final] + 1
    records["time"] = time
    for field in schema.observation:
        if field.storage == "fixed":
            records[schema.column(field)][place] = steps.observation[field.name]
            records[schema.column(field)][final_place] = steps.final_observation[field.name]
    frames, frame_ends = _encode_frames(steps, schema, place, final_place, len(records), at)
    records["frame_end"] = at.frame_begin + frame_ends
    places = consecutive_places(at.segment, at.row, len(records))
    records["checksum"] = record_checksums(records, at.binding, "steps", places)
    return Encoded(records, frames, lane_rows, after)


def _encode_frames(
    steps: Steps, schema: Schema, place: Array, final_place: Array, count: int, at: AppendStart
) -> tuple[Array, Array]:
    """Return all frames in the order of the records, and where each record's frames end."""
    if not schema.compressed:
        return np.empty(0, np.uint8), np.zeros(count, np.int64)
    # Observations are numbered: T * L steps in the order of the arrays, then the final ones.
    order = np.empty(count, np.int64)
    order[place.reshape(-1)] = np.arange(place.size)
    order[final_place] = place.size + np.arange(len(final_place))
    fields = schema.compressed
    widths = [field.nbytes for field in fields]
    observed = [_as_bytes(steps.observation[field.name], place.size) for field in fields]
    finals = [_as_bytes(steps.final_observation[field.name], len(final_place)) for field in fields]
    joined, joined_finals = observed[0], finals[0]
    if len(fields) > 1:
        joined, joined_finals = np.concatenate(observed, axis=1), np.concatenate(finals, axis=1)
    return compress_frames(order, joined, joined_finals, widths, at.binding, at.segment, at.row)


def _as_bytes(array: Array, count: int) -> Array:
    """Return an array of `count` frames as `[count, bytes]`."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(count, array.nbytes // max(count, 1))

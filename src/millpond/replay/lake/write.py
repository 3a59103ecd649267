"""The one writer of a stream: append, acknowledge, roll back.

An append is written behind what there is (records, frames), synced, then entered in the commit log, which is synced
too; only then is it acknowledged. Whatever happens before that, the stream stays as it was.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from millpond.durable import open_file, sync, sync_folder, write_all
from millpond.replay.errors import LakeBusy, LakeError, LakeFull
from millpond.replay.lake.codec import encode_rows, row_checksums
from millpond.replay.lake.format import Manifest, StreamFolder, StreamHead, commit_dtype, this_boot
from millpond.replay.lake.lock import Lock
from millpond.replay.lake.recover import Recovered, cut_behind, recover
from millpond.replay.lake.stream import write_index
from millpond.replay.schema import FINAL, FIRST, HAS_FINAL, TERMINATED, TRUNCATED, Schema
from millpond.replay.steps import LaneState, Steps, number_episodes, validate

LARGEST_SEGMENT = 2**32 - 1
NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@dataclass(frozen=True)
class Ack:
    """Proof that an append is on disk. `commits` is the stream's position, for `rollback`."""

    stream: str
    commits: int
    steps: int
    rows: int
    nbytes: int


class Writer:
    """Appends to one stream. Made by `Lake.writer`; use it in a `with` block or call `close`."""

    def __init__(self, lake: Path, manifest: Manifest, stream: StreamFolder, *, continue_episodes: bool) -> None:
        self.lake, self.manifest, self.stream = lake, manifest, stream
        self.schema = manifest.schema
        self._lock: Lock | None = Lock(stream.path / "lock", f"stream {stream.name!r}")
        self._files: dict[str, int] = {}
        try:
            self.recovered = recover(stream, self.schema)
            self._take(self.recovered)
            if not continue_episodes:
                self._lanes.open[:] = False
            self._open_log()
            self._publish()
        except BaseException:
            self.close()
            raise

    def _take(self, state: Recovered) -> None:
        """Stand where the log says that the stream ends."""
        self.commits, self._generation, self._first = state.commits, state.generation, state.first_segment
        self._segment, self._rows, self._frame_bytes = state.segment, state.rows, state.frame_bytes
        self._lanes: LaneState = state.lanes
        self._broken = ""

    @property
    def position(self) -> int:
        """Acknowledged appends so far: what a checkpoint keeps, and `rollback` takes."""
        return self.commits

    def append(self, steps: Steps) -> Ack:
        """Write `[T, L]` steps. When this returns they are on disk, whatever happens next."""
        if self._broken or self._lock is None:
            raise LakeError(f"stream {self.stream.name!r}: {self._broken or 'the writer is closed'}; open a new writer")
        steps = validate(steps, self.schema, self.stream.lanes)
        if self._frame_bytes + self._rows * self.schema.record.itemsize >= self.manifest.segment_bytes:
            self._next_segment()
        encoded = encode(steps, self.schema, self._lanes, self._frame_bytes, time.time())
        if self._frame_bytes + len(encoded.frames) > LARGEST_SEGMENT and self._rows:
            self._next_segment()
            encoded = encode(steps, self.schema, self._lanes, 0, time.time())
        if len(encoded.frames) > LARGEST_SEGMENT or encoded.records.nbytes > LARGEST_SEGMENT:
            raise LakeError(f"one append has {len(encoded.frames):,} bytes; append fewer than 4 GB at once")
        nbytes = len(encoded.frames) + encoded.records.nbytes
        self._commit(encoded, nbytes)
        return Ack(self.stream.name, self.commits, steps.reward.size, len(encoded.records), nbytes)

    def _commit(self, encoded: Encoded, nbytes: int) -> None:
        width = self.schema.record.itemsize
        entry = np.zeros(1, commit_dtype(self.stream.lanes))
        entry["segment"], entry["number"] = self._segment, self.commits
        entry["row_begin"], entry["row_end"] = self._rows, self._rows + len(encoded.records)
        entry["frame_begin"], entry["frame_end"] = self._frame_bytes, self._frame_bytes + len(encoded.frames)
        entry["next_episode"], entry["time"] = encoded.lanes.next_episode, encoded.records["time"][0]
        entry["lane_rows"] = encoded.lane_rows
        entry["checksum"] = row_checksums(entry)
        syncing = False
        try:
            if len(encoded.frames):
                write_all(self._file("lz4"), encoded.frames.data, self._frame_bytes)
            write_all(self._file("steps"), encoded.records.view(np.uint8).data, self._rows * width)
            syncing = True
            for kind in ("lz4", "steps") if len(encoded.frames) else ("steps",):
                sync(self._file(kind))
            syncing = False
            write_all(self._files["commits"], entry.tobytes(), self.commits * entry.itemsize)
            syncing = True
            sync(self._files["commits"])
        except OSError as error:
            self._undo(error, syncing)
            if error.errno in NO_SPACE:
                raise no_space(error, self.stream.path, nbytes) from error
            raise
        self.commits += 1
        self._rows += len(encoded.records)
        self._frame_bytes += len(encoded.frames)
        self._lanes = encoded.lanes
        self._publish()

    def _undo(self, error: OSError, syncing: bool) -> None:
        """Cut the files back to what is acknowledged.

        After a failed sync nobody knows what the disk holds of the pages that were to be written, so the writer
        must not go on as if a later sync could tell; a new one looks at the files afresh.
        """
        if syncing:
            self._broken = f"a sync failed ({error})"
        ends = {
            "commits": self.commits * commit_dtype(self.stream.lanes).itemsize,
            "steps": self._rows * self.schema.record.itemsize,
            "lz4": self._frame_bytes,
        }
        for kind, fd in self._files.items():
            if kind in ends:
                os.ftruncate(fd, ends[kind])

    def rollback(self, position: int) -> int:
        """Take back every append behind `position` (an earlier `position`); returns the commits taken back.

        Lanes go on with the episodes that were open there, for environments whose state is restored to the same moment.
        """
        if not 0 <= position <= self.commits:
            raise LakeError(f"stream {self.stream.name!r}: position={position} is not in 0..{self.commits}")
        taken = self.commits - position
        self._close_segment()
        maintenance = Lock(self.stream.path / "maintenance", "maintenance", wait=True)
        try:
            self._take(cut_behind(self.stream, self.schema, position, acknowledged=True))
            self._generation += 1
            self._publish()
        finally:
            maintenance.release()
        return taken

    def cut(self, lanes: Any = slice(None)) -> None:
        """The next step of these lanes begins a new episode: their env was reset without an end that was seen."""
        self._lanes.open[lanes] = False

    def _next_segment(self) -> None:
        """Close the segment, keep its index beside it, drop old ones where the lake has a limit."""
        number = self._segment
        self._close_segment()
        write_index(self.stream, number, self.schema, self._rows)
        self._segment, self._rows, self._frame_bytes = number + 1, 0, 0
        if self.manifest.max_bytes is not None:
            first = drop_for_space(self.lake, self.manifest, self.stream, self._first, number, self._announce_drop)
            self._first = max(self._first, first)

    def _announce_drop(self, first: int) -> None:
        self._first = first
        self._generation += 1
        self._publish()

    def _file(self, kind: str) -> int:
        """The segment's file of records or frames, opened when first needed."""
        if kind not in self._files:
            path = self.stream.segment(self._segment, kind)
            self._files[kind] = open_file(path, os.O_RDWR | os.O_CREAT)
            sync_folder(self.stream.path)
        return self._files[kind]

    def _open_log(self) -> None:
        self._files["commits"] = open_file(self.stream.commits, os.O_RDWR | os.O_CREAT)
        self._files["head"] = open_file(self.stream.head, os.O_RDWR | os.O_CREAT)
        sync_folder(self.stream.path)

    def _publish(self) -> None:
        """Let readers see what is acknowledged."""
        StreamHead(this_boot() or b"", self._generation, self._first, self.commits).write(self._files["head"])

    def _close_segment(self) -> None:
        for kind in ("steps", "lz4"):
            if kind in self._files:
                os.close(self._files.pop(kind))

    def close(self) -> None:
        """Close the files and let another writer in. Everything acknowledged is on disk already."""
        for kind in list(self._files):
            os.close(self._files.pop(kind))
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
    """An error that names the folder, the bytes that were needed and those that there are."""
    try:
        free = f"{shutil.disk_usage(folder).free:,} bytes are free"
    except OSError:
        free = "the free space cannot be read"
    return LakeFull(
        f"{folder}: no space for an append of {needed:,} bytes ({os.strerror(error.errno or 0)}; {free}). "
        "What was acknowledged is kept. Free some space or set a lower max_bytes, then append again."
    )


# -- From steps `[T, L]` to bytes: records lane by lane, final observations behind their steps, frames one by one.
#
# The rows of one append are ordered by lane, so that consecutive steps of a lane are neighbours on disk, and a stack of
# frames with the next observation is mostly one read.

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Encoded:
    records: Array
    frames: Array
    lane_rows: Array
    lanes: LaneState


def encode(steps: Steps, schema: Schema, lanes: LaneState, frame_begin: int, time: float) -> Encoded:
    """The bytes of one append; `lanes` is left as it was, the state after the append is in the result."""
    count = len(lanes.episode)
    has_final = steps.has_final
    lane_rows = len(steps.reward) + has_final.sum(axis=0)
    lane_begin = np.cumsum(lane_rows) - lane_rows
    earlier_finals = np.cumsum(has_final, axis=0) - has_final
    place = lane_begin + np.arange(len(steps.reward))[:, None] + earlier_finals  # [T, L] row of each step
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
    frames, frame_ends = _encode_frames(steps, schema, place, final_place, len(records))
    records["frame_end"] = frame_begin + frame_ends
    records["checksum"] = row_checksums(records)
    return Encoded(records, frames, lane_rows, after)


def _encode_frames(steps: Steps, schema: Schema, place: Array, final_place: Array, rows: int) -> tuple[Array, Array]:
    """All frames in the order of the rows, and where each row's frames end."""
    if not schema.compressed:
        return np.empty(0, np.uint8), np.zeros(rows, np.int64)
    # Number of a row's observation: T * L steps in the order of the arrays, then the final ones.
    order = np.empty(rows, np.int64)
    order[place.reshape(-1)] = np.arange(place.size)
    order[final_place] = place.size + np.arange(len(final_place))
    fields = schema.compressed
    widths = [field.nbytes for field in fields]
    observed = [as_bytes(steps.observation[field.name], place.size) for field in fields]
    finals = [as_bytes(steps.final_observation[field.name], len(final_place)) for field in fields]
    if len(fields) == 1:
        return encode_rows(order, observed[0], finals[0], widths)
    return encode_rows(order, np.concatenate(observed, axis=1), np.concatenate(finals, axis=1), widths)


def as_bytes(array: Array, count: int) -> Array:
    """An array of `count` frames as `[count, bytes]`."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(count, array.nbytes // max(count, 1))


# -- Keeping a lake below `max_bytes`: whole oldest segments go, from the stream that holds most.
#
# A stream's segments are dropped only by who holds its lock: its writer, or anybody while it has none. A larger stream
# whose writer is at work drops its own when it next begins a segment; until then one segment for each stream and one
# more are kept free, so that the limit holds.

KINDS = ("steps", "lz4", "zst", "index")


def segment_bytes(stream: StreamFolder, number: int) -> int:
    """Bytes of one segment on disk."""
    paths = [stream.segment(number, kind) for kind in KINDS]
    return sum(path.stat().st_size for path in paths if path.exists())


def drop_for_space(
    lake: Path, manifest: Manifest, own: StreamFolder, first: int, last: int, announce: Callable[[int], None]
) -> int:
    """Drop segments until the lake fits. `own` holds segments `first` to `last`; returns its new first."""
    streams = [StreamFolder.read(path.parent) for path in sorted((lake / "streams").glob("*/stream.json"))]
    whole = {stream.name: _whole_segments(stream) for stream in streams if stream.name != own.name}
    whole[own.name] = {number: segment_bytes(own, number) for number in range(first, last + 1)}
    # A segment is a little larger than segment_bytes: by the rest of its last append, and by its index.
    largest = max([manifest.segment_bytes, *(size for sizes in whole.values() for size in sizes.values())])
    room = (manifest.max_bytes or 0) - (len(streams) + 1) * largest
    by_name = {stream.name: stream for stream in streams}
    while sum(sum(sizes.values()) for sizes in whole.values()) > room:
        name = max(whole, key=lambda each: sum(whole[each].values()))
        if not whole[name]:
            break
        oldest = min(whole[name])
        if name == own.name:
            first = oldest + 1
            announce(first)
            _remove(own, oldest)
        elif not _drop_of_idle(by_name[name], oldest):
            break
        del whole[name][oldest]
    return first


def _whole_segments(stream: StreamFolder) -> dict[int, int]:
    """Sizes of all segments but the last, to which a writer may still append."""
    return {number: segment_bytes(stream, number) for number in stream.segments()[:-1]}


def _drop_of_idle(stream: StreamFolder, oldest: int) -> bool:
    """Drop a segment of a stream that has no writer just now; False where it has one."""
    try:
        lock = Lock(stream.path / "lock", f"stream {stream.name!r}")
    except LakeBusy:
        return False
    try:
        head = StreamHead.read(stream.head)
        if head is not None:
            with open(stream.head, "r+b") as file:
                StreamHead(head.boot, head.generation + 1, oldest + 1, head.commits).write(file.fileno())
        _remove(stream, oldest)
    finally:
        lock.release()
    return True


def _remove(stream: StreamFolder, number: int) -> None:
    """The records first: a segment counts as there while they are, and a writer clears away what is left of others."""
    maintenance = Lock(stream.path / "maintenance", "maintenance", wait=True)
    try:
        for kind in KINDS:
            stream.segment(number, kind).unlink(missing_ok=True)
    finally:
        maintenance.release()

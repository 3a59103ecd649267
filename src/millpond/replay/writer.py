"""The one writer of a stream: append, acknowledge, roll back.

An append is written behind what there is (records, frames), synced, then entered in the commit log, which is synced
too; only then is it acknowledged. Whatever happens before that, the stream stays as it was.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from millpond.durable import open_file, sync_folder
from millpond.replay.capacity import drop_for_space
from millpond.replay.checksum import row_checksums
from millpond.replay.durable import NO_SPACE, Lock, no_space, sync, write_all
from millpond.replay.encode import Encoded, Lanes, encode
from millpond.replay.faults import LakeError
from millpond.replay.index import write_index
from millpond.replay.layout import Head, Manifest, StreamFolder, commit_dtype, this_boot
from millpond.replay.recover import Recovered, cut_behind, recover
from millpond.replay.steps import Steps, check

LARGEST_SEGMENT = 2**32 - 1


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
        self._lanes: Lanes = state.lanes
        self._broken = ""

    @property
    def position(self) -> int:
        """Acknowledged appends so far: what a checkpoint keeps, and `rollback` takes."""
        return self.commits

    def append(self, steps: Steps) -> Ack:
        """Write `[T, L]` steps. When this returns they are on disk, whatever happens next."""
        if self._broken or self._lock is None:
            raise LakeError(f"stream {self.stream.name!r}: {self._broken or 'the writer is closed'}; open a new writer")
        checked = check(steps, self.schema, self.stream.lanes)
        if self._frame_bytes + self._rows * self.schema.record.itemsize >= self.manifest.segment_bytes:
            self._next_segment()
        encoded = encode(checked, self.schema, self._lanes, self._frame_bytes, time.time())
        if self._frame_bytes + len(encoded.frames) > LARGEST_SEGMENT and self._rows:
            self._next_segment()
            encoded = encode(checked, self.schema, self._lanes, 0, time.time())
        if len(encoded.frames) > LARGEST_SEGMENT or encoded.records.nbytes > LARGEST_SEGMENT:
            raise LakeError(f"one append has {len(encoded.frames):,} bytes; append fewer than 4 GB at once")
        nbytes = len(encoded.frames) + encoded.records.nbytes
        self._commit(encoded, nbytes)
        return Ack(self.stream.name, self.commits, checked.steps * self.stream.lanes, len(encoded.records), nbytes)

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
        Head(this_boot() or b"", self._generation, self._first, self.commits).write(self._files["head"])

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

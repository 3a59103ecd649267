"""Files and folders of a lake: manifest, streams, commit log, head, locks.

lake.json                       format, version, schema, max_bytes, segment_bytes
streams/NAME/stream.json        lanes, agent
streams/NAME/commits            the commit log: one entry per append
streams/NAME/head               the acknowledged state (generation, first segment, commits)
streams/NAME/lock               held by the writer
streams/NAME/maintenance        held while files are dropped, compacted or rolled back
streams/NAME/000000.steps       step records of one segment
streams/NAME/000000.lz4         their frames, one by one; 000000.zst once compacted
streams/NAME/000000.index       flags and frame positions of a complete segment; can be rebuilt from the others
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from millpond.durable import FileLock, LockHeld, create_file, write_all
from millpond.replay.lake.codec import record_checksums
from millpond.replay.schema import LakeBusy, LakeDamaged, LakeError, Schema

Array = np.ndarray[Any, Any]
FORMAT, VERSION = "millpond-lake", 1
SEGMENT_BYTES = 256 << 20
MAX_LANES = 65_536
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


def signed_json(tree: dict[str, Any]) -> bytes:
    """Return JSON that contains the checksum of everything else in it."""
    checksum = google_crc32c.value(json.dumps(tree, sort_keys=True).encode())
    return json.dumps({**tree, "crc32c": checksum}, indent=2).encode() + b"\n"


def read_signed_json(path: Path) -> dict[str, Any]:
    """Return the tree that `signed_json` wrote; refuse a damaged one."""
    try:
        tree = json.loads(path.read_bytes())
        checksum = tree.pop("crc32c")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LakeDamaged(f"{path} cannot be read: {error!r}; restore it from another copy of the lake") from None
    if google_crc32c.value(json.dumps(tree, sort_keys=True).encode()) != checksum:
        raise LakeDamaged(f"{path} does not match its checksum; restore it from another copy of the lake")
    return dict(tree)


def require_lake(folder: Path) -> None:
    """Refuse a path that is not the folder of a lake, whether or not its files are damaged."""
    if not (folder / "lake.json").exists():
        raise LakeError(f"{folder} is not a lake: it has no lake.json")


@dataclass(frozen=True)
class Manifest:
    """Settings of the whole lake, written once when it is created."""

    schema: Schema
    max_bytes: int | None = None
    segment_bytes: int = SEGMENT_BYTES

    def to_bytes(self) -> bytes:
        tree = {
            "format": FORMAT,
            "version": VERSION,
            "max_bytes": self.max_bytes,
            "segment_bytes": self.segment_bytes,
            "schema": self.schema.to_json(),
        }
        return signed_json(tree)

    @staticmethod
    def read(folder: Path) -> Manifest:
        path = folder / "lake.json"
        require_lake(folder)
        tree = read_signed_json(path)
        if tree.get("format") != FORMAT:
            raise LakeError(f"{path} is not the manifest of a lake (format is not {FORMAT!r})")
        if tree.get("version") != VERSION:
            raise LakeError(f"{path} has version {tree.get('version')}; this Millpond reads version {VERSION}")
        try:
            return Manifest(Schema.from_json(tree["schema"]), tree["max_bytes"], int(tree["segment_bytes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise LakeError(f"{path} is damaged: {error!r}") from None


@dataclass(frozen=True)
class StreamFolder:
    """Paths of one stream, and its number of lanes."""

    path: Path
    lanes: int

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def commits(self) -> Path:
        return self.path / "commits"

    @property
    def head(self) -> Path:
        return self.path / "head"

    def segment(self, number: int, kind: str) -> Path:
        return self.path / f"{number:06d}.{kind}"

    def segments(self) -> list[int]:
        """Return the numbers of the segments whose records are on disk."""
        return sorted(int(path.stem) for path in self.path.glob("*.steps") if path.stem.isdigit())

    def codec(self, number: int) -> str:
        """Return `zst` once a segment is compacted, else `lz4`. A compacted file appears only when it is complete."""
        return "zst" if self.segment(number, "zst").exists() else "lz4"

    def stored_bytes(self) -> int:
        total = 0
        for entry in os.scandir(self.path):
            try:
                total += entry.stat().st_size
            except FileNotFoundError:  # dropped or renamed since the folder was listed
                continue
        return total

    @staticmethod
    def make(path: Path, lanes: int) -> StreamFolder:
        """Return the folder of a stream, created if missing; its lanes never change."""
        if not 1 <= lanes <= MAX_LANES:
            raise LakeError(f"stream {path.name!r}: lanes={lanes} must be between 1 and {MAX_LANES:,}")
        path.mkdir(parents=True, exist_ok=True)
        create_file(path / "stream.json", signed_json({"lanes": lanes}))
        stream = StreamFolder.read(path)
        if stream.lanes != lanes:
            raise LakeError(f"stream {path.name!r} has {stream.lanes} lanes, not {lanes}; take another stream")
        return stream

    @staticmethod
    def read(path: Path) -> StreamFolder:
        return StreamFolder(path, int(read_signed_json(path / "stream.json")["lanes"]))


def commit_dtype(lanes: int) -> np.dtype[Any]:
    """Return the dtype of a log entry: the segment and places of an append's records and frames, and records per lane."""
    return np.dtype(
        [
            ("checksum", "<u4"),
            ("segment", "<u4"),
            ("number", "<u8"),
            ("row_begin", "<u4"),
            ("row_end", "<u4"),
            ("frame_begin", "<u4"),
            ("frame_end", "<u4"),
            ("next_episode", "<u4"),
            ("reserved", "<u4"),
            ("time", "<f8"),
            ("lane_rows", "<u4", (lanes,)),
        ]
    )


@dataclass(frozen=True)
class StreamHead:
    """The state that readers may see. Rewritten in place after every sync of the log, itself never synced.

    Within one boot of the machine it is exact, since the page cache outlives any process. After a power cut `boot`
    differs, and the log counts, which was synced before each acknowledgement.
    `generation` counts removals of records (dropped or rolled back): a reader then starts over.
    """

    boot: bytes
    generation: int
    first_segment: int
    commits: int

    LAYOUT = struct.Struct("<8s36sQQQ")

    def write(self, fd: int) -> None:
        data = self.LAYOUT.pack(b"millhead", self.boot, self.generation, self.first_segment, self.commits)
        write_all(fd, data + google_crc32c.value(data).to_bytes(4, "little"), 0)

    @staticmethod
    def read(path: Path) -> StreamHead | None:
        """Return the head; None if it is missing or torn."""
        for _ in range(3):  # a write may be in progress; the next attempt comes later
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
            body, checksum = data[: StreamHead.LAYOUT.size], data[StreamHead.LAYOUT.size :]
            if len(checksum) == 4 and google_crc32c.value(body).to_bytes(4, "little") == checksum:
                magic, boot, generation, first, commits = StreamHead.LAYOUT.unpack(body)
                if magic == b"millhead":
                    return StreamHead(boot, generation, first, commits)
        return None


def this_boot() -> bytes | None:
    """Return an identifier of this boot of the machine; None if the system has none, and then only the log counts."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:36].ljust(36)
    except OSError:
        return None


# -- locks: released when their process ends, however it ends


def lock_stream(path: Path, what: str, *, wait: bool = False) -> FileLock:
    """Take a lock of a stream; raise `LakeBusy` if another process holds it and `wait` is False."""
    try:
        return FileLock(path, wait=wait)
    except LockHeld as held:
        raise LakeBusy(
            f"{what} is held by another process (pid {held.holder.pid if held.holder else 'unknown'}); "
            f"a stream has one writer: close it, or use another stream"
        ) from None


# -- the commit log: all appends that count, in order, each with its own checksum


@dataclass(frozen=True)
class CommitLog:
    """The longest valid prefix of a commit log.

    `rebuilt`  entries whose checksum failed, rebuilt from their neighbours and the records
    `lost`     readable entries that follow unreadable ones, and are therefore not in the prefix
    `tail`     bytes after all readable entries: an append that was never acknowledged
    """

    entries: Array
    rebuilt: list[int]
    lost: int
    tail: int


def read_log(stream: StreamFolder, schema: Schema, first: int = 0) -> CommitLog:
    """Read the log from entry `first` on."""
    dtype = commit_dtype(stream.lanes)
    try:
        with open(stream.commits, "rb") as file:
            file.seek(first * dtype.itemsize)
            data = file.read()
    except FileNotFoundError:
        data = b""
    entries = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype).copy()
    good = record_checksums(entries) == entries["checksum"]
    good &= entries["number"] == np.arange(first, first + len(entries))
    readable = int(np.flatnonzero(good)[-1]) + 1 if good.any() else 0
    rebuilt: list[int] = []
    for k in np.flatnonzero(~good[:readable]).tolist():
        if not good[k + 1] or not _rebuild(entries, k, first, stream, schema):
            return CommitLog(entries[:k], rebuilt, readable - k, len(data) - readable * dtype.itemsize)
        rebuilt.append(first + k)
    return CommitLog(entries[:readable], rebuilt, 0, len(data) - readable * dtype.itemsize)


def _rebuild(entries: Array, k: int, first: int, stream: StreamFolder, schema: Schema) -> bool:
    """Rebuild entry k from the ones before and after it and the lanes of the records between; False if impossible."""
    if k == 0 and first > 0:
        return False  # the entry before is not in `entries`; the caller reads the whole log again
    after = entries[k + 1]
    ends_segment = after["row_begin"] == 0
    segment = int(after["segment"]) - int(ends_segment)
    begin, frame_begin = 0, 0
    if k > 0 and int(entries[k - 1]["segment"]) == segment:
        begin, frame_begin = int(entries[k - 1]["row_end"]), int(entries[k - 1]["frame_end"])
    try:
        records = np.fromfile(stream.segment(segment, "steps"), schema.record, offset=begin * schema.record.itemsize)
    except FileNotFoundError:
        records = np.empty(0, schema.record)  # the segment was dropped: its records are not needed
    if not ends_segment:
        records = records[: int(after["row_begin"]) - begin]
    if len(records) and not np.array_equal(record_checksums(records), records["checksum"]):
        return False
    entry: Any = np.zeros((), entries.dtype)
    entry["segment"], entry["number"] = segment, first + k
    entry["row_begin"], entry["row_end"] = begin, begin + len(records)
    entry["frame_begin"] = frame_begin
    entry["frame_end"] = records["frame_end"][-1] if len(records) else frame_begin
    entry["next_episode"], entry["time"] = after["next_episode"], after["time"]
    entry["lane_rows"] = np.bincount(records["lane"], minlength=stream.lanes)[: stream.lanes]
    entries[k] = entry
    return True


def acknowledged(stream: StreamFolder, written: int) -> tuple[int, StreamHead | None]:
    """Return how many of the `written` commits of the log are acknowledged, and the head."""
    head = StreamHead.read(stream.head)
    if head is None or head.boot != this_boot():
        return written, head
    return min(written, head.commits), head

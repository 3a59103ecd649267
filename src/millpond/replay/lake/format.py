"""Files and folders of a lake: manifest, streams, head, locks.

lake.json                       format, version, id, folder of the streams, schema, max_bytes, segment_bytes
streams/NAME/stream.json        lanes; the stream's name and its lake's id
streams/NAME/commits            the commit log: one entry per append
streams/NAME/head               the acknowledged state (generation, first segment, commits)
streams/NAME/losses.json        records that are lost, as accepted by `millpond lake repair --accept-loss`
streams/NAME/lock               held by the writer
streams/NAME/maintenance        held while files are dropped, compacted or rolled back
streams/NAME/000000.steps       step records of one segment
streams/NAME/000000.lz4         their frames, one by one; 000000.zst once compacted
streams/NAME/000000.index       flags and frame positions of a complete segment; can be rebuilt from the others

Version 2 binds every checksum to the place of its data (see `checksum`), and makes a drop or rollback durable before files are
removed, so that a missing file is never taken for a dropped one. Lakes of version 1 are read and written as before;
`lake compact` upgrades them.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from millpond.durable import DiskFile, FileLock, LockHeld, create_file, make_folder, naming, read_file
from millpond.replay.lake.checksum import Binding
from millpond.replay.schema import LakeBusy, LakeDamaged, LakeError, Schema

Array = np.ndarray[Any, Any]
FORMAT, VERSION = "millpond-lake", 2
SEGMENT_BYTES = 256 << 20
MAX_SEGMENT_BYTES = 1 << 31  # largest setting; a segment exceeds it by at most one append
MAX_APPEND_BYTES = 2**32 - 1  # positions in a segment are u4
MAX_JSON_BYTES = 16 << 20
MAX_LANES = 65_536
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
UNLIMITED = 2**64 - 1
HEAD_BYTES = 512  # a disk writes so many at once or not at all
# By whether checksums are bound to their place: magic, boot, generation, first segment, commits (, limit, sequence).
# Padded, so that the checksum covers a whole sector.
HEAD_LAYOUTS = {
    False: (struct.Struct("<8s36sQQQ"), b"millhead"),
    True: (struct.Struct("<8s36sQQQQQ424x"), b"millhed2"),
}


def signed_json(tree: dict[str, Any]) -> bytes:
    """Return JSON that contains the checksum of everything else in it."""
    checksum = google_crc32c.value(json.dumps(tree, sort_keys=True).encode())
    return json.dumps({**tree, "crc32c": checksum}, indent=2).encode() + b"\n"


def read_signed_json(path: Path) -> dict[str, Any]:
    """Return the tree that `signed_json` wrote; refuse a damaged one."""
    try:
        tree = json.loads(read_file(path, MAX_JSON_BYTES))
        checksum = tree.pop("crc32c")
        matches = google_crc32c.value(json.dumps(tree, sort_keys=True).encode()) == checksum
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = getattr(error, "strerror", None) or f"{type(error).__name__}: {str(error)[:200]}"
        raise LakeDamaged(f"{path} cannot be read ({problem}); restore it from another copy of the lake") from None
    if not matches:
        raise LakeDamaged(f"{path} does not match its checksum; restore it from another copy of the lake")
    return dict(tree)


def require_lake(folder: Path) -> None:
    """Refuse a path that is not the folder of a lake, whether or not its files are damaged."""
    if not os.path.lexists(folder / "lake.json"):
        raise LakeError(f"{folder} is not a lake: it has no lake.json")


def _whole_number(tree: dict[str, Any], key: str, least: int, most: int) -> int:
    value = tree[key]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{key}={value!r} is not a whole number between {least:,} and {most:,}")
    return value


@dataclass(frozen=True)
class Manifest:
    """Settings of the whole lake, written once when it is created. `id` is empty in lakes of version 1."""

    schema: Schema
    max_bytes: int | None = None
    segment_bytes: int = SEGMENT_BYTES
    version: int = VERSION
    id: str = ""
    streams: str = "streams"

    def to_bytes(self) -> bytes:
        tree = {
            "format": FORMAT,
            "version": self.version,
            "max_bytes": self.max_bytes,
            "segment_bytes": self.segment_bytes,
            "schema": self.schema.to_json(),
        }
        return signed_json({**tree, "id": self.id, "streams": self.streams} if self.version > 1 else tree)

    @staticmethod
    def read(folder: Path) -> Manifest:
        path = folder / "lake.json"
        require_lake(folder)
        tree = read_signed_json(path)
        if tree.get("format") != FORMAT:
            raise LakeError(f"{path} is not the manifest of a lake (format is not {FORMAT!r})")
        version = tree.get("version")
        if version not in (1, 2):
            raise LakeError(f"{path} has version {version!r:.20}; this Millpond reads versions 1 and {VERSION}")
        try:
            max_bytes = None if tree["max_bytes"] is None else _whole_number(tree, "max_bytes", 1, 1 << 62)
            segment_bytes = _whole_number(tree, "segment_bytes", 1, MAX_SEGMENT_BYTES)
            place = {}
            if version > 1:
                place = {"id": str(tree["id"]), "streams": str(tree["streams"])}
                if not re.fullmatch("[0-9a-f]{32}", place["id"]) or not re.fullmatch(NAME_PATTERN, place["streams"]):
                    raise ValueError(f"id={place['id']!r:.60} or streams={place['streams']!r:.60} is not one of a lake")
            return Manifest(Schema.from_json(tree["schema"]), max_bytes, segment_bytes, version, **place)
        except (KeyError, TypeError, ValueError, OverflowError, LakeError) as error:
            raise LakeDamaged(
                f"{path} is damaged: {str(error)[:300]}; restore it from another copy of the lake"
            ) from None

    def binding(self, stream: str) -> Binding:
        """Return what the checksums of a stream are bound to."""
        return Binding.of(self.id, stream) if self.version > 1 else Binding()

    def stream_paths(self, lake: Path) -> tuple[list[Path], list[str]]:
        """Return the folders of all streams, sorted; and what stands among them that is not a stream's folder.

        A folder without any file is not a stream yet: its writer is being opened.
        """
        try:
            entries = sorted(os.scandir(lake / self.streams), key=lambda entry: entry.name)
        except OSError as error:
            return [], [f"{lake / self.streams}: {error.strerror}"]
        paths, problems = [], []
        for entry in entries:
            path = lake / self.streams / entry.name
            if not re.fullmatch(NAME_PATTERN, entry.name) or not entry.is_dir(follow_symlinks=False):
                problems.append(f"{lake / self.streams}: {entry.name!r} is not the folder of a stream")
            elif os.path.lexists(path / "stream.json") or any(not f.name.startswith(".") for f in os.scandir(path)):
                paths.append(path)
        return paths, problems


@dataclass(frozen=True)
class StreamFolder:
    """Paths of one stream, its number of lanes, and what its checksums are bound to."""

    path: Path
    lanes: int
    binding: Binding

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def commits(self) -> Path:
        return self.path / "commits"

    @property
    def head(self) -> Path:
        return self.path / "head"

    @property
    def losses(self) -> Path:
        return self.path / "losses.json"

    def segment(self, number: int, kind: str) -> Path:
        return self.path / f"{number:06d}.{kind}"

    def segments(self) -> list[int]:
        """Return the numbers of the segments whose records are on disk."""
        return sorted(int(path.stem) for path in self.path.glob("*.steps") if is_number(path.stem))

    def codec(self, number: int) -> str:
        """Return `zst` once a segment is compacted, else `lz4`. A compacted file appears only when it is complete."""
        return "zst" if self.segment(number, "zst").exists() else "lz4"

    def stored_bytes(self) -> int:
        total = 0
        for entry in os.scandir(self.path):
            try:
                total += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:  # dropped or renamed since the folder was listed
                continue
        return total

    def file_bytes(self, number: int, kind: str) -> int:
        """Return the size of a segment's file; -1 if it is missing, or not a regular file."""
        try:
            status = os.lstat(self.segment(number, kind))
        except FileNotFoundError:
            return -1
        return status.st_size if stat.S_ISREG(status.st_mode) else -1

    @staticmethod
    def make(path: Path, lanes: int, manifest: Manifest) -> StreamFolder:
        """Return the folder of a stream, created if missing; its lanes never change."""
        if not 1 <= lanes <= MAX_LANES:
            raise LakeError(f"stream {path.name!r}: lanes={lanes} must be between 1 and {MAX_LANES:,}")
        make_folder(path)
        if not (path / "commits").exists():  # else a missing stream.json is damage
            create_file(path / "stream.json", stream_json(path.name, lanes, manifest))
        stream = StreamFolder.read(path, manifest)
        if stream.lanes != lanes:
            raise LakeError(f"stream {path.name!r} has {stream.lanes} lanes, not {lanes}; take another stream")
        return stream

    @staticmethod
    def read(path: Path, manifest: Manifest) -> StreamFolder:
        file = path / "stream.json"
        tree = read_signed_json(file)
        try:
            lanes = _whole_number(tree, "lanes", 1, MAX_LANES)
            if manifest.version > 1 and (tree["stream"], tree["lake"]) != (path.name, manifest.id):
                raise ValueError(f"it belongs to stream {tree['stream']!r:.60} of lake {tree['lake']!r:.60}")
        except (KeyError, TypeError, ValueError) as error:
            raise LakeDamaged(f"{file} does not fit: {error}; restore the stream under its own name") from None
        return StreamFolder(path, lanes, manifest.binding(path.name))


def is_number(text: str) -> bool:
    """True for the number of a segment in a file's name."""
    return text.isascii() and text.isdigit() and len(text) <= 12


def stream_json(name: str, lanes: int, manifest: Manifest) -> bytes:
    """Return the content of a stream's `stream.json`."""
    place = {"stream": name, "lake": manifest.id} if manifest.version > 1 else {}
    return signed_json({"lanes": lanes, **place})


@dataclass(frozen=True)
class StreamHead:
    """The state that readers may see, rewritten in place after every sync of the log.

    Within one boot of the machine it is exact, since the page cache outlives any process. After a power cut `boot`
    differs, and the log counts, which was synced before each acknowledgement. The head is synced itself before anything is
    removed, so it never promises more than the files hold, and a segment before `first_segment` was dropped on purpose.

    generation  counts removals of records (dropped or rolled back): a reader then starts over
    limit       set while appends are rolled back: entries of the log from it on do not count
    sequence    counts writes; they alternate between two places of the file, so that a torn one leaves the one before
    torn        not stored: the other place does not match its checksum, and may have been the newer one
    """

    boot: bytes
    generation: int
    first_segment: int
    commits: int
    limit: int = UNLIMITED
    sequence: int = 0
    torn: bool = False

    def write(self, file: DiskFile, binding: Binding, *, durable: bool = False) -> None:
        """Write it in one call, of a disk's sector; `durable`: and sync it."""
        layout, magic = HEAD_LAYOUTS[bool(binding)]
        numbers = (self.generation, self.first_segment, self.commits, self.limit, self.sequence)
        data = layout.pack(magic, self.boot, *numbers[: 5 if binding else 3])
        place = HEAD_BYTES * (self.sequence % 2) if binding else 0
        file.write(data + binding.checksum(data, "head").to_bytes(4, "little"), place)
        if durable:
            file.sync()

    @staticmethod
    def read(stream: StreamFolder) -> StreamHead | None:
        """Return the newest head; None if there is none that matches its checksum."""
        layout, magic = HEAD_LAYOUTS[bool(stream.binding)]
        for _ in range(3):  # a write may be in progress; the next attempt comes later
            try:
                data = read_file(stream.head, 2 * HEAD_BYTES)
            except OSError:
                return None
            valid: list[StreamHead] = []
            torn = False
            for place in (0, HEAD_BYTES)[: 1 + bool(stream.binding)]:
                body, checksum = data[place : place + layout.size], data[place + layout.size :][:4]
                if checksum == stream.binding.checksum(body, "head").to_bytes(4, "little") and body.startswith(magic):
                    valid.append(StreamHead(*layout.unpack(body)[1:]))
                else:
                    torn |= any(data[place : place + HEAD_BYTES])
            if valid:
                return replace(max(valid, key=lambda head: head.sequence), torn=torn)
        return None

    def acknowledged(self, written: int) -> int:
        """Return how many of the `written` commits of the log are acknowledged."""
        exact = self.boot == this_boot() and not self.torn
        return min(written, self.limit, self.commits if exact else UNLIMITED)


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
        with naming(path):
            return FileLock(path, wait=wait)
    except LockHeld as held:
        raise LakeBusy(
            f"{what} is held by another process (pid {held.holder.pid if held.holder else 'unknown'}); "
            f"a stream has one writer: close it, or use another stream"
        ) from None


# -- accepted losses


@dataclass(frozen=True)
class Loss:
    """Records of a segment that are lost, and known to be: readers leave them out without an error.

    If `begin` equals `end`, the loss is not one of records, but what `reason` says: appends of the log, or a head.
    """

    segment: int
    begin: int
    end: int
    reason: str

    def __str__(self) -> str:
        if self.begin == self.end:
            return self.reason
        return f"records {self.begin:,} to {self.end - 1:,} of segment {self.segment} ({self.reason})"


def is_accepted(losses: list[Loss], segment: int, begin: int, end: int) -> bool:
    """True if all records `begin` to `end` of a segment are accepted as lost."""
    for loss in sorted(losses, key=lambda loss: loss.begin):
        if loss.segment == segment and loss.begin <= begin < loss.end:
            begin = loss.end
    return begin >= end


def read_losses(stream: StreamFolder) -> list[Loss]:
    """Return the losses that `lake repair` wrote down; none if there is no such file."""
    if not os.path.lexists(stream.losses):
        return []
    tree = read_signed_json(stream.losses)
    try:
        if tree["stream"] != stream.name:
            raise ValueError(f"it belongs to stream {tree['stream']!r:.60}")
        losses = []
        for entry in tree["losses"]:
            segment, begin, end = (_whole_number(entry, key, 0, 2**32) for key in ("segment", "begin", "end"))
            losses.append(Loss(segment, begin, end, str(entry["reason"])))
        return losses
    except (KeyError, TypeError, ValueError) as error:
        raise LakeDamaged(f"{stream.losses} does not fit: {error}; run `millpond lake repair`") from None

"""`millpond lake repair`: make a damaged lake writable again; write down what is lost, and where.

Rebuilt without loss: entries of the log from their neighbours, indexes, `stream.json`. Everything else that is missing or does
not match its checksum is lost: with `accept_loss` its records are listed in `losses.json`, readers leave them out, and a log or
head that promises more than there is is cut to what there is. Undamaged records are never changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import google_crc32c

from millpond.durable import DiskFile, replace_file, sync_folder
from millpond.replay.lake.format import (
    MAX_LANES,
    UNLIMITED,
    Loss,
    Manifest,
    StreamFolder,
    StreamHead,
    is_accepted,
    lock_stream,
    signed_json,
    stream_json,
    this_boot,
)
from millpond.replay.lake.index import load_index, write_index
from millpond.replay.lake.log import commit_dtype, entry_checksums
from millpond.replay.lake.read import SpanReader
from millpond.replay.lake.recover import StreamState, examine
from millpond.replay.lake.stream import StreamReader
from millpond.replay.schema import LakeDamaged, LakeError, Schema
from millpond.replay.tools.info import Progress
from millpond.replay.tools.verify import StreamReport, verify_stream


@dataclass
class RepairReport:
    """What was rebuilt, and what is lost; `accepted`: the losses were written down, and the lake is usable."""

    folder: str
    accepted: bool
    rebuilt: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as text."""
        if not self.rebuilt and not self.lost:
            return [f"{self.folder}: nothing to repair"]
        state = "repaired" if self.accepted or not self.lost else "not repaired"
        lines = [f"{self.folder}: {state}"]
        lines += [f"  rebuilt: {line}" for line in self.rebuilt]
        lines += [f"  lost: {line}" for line in self.lost]
        if self.lost and not self.accepted:
            lines.append(
                f"  Nothing was changed. To go on without it: millpond lake repair {self.folder} --accept-loss; "
                "or restore the files from another copy."
            )
        return lines


def repair(folder: str | Path, *, accept_loss: bool = False, progress: Progress | None = None) -> RepairReport:
    """Repair all streams; nothing is changed if anything is lost and `accept_loss` is False."""
    folder = Path(folder)
    manifest = Manifest.read(folder)
    paths, problems = manifest.stream_paths(folder)
    if problems:
        raise LakeError(f"{problems[0]}; move it away first")
    repairs: list[_StreamRepair] = []
    try:
        repairs.extend(_StreamRepair(path, manifest, progress) for path in paths)
        report = RepairReport(str(folder), accept_loss)
        report.rebuilt = [line for each in repairs for line in each.rebuilt]
        report.lost = [line for each in repairs for line in each.lost]
        if accept_loss or not report.lost:
            for each in repairs:
                each.apply()
        return report
    finally:
        for each in repairs:
            each.close()


class _StreamRepair:
    """Finds what is wrong with one stream while holding its locks, and sets it right."""

    def __init__(self, path: Path, manifest: Manifest, progress: Progress | None) -> None:
        self.path, self.manifest, self.schema = path, manifest, manifest.schema
        self.rebuilt: list[str] = []
        self.lost: list[str] = []
        self._locks = [lock_stream(path / "lock", f"stream {path.name!r}")]
        try:
            self._locks.append(lock_stream(path / "maintenance", "maintenance", wait=True))
            self.stream = self._readable(path)
            self.state: StreamState = examine(self.stream, self.schema)
            self.found = self._verify(self.stream, self.schema, progress)
        except BaseException:
            self.close()
            raise
        self.rebuilt += [f"{self.stream.commits}: entry {k}, from the records" for k in self.state.log.rebuilt]
        today = time.strftime("on %Y-%m-%d", time.gmtime())
        lost_records = list(self._lost_records(self.found.places, today))
        self.lost += [str(damage) for damage in self.state.damage]
        self.lost += [
            f"{path.name}: records {loss.begin:,} to {loss.end - 1:,} of segment {loss.segment}"
            for loss in lost_records
        ]
        self.new_losses = [Loss(0, 0, 0, f"{damage} ({today})") for damage in self.state.damage] + lost_records
        indexes = [line for line in self.found.damage if ".index" in line]
        self.rebuilt += indexes

    def _readable(self, path: Path) -> StreamFolder:
        """Return the stream; if its `stream.json` is damaged, its lanes follow from the first entry of the log."""
        try:
            return StreamFolder.read(path, self.manifest)
        except LakeDamaged as error:
            lanes = _lanes_from_log(path, self.manifest)
            if lanes is None:
                raise LakeDamaged(f"{error}; its log does not tell the number of lanes either") from None
            self.rebuilt.append(f"{path / 'stream.json'}, from the log: {lanes} lanes")
            return StreamFolder(path, lanes, self.manifest.binding(path.name))

    @staticmethod
    def _verify(stream: StreamFolder, schema: Schema, progress: Progress | None) -> StreamReport:
        reader = SpanReader()
        try:
            return verify_stream(stream, schema, reader, progress)
        finally:
            reader.close()

    def _lost_records(self, places: list[tuple[int, int]], reason: str) -> Iterable[Loss]:
        """Merge damaged records into ranges, without those that were accepted before."""
        begin: tuple[int, int] | None = None
        fresh = [(s, row) for s, row in sorted(places) if not is_accepted(self.state.losses, s, row, row + 1)]
        for k, (segment, row) in enumerate(fresh):
            begin = begin or (segment, row)
            if k + 1 == len(fresh) or fresh[k + 1] != (segment, row + 1):
                yield Loss(segment, begin[1], row + 1, reason)
                begin = None

    def apply(self) -> None:
        """Write down the losses, then make log, head and indexes agree with what is there."""
        if not self.rebuilt and not self.lost:
            return
        stream = self.stream
        replace_file(self.path / "stream.json", stream_json(stream.name, stream.lanes, self.manifest))
        losses = self.state.losses + self.new_losses
        if self.lost:
            tree = {"stream": stream.name, "losses": [asdict(loss) for loss in losses]}
            replace_file(stream.losses, signed_json(tree))
        entries = self.state.entries.copy()
        entries["checksum"] = entry_checksums(entries, stream.binding, 0)
        replace_file(stream.commits, entries.tobytes())
        head = self.state.head
        repaired = StreamHead(
            this_boot() or b"", head.generation + 1, head.first_segment, len(entries), UNLIMITED, head.sequence + 1
        )
        file = DiskFile(stream.head, os.O_RDWR | os.O_CREAT)
        try:
            repaired.write(file, stream.binding, durable=True)
        finally:
            file.close()
        view = StreamReader(stream, self.schema).view
        for segment in view.segments[:-1]:
            if load_index(stream, segment.number, segment.codec, self.schema, segment.num_records) is None:
                stream.segment(segment.number, "index").unlink(missing_ok=True)
                if stream.file_bytes(segment.number, "steps") >= 0:
                    write_index(stream, segment.number, self.schema, segment.num_records)
        sync_folder(stream.path)

    def close(self) -> None:
        for lock in self._locks:
            lock.release()


def _lanes_from_log(path: Path, manifest: Manifest) -> int | None:
    """Return the number of lanes with which the first entry of a log matches its checksum; None if there is none."""
    binding = manifest.binding(path.name)
    try:
        file = DiskFile(path / "commits", os.O_RDONLY)
    except OSError:
        return None
    try:
        data = bytes(file.read(0, commit_dtype(MAX_LANES).itemsize))
    finally:
        file.close()
    fixed = commit_dtype(1).itemsize - 4
    if len(data) < fixed + 4:
        return None
    stored, value = int.from_bytes(data[:4], "little"), binding.checksum(data[4:fixed], "commit")
    for lanes in range(1, (len(data) - fixed) // 4 + 1):
        begin = fixed + 4 * (lanes - 1)
        value = google_crc32c.extend(value, data[begin : begin + 4])
        if value == stored:
            return lanes
    return None

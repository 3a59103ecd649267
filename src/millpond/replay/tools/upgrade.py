"""Upgrade a lake of format version 1: the same records, frames and commits, with checksums that are bound to their place.

The new streams are written into a folder beside the old ones. The lake is upgraded at the moment when its manifest, which names
the folder, is replaced; a crash before leaves the old lake, a crash after leaves old files that the next upgrade removes.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from millpond.durable import DiskFile, make_folder, replace_file, sync_folder, write_file
from millpond.replay.lake.checksum import consecutive_places, frame_kinds, record_checksums
from millpond.replay.lake.codec import CHUNK_HEADER, chunk_body_bytes, decode_chunk, encode_chunk, reseed_frames
from millpond.replay.lake.format import UNLIMITED, VERSION, Manifest, StreamFolder, StreamHead, lock_stream, this_boot
from millpond.replay.lake.index import write_index
from millpond.replay.lake.log import entry_checksums, read_log, read_steps
from millpond.replay.lake.stream import Segment, StreamReader
from millpond.replay.schema import LakeDamaged, Schema
from millpond.replay.tools.info import Progress
from millpond.replay.tools.verify import verify

Array = np.ndarray[Any, Any]
UPGRADED = f"streams-{VERSION}"  # the folder of the streams


def upgrade(folder: Path, *, progress: Progress | None = None) -> int | None:
    """Upgrade a lake to the newest format; return the version that it had, None if that was the newest."""
    manifest = Manifest.read(folder)
    if manifest.version == VERSION:
        _remove_old(folder, manifest)
        return None
    with ExitStack() as locks:
        paths = manifest.stream_paths(folder)[0]
        for path in paths:
            locks.callback(lock_stream(path / "lock", f"stream {path.name!r}").release)
        report = verify(folder, progress=progress)
        if not report.good:
            raise LakeDamaged(
                f"{folder} is damaged, and is not upgraded; `millpond lake verify {folder}` lists what is, and "
                f"`millpond lake repair {folder}` goes on without it"
            )
        shutil.rmtree(folder / UPGRADED, ignore_errors=True)
        make_folder(folder / UPGRADED)
        new = replace(manifest, version=VERSION, id=uuid.uuid4().hex, streams=UPGRADED)
        for path in paths:
            old = StreamFolder.read(path, manifest)
            _copy(old, StreamFolder.make(folder / UPGRADED / path.name, old.lanes, new), manifest.schema, progress)
        replace_file(folder / "lake.json", new.to_bytes())
    _remove_old(folder, new)
    return manifest.version


def _remove_old(folder: Path, manifest: Manifest) -> None:
    """Remove the streams of the older format, and what an upgrade that died left behind."""
    for path in folder.glob(".lake.json.*.tmp"):
        path.unlink(missing_ok=True)
    if manifest.streams != "streams" and (folder / "streams").is_dir():
        shutil.rmtree(folder / "streams")
        sync_folder(folder)


def _copy(old: StreamFolder, new: StreamFolder, schema: Schema, progress: Progress | None) -> None:
    """Write a stream again, without what a rollback left in its files."""
    view = StreamReader(old, schema).view
    for done, segment in enumerate(view.segments):
        if progress:
            progress(old.name, done, len(view.segments))
        _copy_segment(old, new, schema, segment)
        write_index(new, segment.number, schema, segment.num_records)
    head = StreamHead.read(old) or StreamHead(b"", 0, 0, 0)
    entries = read_log(old, schema).entries
    entries = entries[: head.acknowledged(len(entries))].copy()
    entries["checksum"] = entry_checksums(entries, new.binding, 0)
    write_file(new.commits, entries.tobytes())
    first = view.segments[0].number if view.segments else head.first_segment
    file = DiskFile(new.head, os.O_RDWR | os.O_CREAT)
    try:
        upgraded = StreamHead(this_boot() or b"", head.generation + 1, first, len(entries), UNLIMITED, sequence=1)
        upgraded.write(file, new.binding, durable=True)
    finally:
        file.close()
    sync_folder(new.path)


def _copy_segment(old: StreamFolder, new: StreamFolder, schema: Schema, segment: Segment) -> None:
    number, count = segment.number, segment.num_records
    records = read_steps(old, schema, number, 0, count).copy()
    places = consecutive_places(number, 0, count)
    records["checksum"] = record_checksums(records, new.binding, "steps", places)
    write_file(new.segment(number, "steps"), records.tobytes())
    if not schema.compressed:
        return
    source = DiskFile(old.segment(number, segment.codec), os.O_RDONLY)
    try:
        if segment.codec == "lz4":
            frames = np.frombuffer(source.read(0, segment.frame_bytes), np.uint8)
            fields = len(schema.compressed)
            seeds = new.binding.seeds(frame_kinds(fields))
            reseed_frames(frames, records["frame_end"].astype(np.int64), places, seeds)
            write_file(new.segment(number, "lz4"), frames.tobytes())
        else:
            write_file(new.segment(number, "zst"), b"".join(_chunks(source, old, new, schema, number)))
    finally:
        source.close()


def _chunks(source: DiskFile, old: StreamFolder, new: StreamFolder, schema: Schema, number: int) -> list[bytes]:
    """Return the chunks of a compacted segment for their new place."""
    chunks, at = [], 0
    while at < source.size:
        header = source.read(at, CHUNK_HEADER.size)
        nbytes = CHUNK_HEADER.size + chunk_body_bytes(header, schema.frame_bytes)
        data = bytes(source.read(at, nbytes))
        where = f"{source.path} at {at}"
        chunks.append(
            encode_chunk(*decode_chunk(data, schema.frame_bytes, where, old.binding, number), new.binding, number)
        )
        at += nbytes
    return chunks

"""Dropping segments from a lake that has become too large.

A lake is kept below `max_bytes` by dropping whole oldest segments, from the largest stream. Only the holder of a stream's
lock drops its segments: its writer, or any other writer while it has none. A larger stream whose writer is active drops
its own when it next begins a segment; until then the space of one segment per stream and one more is left free, so that
the limit holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from millpond.durable import DiskFile, sync_folder
from millpond.replay.lake.format import UNLIMITED, Manifest, StreamFolder, StreamHead, lock_stream
from millpond.replay.lake.recover import SUFFIXES
from millpond.replay.schema import LakeBusy, LakeDamaged


def segment_bytes(stream: StreamFolder, number: int) -> int:
    """Return the bytes of one segment on disk."""
    return sum(max(stream.file_bytes(number, kind), 0) for kind in SUFFIXES)


def drop_for_space(
    lake: Path, manifest: Manifest, own: StreamFolder, first: int, last: int, announce: Callable[[int], None]
) -> int:
    """Drop segments until the lake fits. `own` has segments `first` to `last`; return its new first."""
    found = [_readable_stream(path, manifest) for path in manifest.stream_paths(lake)[0]]
    streams = [stream for stream in found if stream is not None]
    complete = {stream.name: _complete_segments(stream) for stream in streams if stream.name != own.name}
    complete[own.name] = {number: segment_bytes(own, number) for number in range(first, last + 1)}
    # A segment is a little larger than segment_bytes: by the rest of its last append, and by its index.
    largest = max([manifest.segment_bytes, *(size for sizes in complete.values() for size in sizes.values())])
    room = (manifest.max_bytes or 0) - (len(streams) + 1) * largest
    by_name = {stream.name: stream for stream in streams}
    while sum(sum(sizes.values()) for sizes in complete.values()) > room:
        name = max(complete, key=lambda each: sum(complete[each].values()))
        if not complete[name]:
            break
        oldest = min(complete[name])
        if name == own.name:
            first = oldest + 1
            announce(first)
            _remove(own, oldest)
        elif not _drop_from_idle(by_name[name], oldest):
            break
        del complete[name][oldest]
    return first


def _readable_stream(path: Path, manifest: Manifest) -> StreamFolder | None:
    try:
        return StreamFolder.read(path, manifest)
    except LakeDamaged:  # nothing of it may be dropped; its bytes are not counted
        return None


def _complete_segments(stream: StreamFolder) -> dict[int, int]:
    """Return the sizes of all segments but the last, to which a writer may still append."""
    return {number: segment_bytes(stream, number) for number in stream.segments()[:-1]}


def _drop_from_idle(stream: StreamFolder, oldest: int) -> bool:
    """Drop a segment of a stream without an active writer; return False if it has one."""
    try:
        lock = lock_stream(stream.path / "lock", f"stream {stream.name!r}")
    except LakeBusy:
        return False
    try:
        head = StreamHead.read(stream)
        if head is None or head.limit != UNLIMITED:
            return False  # damaged, or in the middle of a rollback: its next writer decides
        file = DiskFile(stream.head, os.O_RDWR)
        try:
            dropped = replace(
                head, generation=head.generation + 1, sequence=head.sequence + 1, first_segment=oldest + 1
            )
            dropped.write(file, stream.binding, durable=True)
        finally:
            file.close()
        _remove(stream, oldest)
    finally:
        lock.release()
    return True


def _remove(stream: StreamFolder, number: int) -> None:
    """Unlink a segment's files. The head, synced before, says that it is dropped: what a crash leaves, a writer removes."""
    maintenance = lock_stream(stream.path / "maintenance", "maintenance", wait=True)
    try:
        for kind in SUFFIXES:
            stream.segment(number, kind).unlink(missing_ok=True)
        sync_folder(stream.path)
    finally:
        maintenance.release()

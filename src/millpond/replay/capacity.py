"""Keeping a lake below `max_bytes`: whole oldest segments go, from the stream that holds most.

A stream's segments are dropped only by who holds its lock: its writer, or anybody while it has none. A larger stream
whose writer is at work drops its own when it next begins a segment; until then one segment for each stream and one
more are kept free, so that the limit holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millpond.replay.durable import Lock
from millpond.replay.faults import LakeBusy
from millpond.replay.layout import Head, Manifest, StreamFolder

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
        head = Head.read(stream.head)
        if head is not None:
            with open(stream.head, "r+b") as file:
                Head(head.boot, head.generation + 1, oldest + 1, head.commits).write(file.fileno())
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

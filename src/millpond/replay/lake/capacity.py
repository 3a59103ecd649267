"""Keep a lake below `max_bytes`: drop whole oldest segments, from the largest stream.

Only the holder of a stream's lock drops its segments: its writer, or any other writer while it has none. A larger stream
whose writer is active drops its own when it next begins a segment; until then the space of one segment per stream and
one more is left free, so that the limit holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millpond.replay.errors import LakeBusy
from millpond.replay.lake.format import Manifest, StreamFolder, StreamHead
from millpond.replay.lake.lock import Lock

SUFFIXES = ("steps", "lz4", "zst", "index")


def segment_bytes(stream: StreamFolder, number: int) -> int:
    """Return the bytes of one segment on disk."""
    paths = [stream.segment(number, kind) for kind in SUFFIXES]
    return sum(path.stat().st_size for path in paths if path.exists())


def drop_for_space(
    lake: Path, manifest: Manifest, own: StreamFolder, first: int, last: int, announce: Callable[[int], None]
) -> int:
    """Drop segments until the lake fits. `own` has segments `first` to `last`; return its new first."""
    streams = [StreamFolder.read(path.parent) for path in sorted((lake / "streams").glob("*/stream.json"))]
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


def _complete_segments(stream: StreamFolder) -> dict[int, int]:
    """Return the sizes of all segments but the last, to which a writer may still append."""
    return {number: segment_bytes(stream, number) for number in stream.segments()[:-1]}


def _drop_from_idle(stream: StreamFolder, oldest: int) -> bool:
    """Drop a segment of a stream without an active writer; return False if it has one."""
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
    """Unlink a segment's files, records first: without them it no longer exists, and a writer removes its other files."""
    maintenance = Lock(stream.path / "maintenance", "maintenance", wait=True)
    try:
        for kind in SUFFIXES:
            stream.segment(number, kind).unlink(missing_ok=True)
    finally:
        maintenance.release()

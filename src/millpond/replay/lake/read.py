"""From record numbers to records and frames: find their bytes, read them, compare checksums, decode.

Neighbouring records, on disk and in the result, are one span of bytes. A few spans are first read with RWF_NOWAIT, which
returns at once: with the bytes if they are in the page cache, with EAGAIN if not. If those few are cached, the rest is
copied from a memory map, without one system call per span. If not, all spans are tried with RWF_NOWAIT, and the ones
that are not cached are read by a pool of threads, so that the disk has many requests at a time: page faults of a map come
one at a time, which makes maps slow on cold files.

Maps are only read, and only up to the length that the file had when it was mapped. Writers never truncate what they have
acknowledged, so such a page never vanishes under a reader; removed files exist as long as they are open.

n requested records, by number in the stream (NO_RECORD: zeros)
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from millpond.compiled import compiled
from millpond.durable import is_regular, open_file, read_at
from millpond.replay.lake.checksum import Position, frame_kinds, place_of, record_checksums
from millpond.replay.lake.codec import (
    ABSENT,
    CHUNK_HEADER,
    IN_CHUNK,
    IN_LZ4,
    NOWHERE,
    STATUS_TEXT,
    UNUSABLE,
    chunk_body_bytes,
    copy_bytes,
    decode_chunk,
    decompress_frames,
    preadv2,
)
from millpond.replay.lake.stream import Damage, View
from millpond.replay.schema import LakeDamaged, Schema
from millpond.replay.transitions import NO_RECORD

Array = np.ndarray[Any, Any]
NOWAIT = getattr(os, "RWF_NOWAIT", 0)  # 0 if the system cannot tell what is cached
OPEN_FILES = 128  # each takes two descriptors, one of them for its map
THREADS = 32
PROBES = 6  # spans that are read to see whether the file is in the page cache
Item = TypeVar("Item")
Result = TypeVar("Result")


# -- records and frames


DamageList = list[tuple[int, Damage]]  # each with the place of the record in the request


def read_records(view: View, schema: Schema, reader: SpanReader, numbers: Array) -> tuple[Array, DamageList]:
    """Return the records `numbers` [n], zeros for NO_RECORD; and what is damaged, by place in `numbers`."""
    records = np.zeros(len(numbers), schema.record)
    spans = record_spans(view, numbers, schema.record.itemsize)
    if len(spans.segment):
        reader.read(view.steps_files, spans, records.view(np.uint8).data)
    places = record_places(view, numbers)
    bad = record_checksums(records, view.folder.binding, "steps", places) != records["checksum"]
    if not bad.any():
        return records, []
    # The zeros of NO_RECORD do not match either, and are correct.
    wrong = np.flatnonzero(bad & (numbers != NO_RECORD)).tolist()
    return records, [(i, _damage(view, int(numbers[i]), "steps", "checksum does not match")) for i in wrong]


def _damage(view: View, number: int, kind: str, problem: str) -> Damage:
    segment = int(view.segment_of(np.array([number]))[0])
    files = view.steps_files if kind == "steps" else view.frames_files
    return Damage(str(files[segment]), number - int(view.segment_begin[segment]), problem)


def read_frames(
    view: View, schema: Schema, reader: SpanReader, numbers: Array, slots: Array, targets: dict[str, Array]
) -> DamageList:
    """Decode the frames of records `numbers` into `targets[field][slots]`, flat byte arrays; NO_RECORD gives zeros.

    Returns what is damaged, by place in `numbers`.
    """
    spans, state, begins, ends = frame_spans(view, numbers)
    source = np.empty(int(spans.nbytes.sum()), np.uint8)
    if len(source):
        reader.read(view.frames_files, spans, source.data)
    damaged: DamageList = []
    status = np.empty(len(numbers), np.uint8)
    places, seeds = record_places(view, numbers), view.folder.binding.seeds(frame_kinds(len(schema.compressed)))
    for number, field in enumerate(schema.compressed):
        if field.name in targets:
            flat = targets[field.name]
            decompress_frames(source, begins, ends, state, places, seeds, slots, flat, field.nbytes, number, status)
            bad = np.flatnonzero(status).tolist() if status.any() else []
            damaged += [(i, _damage(view, int(numbers[i]), "frames", STATUS_TEXT[status[i]])) for i in bad]
    entries = np.flatnonzero(state == IN_CHUNK) if view.compacted.any() else ()
    if len(entries):
        damaged += _read_chunks(view, schema, reader, numbers, slots, targets, np.asarray(entries))
    return damaged


def _read_chunks(
    view: View,
    schema: Schema,
    reader: SpanReader,
    numbers: Array,
    slots: Array,
    targets: dict[str, Array],
    entries: Array,
) -> DamageList:
    """Read each chunk once, however many of its records are requested, and decompress several at the same time."""
    segment = view.segment_of(numbers[entries])
    in_segment = numbers[entries] - view.segment_begin[segment]
    keys = segment << 32 | view.position[numbers[entries]].astype(np.int64)
    order = np.argsort(keys, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)

    def decode(members: Array) -> DamageList:
        file, at = view.frames_files[segment[members[0]]], int(keys[members[0]] & 0xFFFFFFFF)
        number = int(view.segment_numbers[segment[members[0]]])
        try:
            chunk = _read_chunk(reader, file, at, schema.frame_bytes)
            held, frames = decode_chunk(chunk, schema.frame_bytes, f"{file} at {at}", view.folder.binding, number)
            within = np.minimum(np.searchsorted(held, in_segment[members]), len(held) - 1)
            if not np.array_equal(held[within], in_segment[members]):
                raise LakeDamaged(f"{file} at {at}: the chunk does not hold the records of its segment's index")
        except LakeDamaged as error:
            return [(int(entries[m]), _damage(view, int(numbers[entries[m]]), "frames", str(error))) for m in members]
        begin = 0
        for field in schema.compressed:
            if field.name in targets:
                flat = targets[field.name].reshape(-1, field.nbytes)
                flat[slots[entries[members]]] = frames[within, begin : begin + field.nbytes]
            begin += field.nbytes
        return []

    return [damage for damaged in reader.each(decode, groups) for damage in damaged]


def _read_chunk(reader: SpanReader, path: Path, at: int, frame_bytes: int) -> bytes:
    """Return the bytes of the chunk at a position; fewer if the file is cut off or its numbers cannot be those of a chunk."""
    if at == NOWHERE:
        raise LakeDamaged(f"{path}: no chunk holds the record")
    file = reader.open(path)
    header = bytearray(CHUNK_HEADER.size)
    if read_at(file.fd, memoryview(header), at) < CHUNK_HEADER.size:
        raise LakeDamaged(f"{path} at {at}: the chunk is cut off")
    body = bytearray(chunk_body_bytes(header, frame_bytes))
    nbytes = read_at(file.fd, memoryview(body), at + CHUNK_HEADER.size)
    return bytes(header + body[:nbytes])


# -- places: segment and row of a record, which its checksums are bound to


@compiled
def _segment_of(number: Any, segment_begin: Any) -> Any:
    low, high = 0, len(segment_begin)
    while high - low > 1:
        middle = (low + high) // 2
        if segment_begin[middle] <= number:
            low = middle
        else:
            high = middle
    return low


@compiled
def _record_places(numbers: Any, segment_begin: Any, segment_numbers: Any, out: Any) -> None:
    for i in range(len(numbers)):
        if numbers[i] != NO_RECORD:
            holds = _segment_of(numbers[i], segment_begin)
            out[i] = place_of(segment_numbers[holds], numbers[i] - segment_begin[holds])


def record_places(view: View, numbers: Array) -> Array:
    """Return segment and row of records `numbers` [n] as u8[n]; empty if checksums cover bytes alone."""
    if not view.folder.binding:
        return np.empty(0, np.uint64)
    places = np.zeros(len(numbers), np.uint64)
    _record_places(numbers, view.segment_begin, view.segment_numbers, places)
    return places


# -- spans of bytes


@dataclass(frozen=True)
class Spans:
    """Span i: `nbytes[i]` bytes from `offset[i]` of segment `segment[i]` go to `place[i]` of a buffer."""

    segment: Array
    offset: Array
    nbytes: Array
    place: Array

    @staticmethod
    def empty(count: int) -> Spans:
        return Spans(*(np.empty(count, np.int64) for _ in range(4)))

    def first(self, count: int) -> Spans:
        return Spans(self.segment[:count], self.offset[:count], self.nbytes[:count], self.place[:count])


@compiled
def _record_spans(
    numbers: Any, width: Any, segment_begin: Any, segment: Any, offset: Any, nbytes: Any, place: Any
) -> Any:
    count, last = 0, NO_RECORD
    for i in range(len(numbers)):
        number = numbers[i]
        if number != NO_RECORD:
            holds = _segment_of(number, segment_begin)
            if last != NO_RECORD and number == last + 1 and holds == segment[count - 1]:
                nbytes[count - 1] += width
            else:
                segment[count], offset[count] = holds, (number - segment_begin[holds]) * width
                nbytes[count], place[count] = width, i * width
                count += 1
        last = number
    return count


def record_spans(view: View, numbers: Array, width: int) -> Spans:
    """Return the spans of records `numbers` [n]: the i-th goes to i * width, NO_RECORD is left out."""
    spans = Spans.empty(len(numbers))
    arrays = (spans.segment, spans.offset, spans.nbytes, spans.place)
    return spans.first(_record_spans(numbers, width, view.segment_begin, *arrays))


@compiled
def _frame_spans(
    numbers: Any,
    position: Any,
    segment_begin: Any,
    frame_bytes: Any,
    compacted: Any,
    state: Any,
    begins: Any,
    ends: Any,
    segment: Any,
    offset: Any,
    nbytes: Any,
    place: Any,
) -> Any:
    count, total, last = 0, 0, NO_RECORD
    for i in range(len(numbers)):
        number = numbers[i]
        begins[i] = ends[i] = 0
        if number == NO_RECORD:
            state[i] = ABSENT
        else:
            holds = _segment_of(number, segment_begin)
            begin = 0 if number == segment_begin[holds] else np.int64(position[number - 1])
            end = np.int64(position[number])
            if compacted[holds]:
                state[i] = IN_CHUNK
            elif begin >= end or end > frame_bytes[holds]:  # from a damaged record
                state[i] = UNUSABLE
            else:
                state[i] = IN_LZ4
                if last == NO_RECORD or number != last + 1 or holds != segment[count - 1]:
                    segment[count], offset[count], nbytes[count], place[count] = holds, begin, 0, total
                    count += 1
                begins[i], ends[i] = total, total + (end - begin)
                nbytes[count - 1] += end - begin
                total = ends[i]
        last = number if state[i] == IN_LZ4 else NO_RECORD
    return count


def frame_spans(view: View, numbers: Array) -> tuple[Spans, Array, Array, Array]:
    """Return the spans of the frames of records `numbers` [n], packed; and each record's state, begin and end in the buffer."""
    spans = Spans.empty(len(numbers))
    state = np.empty(len(numbers), np.uint8)
    begins, ends = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
    arrays = (spans.segment, spans.offset, spans.nbytes, spans.place)
    tables = (view.position, view.segment_begin, view.frame_bytes, view.compacted)
    return spans.first(_frame_spans(numbers, *tables, state, begins, ends, *arrays)), state, begins, ends


# -- reading spans


class OpenFile:
    """A file that stays open and mapped as long as it is referenced, even after it is unlinked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1
        self.fd = open_file(path, os.O_RDONLY)
        self.mapped_bytes = os.fstat(self.fd).st_size
        self.address = 0
        if self.mapped_bytes:
            self._map = np.frombuffer(mmap.mmap(self.fd, self.mapped_bytes, access=mmap.ACCESS_READ), np.uint8)
            self.address = self._map.ctypes.data

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class SpanReader:
    """Reads spans of files into one buffer. Thread-safe."""

    def __init__(self, threads: int = THREADS) -> None:
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
        self._tables: dict[int, tuple[Sequence[Path], list[OpenFile], Array]] = {}
        self._lock = threading.Lock()
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def open(self, path: Path) -> OpenFile:
        """Return the open file of a path; the least recently used ones are closed."""
        with self._lock:
            file = self._files.pop(path, None) or OpenFile(path)
            self._files[path] = file
            while len(self._files) > OPEN_FILES:
                self._files.popitem(last=False)
            return file

    def forget(self) -> None:
        """Close all files, so that the space of unlinked ones is freed."""
        with self._lock:
            self._files.clear()
            self._tables.clear()

    def read(self, paths: Sequence[Path], spans: Spans, buffer: memoryview) -> None:
        """Read all spans of the segments' files `paths` into the buffer."""
        files, table, local = self._open_all(paths, spans.segment)
        late = np.ones(len(local), bool)
        if NOWAIT:
            target = np.frombuffer(buffer, np.uint8)
            _read_cached(table, local, spans.offset, spans.nbytes, spans.place, target, late)
        if late.any():
            waiting = [
                (files[local[i]], int(spans.offset[i]), buffer[spans.place[i] : spans.place[i] + spans.nbytes[i]])
                for i in np.flatnonzero(late).tolist()
            ]
            list(self.each(_read_whole, waiting))

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Call `work` for all items, in the threads of the pool."""
        return self._workers().map(work, items)

    def _open_all(self, paths: Sequence[Path], segment: Array) -> tuple[list[OpenFile], Array, Array]:
        """Return the files, their table (descriptor, address and length of the map), and the file of each span."""
        cached = self._tables.get(id(paths))
        if cached is not None and cached[0] is paths:
            return cached[1], cached[2], segment
        few = sum(len(table[1]) for table in self._tables.values()) + len(paths) <= OPEN_FILES
        few = few and all(
            is_regular(path) for path in paths
        )  # a missing one is damage, and none of its records are read
        used, local = (range(len(paths)), segment) if few else np.unique(segment, return_inverse=True)
        files = [self.open(paths[number]) for number in used]
        table = np.array([(file.fd, file.address, file.mapped_bytes) for file in files], np.int64)
        if few:  # all may stay open: cache the table for the next read
            self._tables[id(paths)] = (paths, files, table)
        return files, table, local

    def _workers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="lake-read")
            return self._pool

    def close(self) -> None:
        self.forget()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


@compiled
def _read_cached(table: Any, which: Any, offset: Any, nbytes: Any, place: Any, buffer: Any, late: Any) -> None:
    """Read every span that is in the page cache, without the GIL; `late` marks those that are not, or not completely.

    table [files, 3]: file descriptor, address of the map, bytes mapped    which [n]: the file of each span
    """
    vector = np.empty(2, np.uintp)  # struct iovec: address, length
    base = Position(buffer.ctypes.data)
    stride = max(1, len(offset) // PROBES)
    cached = True
    for i in range(0, len(offset), stride):
        vector[0], vector[1] = base + Position(place[i]), Position(nbytes[i])
        late[i] = preadv2(np.int32(table[which[i], 0]), vector.ctypes.data, 1, offset[i], NOWAIT) != nbytes[i]
        cached = cached and not late[i]
    # First touch both ends of every span, so that their cache misses overlap; then copy.
    for whole in (False, True):
        for i in range(len(offset)):
            if i % stride == 0:
                continue
            target, count = base + Position(place[i]), Position(nbytes[i])
            if cached and table[which[i], 1] != 0 and offset[i] + nbytes[i] <= table[which[i], 2]:
                source = Position(table[which[i], 1] + offset[i])
                late[i] = False
                if whole:
                    copy_bytes(target, source, count)
                else:
                    copy_bytes(target, source, Position(1))
                    copy_bytes(target, source + count - Position(1), Position(1))
            elif whole:
                vector[0], vector[1] = target, count
                late[i] = preadv2(np.int32(table[which[i], 0]), vector.ctypes.data, 1, offset[i], NOWAIT) != nbytes[i]


def _read_whole(span: tuple[OpenFile, int, memoryview]) -> None:
    file, start, target = span
    while target:
        count = read_at(file.fd, target, start)
        if count == 0:  # the file is shorter than its commits require: zeros match no checksum, so this is detected
            target[:] = bytes(len(target))
            return
        target, start = target[count:], start + count

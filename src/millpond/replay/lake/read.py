"""From row numbers to records and frames: which bytes to read, read them, check them, decode them.

# n rows asked for (NO_ROW: zeros)
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
from millpond.durable import open_file, read_at
from millpond.replay.errors import LakeDamaged
from millpond.replay.lake.codec import (
    CHUNK_HEADER,
    CHUNKED,
    HERE,
    NOTHING,
    NOWHERE,
    UNUSABLE,
    WORDS_FOR,
    decode_chunk,
    decode_rows,
    row_checksums,
)
from millpond.replay.lake.intrinsics import Position, copy_bytes, preadv2
from millpond.replay.lake.stream import View
from millpond.replay.schema import Schema
from millpond.replay.walk import NO_ROW

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Damage:
    """Something on disk that does not match its checksum."""

    file: str
    row: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}: {self.what}"


def read_records(view: View, schema: Schema, reader: SpanReader, rows: Array) -> tuple[Array, list[tuple[int, Damage]]]:
    """Records of `rows` [n], zeros for NO_ROW; and what is damaged, by place in `rows`."""
    records = np.zeros(len(rows), schema.record)
    spans = record_spans(view, rows, schema.record.itemsize)
    if len(spans.segment):
        reader.read(view.steps_files, spans, records.view(np.uint8).data)
    bad = row_checksums(records) != records["checksum"]
    if not bad.any():
        return records, []
    # Zeros of NO_ROW do not match either, and are right all the same.
    places = np.flatnonzero(bad & (rows != NO_ROW)).tolist()
    return records, [(i, _damage(view, int(rows[i]), "steps", "checksum does not match")) for i in places]


def _damage(view: View, row: int, kind: str, what: str) -> Damage:
    segment = int(view.segment_of(np.array([row]))[0])
    files = view.steps_files if kind == "steps" else view.frames_files
    return Damage(str(files[segment]), row - int(view.segment_begin[segment]), what)


def read_frames(
    view: View, schema: Schema, reader: SpanReader, rows: Array, slots: Array, targets: dict[str, Array]
) -> list[tuple[int, Damage]]:
    """Decode the frames of `rows` into `targets[field][slots]`, flat byte arrays; NO_ROW gives zeros.

    Returns what is damaged, by place in `rows`.
    """
    spans, state, begins, ends = frame_spans(view, rows)
    source = np.empty(int(spans.nbytes.sum()), np.uint8)
    if len(source):
        reader.read(view.frames_files, spans, source.data)
    damaged: list[tuple[int, Damage]] = []
    status = np.empty(len(rows), np.uint8)
    for number, field in enumerate(schema.compressed):
        if field.name in targets:
            flat = targets[field.name]
            decode_rows(source, begins, ends, state, slots, flat, field.nbytes, number, status)
            bad = np.flatnonzero(status).tolist() if status.any() else []
            damaged += [(i, _damage(view, int(rows[i]), "frames", WORDS_FOR[status[i]])) for i in bad]
    entries = np.flatnonzero(state == CHUNKED) if view.compacted.any() else ()
    if len(entries):
        damaged += _read_zst(view, schema, reader, rows, slots, targets, np.asarray(entries))
    return damaged


def _read_zst(
    view: View, schema: Schema, reader: SpanReader, rows: Array, slots: Array, targets: dict[str, Array], entries: Array
) -> list[tuple[int, Damage]]:
    """Each chunk is read and decompressed once, however many of its rows are wanted, several at the same time."""
    row_bytes = sum(field.nbytes for field in schema.compressed)
    segment = view.segment_of(rows[entries])
    wanted = rows[entries] - view.segment_begin[segment]
    keys = segment << 32 | view.position[rows[entries]].astype(np.int64)
    order = np.argsort(keys, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)

    def place(members: Array) -> list[tuple[int, Damage]]:
        file, at = view.frames_files[segment[members[0]]], int(keys[members[0]] & 0xFFFFFFFF)
        try:
            held, frames = decode_chunk(_read_chunk(reader, file, at), row_bytes, f"{file} at {at}")
            within = np.minimum(np.searchsorted(held, wanted[members]), len(held) - 1)
            if not np.array_equal(held[within], wanted[members]):
                raise LakeDamaged(f"{file} at {at}: the chunk does not hold the rows that it should")
        except LakeDamaged as error:
            return [(int(entries[m]), _damage(view, int(rows[entries[m]]), "frames", str(error))) for m in members]
        begin = 0
        for field in schema.compressed:
            if field.name in targets:
                flat = targets[field.name].reshape(-1, field.nbytes)
                flat[slots[entries[members]]] = frames[within, begin : begin + field.nbytes]
            begin += field.nbytes
        return []

    return [found for damage in reader.each(place, groups) for found in damage]


def _read_chunk(reader: SpanReader, path: Any, at: int) -> bytes:
    """The bytes of the chunk at a position."""
    if at == NOWHERE:
        raise LakeDamaged(f"{path}: no chunk holds the row")
    file = reader.open(path)
    header = bytearray(CHUNK_HEADER.size)
    if read_at(file.fd, memoryview(header), at) < CHUNK_HEADER.size:
        raise LakeDamaged(f"{path} at {at}: the chunk is cut off")
    _, length, rows, _ = CHUNK_HEADER.unpack(header)
    rest = min(4 * rows + length, os.fstat(file.fd).st_size - at - CHUNK_HEADER.size)  # the numbers may be damaged
    body = bytearray(max(rest, 0))
    count = read_at(file.fd, memoryview(body), at + CHUNK_HEADER.size)
    return bytes(header + body[:count])


# -- Which bytes to read for which rows. RecordView that follow one another, on disk and in the result, are one span.


@dataclass(frozen=True)
class Spans:
    """Span i: `nbytes[i]` bytes from `offset[i]` of segment `segment[i]` go to `place[i]` of a buffer."""

    segment: Array
    offset: Array
    nbytes: Array
    place: Array

    @staticmethod
    def room(count: int) -> Spans:
        return Spans(*(np.empty(count, np.int64) for _ in range(4)))

    def first(self, count: int) -> Spans:
        return Spans(self.segment[:count], self.offset[:count], self.nbytes[:count], self.place[:count])


@compiled
def _segment_of(row: Any, segment_begin: Any) -> Any:
    low, high = 0, len(segment_begin)
    while high - low > 1:
        middle = (low + high) // 2
        if segment_begin[middle] <= row:
            low = middle
        else:
            high = middle
    return low


@compiled
def _record_spans(rows: Any, width: Any, segment_begin: Any, segment: Any, offset: Any, nbytes: Any, place: Any) -> Any:
    count, last = 0, NO_ROW
    for i in range(len(rows)):
        row = rows[i]
        if row != NO_ROW:
            holds = _segment_of(row, segment_begin)
            if last != NO_ROW and row == last + 1 and holds == segment[count - 1]:
                nbytes[count - 1] += width
            else:
                segment[count], offset[count] = holds, (row - segment_begin[holds]) * width
                nbytes[count], place[count] = width, i * width
                count += 1
        last = row
    return count


def record_spans(view: View, rows: Array, width: int) -> Spans:
    """The records of `rows` [n]: record i goes to i * width, those of NO_ROW are left out."""
    spans = Spans.room(len(rows))
    arrays = (spans.segment, spans.offset, spans.nbytes, spans.place)
    return spans.first(_record_spans(rows, width, view.segment_begin, *arrays))


@compiled
def _frame_spans(
    rows: Any,
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
    count, total, last = 0, 0, NO_ROW
    for i in range(len(rows)):
        row = rows[i]
        begins[i] = ends[i] = 0
        if row == NO_ROW:
            state[i] = NOTHING
        else:
            holds = _segment_of(row, segment_begin)
            begin = 0 if row == segment_begin[holds] else np.int64(position[row - 1])
            end = np.int64(position[row])
            if compacted[holds]:
                state[i] = CHUNKED
            elif begin >= end or end > frame_bytes[holds]:  # what a damaged record says may be anything
                state[i] = UNUSABLE
            else:
                state[i] = HERE
                if last == NO_ROW or row != last + 1 or holds != segment[count - 1]:
                    segment[count], offset[count], nbytes[count], place[count] = holds, begin, 0, total
                    count += 1
                begins[i], ends[i] = total, total + (end - begin)
                nbytes[count - 1] += end - begin
                total = ends[i]
        last = row if state[i] == HERE else NO_ROW
    return count


def frame_spans(view: View, rows: Array) -> tuple[Spans, Array, Array, Array]:
    """The frames of `rows` [n], packed; each row's state, and where its bytes begin and end in the buffer."""
    spans = Spans.room(len(rows))
    state = np.empty(len(rows), np.uint8)
    begins, ends = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    arrays = (spans.segment, spans.offset, spans.nbytes, spans.place)
    tables = (view.position, view.segment_begin, view.frame_bytes, view.compacted)
    return spans.first(_frame_spans(rows, *tables, state, begins, ends, *arrays)), state, begins, ends


# -- Many small reads at once.
#
# A few spans are first asked for with RWF_NOWAIT, which returns at once: with the bytes where they are in the page cache,
# with EAGAIN where they are not. If those few are all there, the rest is copied from a memory map, without a call of the
# system for each. If not, all are asked for so, and what is not cached goes to a pool of threads, so that the disk has
# many requests to work on: page faults of a map come one at a time, which is what makes maps slow on cold files.
#
# Maps are only read, and only where the file was long enough when it was mapped. Writers never cut off what they have
# acknowledged, so such a page never goes away under a reader; removed files stay as long as they are open.

NOWAIT = getattr(os, "RWF_NOWAIT", 0)  # 0 where the system cannot say what is cached
OPEN_FILES = 128  # each takes two descriptors, one of them held by its map
THREADS = 32
PROBES = 6
Item = TypeVar("Item")
Result = TypeVar("Result")


class OpenFile:
    """A file that is open and mapped as long as anybody refers to it, also when it was removed meanwhile."""

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
    """Reads spans of files into one buffer. Safe to use from several threads."""

    def __init__(self, threads: int = THREADS) -> None:
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
        self._tables: dict[int, tuple[Sequence[Path], list[OpenFile], Array]] = {}
        self._lock = threading.Lock()
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def open(self, path: Path) -> OpenFile:
        """The open file of a path; the least recently used ones are closed."""
        with self._lock:
            found = self._files.pop(path, None) or OpenFile(path)
            self._files[path] = found
            while len(self._files) > OPEN_FILES:
                self._files.popitem(last=False)
            return found

    def forget(self) -> None:
        """Close all files, so that removed ones give up their space."""
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
        """Do `work` for all items, in the threads of the pool."""
        return self._workers().map(work, items)

    def _open_all(self, paths: Sequence[Path], segment: Array) -> tuple[list[OpenFile], Array, Array]:
        """Files, their table (descriptor, address and length of the map), and which of them each span is in."""
        kept = self._tables.get(id(paths))
        if kept is not None and kept[0] is paths:
            return kept[1], kept[2], segment
        few = sum(len(table[1]) for table in self._tables.values()) + len(paths) <= OPEN_FILES
        used, local = (range(len(paths)), segment) if few else np.unique(segment, return_inverse=True)
        files = [self.open(paths[number]) for number in used]
        table = np.array([(file.fd, file.address, file.mapped_bytes) for file in files], np.int64)
        if few:  # they may all stay open: the next read need not look them up
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
    """Read every span that is in the page cache, without the GIL; `late` says which are not, or not whole.

    table [files, 3]: file descriptor, address of the map, bytes that are mapped    which [n]: the file of each span
    """
    vector = np.empty(2, np.uintp)  # struct iovec: address, length
    base = Position(buffer.ctypes.data)
    stride = max(1, len(offset) // PROBES)
    cached = True
    for i in range(0, len(offset), stride):
        vector[0], vector[1] = base + Position(place[i]), Position(nbytes[i])
        late[i] = preadv2(np.int32(table[which[i], 0]), vector.ctypes.data, 1, offset[i], NOWAIT) != nbytes[i]
        cached = cached and not late[i]
    # The ends of every span first: memory then works on all of them at once, and the copies find them in the caches.
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
        if count == 0:  # the file ends before what its commits say: zeros match no checksum, so this is found
            target[:] = bytes(len(target))
            return
        target, start = target[count:], start + count

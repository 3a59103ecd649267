"""Many small reads at once.

A few spans are first asked for with RWF_NOWAIT, which returns at once: with the bytes where they are in the page cache,
with EAGAIN where they are not. If those few are all there, the rest is copied from a memory map, without a call of the
system for each. If not, all are asked for so, and what is not cached goes to a pool of threads, so that the disk has
many requests to work on: page faults of a map come one at a time, which is what makes maps slow on cold files.

Maps are only read, and only where the file was long enough when it was mapped. Writers never cut off what they have
acknowledged, so such a page never goes away under a reader; removed files stay as long as they are open.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from millpond.compiled import compiled
from millpond.durable import open_file, read_at
from millpond.replay.memory import copy_bytes, preadv2
from millpond.replay.position import Position
from millpond.replay.spans import Spans

Array = np.ndarray[Any, Any]
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

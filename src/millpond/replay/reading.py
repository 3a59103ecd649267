"""Many small reads at once.

Every span is first asked for with RWF_NOWAIT, which returns at once: with the bytes where they are in the page cache,
with EAGAIN where they are not. The latter go to a pool of threads, so that the disk has many requests to work on
(page faults of a memory map come one at a time, which is what makes those slow). Warm reads never change threads.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from millpond.replay.compiled import compiled
from millpond.replay.memory import preadv2

Array = np.ndarray[Any, Any]
NOWAIT = getattr(os, "RWF_NOWAIT", 0)  # 0 where the system cannot say what is cached
HAS_PREADV = hasattr(os, "preadv")
OPEN_FILES = 256
THREADS = 32


class OpenFile:
    """A file that is open as long as anybody refers to it, also when it was removed meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class SpanReader:
    """Reads spans of files into one buffer. Safe to use from several threads."""

    def __init__(self, threads: int = THREADS) -> None:
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
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

    def read(
        self, paths: Sequence[Path], which: Array, offset: Array, nbytes: Array, place: Array, buffer: memoryview
    ) -> None:
        """Span i: `nbytes[i]` bytes of file `paths[which[i]]` from `offset[i]` on go to `buffer[place[i]:]`."""
        used, local = np.unique(which, return_inverse=True)
        files = [self.open(paths[number]) for number in used.tolist()]
        late = np.arange(len(which))
        if NOWAIT:
            fds = np.array([file.fd for file in files], np.int32)[local]
            late = late[_read_cached(fds, offset, nbytes, place, np.frombuffer(buffer, np.uint8))]
        if len(late):
            spans = [
                (files[local[i]], int(offset[i]), buffer[int(place[i]) : int(place[i] + nbytes[i])])
                for i in late.tolist()
            ]
            for _ in self._workers().map(_read_whole, spans):
                pass

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
def _read_cached(fds: Any, offset: Any, nbytes: Any, place: Any, buffer: Any) -> Any:
    """Read every span that is in the page cache, without the GIL; returns which are not, or not whole."""
    late = np.zeros(len(fds), np.bool_)
    vector = np.empty(2, np.uintp)  # struct iovec: address, length
    for i in range(len(fds)):
        vector[0], vector[1] = buffer.ctypes.data + place[i], nbytes[i]
        late[i] = preadv2(fds[i], vector.ctypes.data, 1, offset[i], NOWAIT) != nbytes[i]
    return late


def _read_whole(span: tuple[OpenFile, int, memoryview]) -> None:
    file, start, target = span
    while target:
        if HAS_PREADV:
            count = os.preadv(file.fd, (target,), start)
        else:
            data = os.pread(file.fd, len(target), start)
            count = len(data)
            target[:count] = data
        if count == 0:  # the file ends before what its commits say: zeros match no checksum, so this is found
            target[:] = bytes(len(target))
            return
        target, start = target[count:], start + count

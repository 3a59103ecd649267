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

Array = np.ndarray[Any, Any]
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
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
        used = np.unique(which).tolist()
        files = {number: self.open(paths[number]) for number in used}
        fds = {number: file.fd for number, file in files.items()}
        late = []
        for number, start, count, at in zip(
            which.tolist(), offset.tolist(), nbytes.tolist(), place.tolist(), strict=True
        ):
            target = buffer[at : at + count]
            try:
                if not NOWAIT or os.preadv(fds[number], (target,), start, NOWAIT) != count:
                    late.append((files[number], start, target))
            except OSError:  # not in the page cache, or a file system that cannot tell
                late.append((files[number], start, target))
        if late:
            for _ in self._workers().map(_read_whole, late):
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

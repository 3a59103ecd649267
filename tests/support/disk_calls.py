"""Every call that changes files below one folder, intercepted at the functions of `os`.

with DiskCalls(folder, faults=faults, trace=trace):
    ...                     # each changing call goes to `faults`, which makes it, fails it, or kills the process
                            # what was really changed goes to `trace`

`pathlib` and `shutil` call `os`. Files that Python code opens for writing with `open` are routed through `os.write`.
Writes in compiled code escape; `tests.support.power_loss` detects them, since its simulated disk then differs.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

DATA = ("write", "pwrite")
SYNCS = ("fsync", "fdatasync")
BY_DESCRIPTOR = (*DATA, *SYNCS, "ftruncate", "close")
BY_PATH = ("truncate", "unlink", "remove", "mkdir", "rmdir")
BY_TWO_PATHS = ("rename", "replace", "link")
WRITABLE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Faults(Protocol):
    """Decides what becomes of each call."""

    def make(self, call: DiskCall) -> Any: ...


class Trace(Protocol):
    """Follows what was changed. Calls are announced before they are made, and again with their result."""

    def before(self, call: DiskCall) -> Any: ...

    def made(self, call: DiskCall, noted: Any, result: Any) -> None: ...

    def sync_failed(self, call: DiskCall) -> None: ...


@dataclass
class DiskCall:
    """One call on files below the folder. `changes` is False for files and folders that are opened to be read.

    `paths` are absolute; the file's own as of when it was opened, for calls on a descriptor.
    """

    name: str
    paths: tuple[str, ...]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    changes: bool
    descriptor: int | None = None
    flags: int = 0
    original: Callable[..., Any] = field(repr=False, default=os.open)
    trace: Trace | None = field(repr=False, default=None)

    @property
    def nbytes(self) -> int:
        """Bytes of a write; 0 for other calls."""
        return memoryview(self.arguments[1]).nbytes if self.name in DATA else 0

    @property
    def takes_space(self) -> bool:
        """True for calls that a full disk refuses."""
        return self.name in (*DATA, "mkdir", "link") or (self.name == "open" and bool(self.flags & os.O_CREAT))

    def make(self, nbytes: int | None = None) -> Any:
        """Make the call; with `nbytes`, write only so many of the bytes."""
        arguments = self.arguments
        if nbytes is not None:
            arguments = (arguments[0], memoryview(arguments[1]).cast("B")[:nbytes], *arguments[2:])
        noted = self.trace.before(self) if self.trace else None
        result = self.original(*arguments, **self.keywords)
        if self.trace:
            self.trace.made(self, noted, result)
        return result

    def fail(self, number: int) -> OSError:
        """Return the error of a call that is not made. A descriptor is closed even if closing it reports an error."""
        if self.name == "close":
            self.make()
        if self.name in SYNCS and self.trace:
            self.trace.sync_failed(self)
        return OSError(number, os.strerror(number), self.paths[0])

    def __str__(self) -> str:
        return f"{self.name} {' '.join(os.path.basename(path) for path in self.paths)}"


class DiskCalls:
    """Patches `os`, and `open` for writing, while the `with` block runs."""

    def __init__(self, folder: Path, *, faults: Faults | None = None, trace: Trace | None = None) -> None:
        self.folder = os.path.abspath(folder)
        self.faults, self._trace = faults, trace
        self._originals: dict[str, Callable[..., Any]] = {}
        self._open_files: dict[int, tuple[str, bool]] = {}  # descriptor: path, writable

    def __enter__(self) -> DiskCalls:
        for name in ("open", *BY_DESCRIPTOR, *BY_PATH, *BY_TWO_PATHS):
            if hasattr(os, name):
                self._originals[name] = getattr(os, name)
                setattr(os, name, self._patched(name))
        self._plain_open = builtins.open
        builtins.open = io.open = self._routed_open  # type: ignore[assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, original in self._originals.items():
            setattr(os, name, original)
        builtins.open = io.open = self._plain_open

    def close_all(self) -> None:
        """Close the descriptors that are still open, as the death of a process does, and so release its locks."""
        for descriptor in list(self._open_files):
            del self._open_files[descriptor]
            self._originals["close"](descriptor)

    def _patched(self, name: str) -> Callable[..., Any]:
        if name == "open":
            return self._open
        original = self._originals[name]

        def on_descriptor(descriptor: int, *arguments: Any, **keywords: Any) -> Any:
            if descriptor not in self._open_files:
                return original(descriptor, *arguments, **keywords)
            path, writable = self._open_files[descriptor]
            if name == "close":
                del self._open_files[descriptor]
            changes = name != "close" or writable
            return self._make(name, (path,), (descriptor, *arguments), keywords, changes, descriptor)

        def on_paths(*arguments: Any, **keywords: Any) -> Any:
            count = 2 if name in BY_TWO_PATHS else 1
            folders = [keywords.get(key) for key in (("src_dir_fd", "dst_dir_fd") if count == 2 else ("dir_fd",) * 2)]
            paths = tuple(self._absolute(arguments[k], folders[k]) for k in range(count))
            if not any(map(self._is_inside, paths)):
                return original(*arguments, **keywords)
            return self._make(name, paths, arguments, keywords, True)

        return on_descriptor if name in BY_DESCRIPTOR else on_paths

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        absolute = self._absolute(path, dir_fd)
        if not self._is_inside(absolute):
            return int(self._originals["open"](path, flags, mode, dir_fd=dir_fd))
        changes = bool(flags & WRITABLE)
        descriptor = self._make("open", (absolute,), (path, flags, mode), {"dir_fd": dir_fd}, changes, flags=flags)
        self._open_files[descriptor] = absolute, changes
        return int(descriptor)

    def _make(
        self,
        name: str,
        paths: tuple[str, ...],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        changes: bool,
        descriptor: int | None = None,
        flags: int = 0,
    ) -> Any:
        original = self._originals[name]
        call = DiskCall(name, paths, arguments, keywords, changes, descriptor, flags, original, self._trace)
        return self.faults.make(call) if self.faults else call.make()

    def _absolute(self, path: Any, folder: int | None) -> str:
        if isinstance(path, int):  # a descriptor, as in os.truncate(3, 0)
            return self._open_files.get(path, ("", False))[0]
        text = os.fsdecode(path)
        if folder is not None and folder in self._open_files:
            return os.path.join(self._open_files[folder][0], text)
        return os.path.abspath(text)

    def _is_inside(self, path: str) -> bool:
        return path == self.folder or path.startswith(self.folder + os.sep)

    def _routed_open(self, file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        writing = any(letter in mode for letter in "wax+")
        if isinstance(file, int) or not writing or not self._is_inside(self._absolute(file, None)):
            return self._plain_open(file, mode, *arguments, **keywords)
        raw = RoutedFile(file, mode)
        if "b" in mode:
            return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", newline="")


class RoutedFile(io.RawIOBase):
    """A file of Python's `open` whose every call goes through `os`."""

    def __init__(self, path: Any, mode: str) -> None:
        super().__init__()
        flags = {"w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL, "a": os.O_CREAT | os.O_APPEND}
        extra = next((flags[letter] for letter in "wxa" if letter in mode), 0)
        self._descriptor = os.open(path, extra | (os.O_RDWR if "+" in mode else os.O_WRONLY), 0o666)
        self._readable = "+" in mode

    def fileno(self) -> int:
        return self._descriptor

    def readable(self) -> bool:
        return self._readable

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        data = os.read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any, /) -> int:
        return os.write(self._descriptor, data)

    def truncate(self, size: int | None = None, /) -> int:
        size = self.tell() if size is None else size
        os.ftruncate(self._descriptor, size)
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._descriptor)


@contextmanager
def without_syncs() -> Iterator[None]:
    """Make `os.fsync` and `os.fdatasync` return at once. A simulated disk knows what is durable; real ones only wait."""
    originals = {name: getattr(os, name) for name in SYNCS if hasattr(os, name)}
    for name in originals:
        setattr(os, name, lambda descriptor: None)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


NO_SPACE, BROKEN = errno.ENOSPC, errno.EIO

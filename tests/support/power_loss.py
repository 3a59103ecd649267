"""A simulated disk that keeps only what was synced, and any part of the rest.

trace = DiskTrace(folder)                     # what is in the folder now is durable
with DiskCalls(folder, trace=trace):
    ...
disk = trace.disk(point)                      # the disk after the first `point` changes
disk.cut_power(target, rng, names=0.5, data=0.5)      # one of the states that a power cut may leave

A file's bytes and size are durable once the file is synced, a name (created, renamed, linked, unlinked) once its folder
is. Of what is not durable yet, any subset may be on the disk, in any order: a write in sectors of 512 bytes, of which
each is there or not; a change of size without the bytes, which are then zeros, or the reverse; each change of names
completely or not at all, so that a rename is atomic. What a failed sync should have written may be lost for good, even
if a later sync succeeds.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.disk_calls import SYNCS, DiskCall

SECTOR = 512
ROOT = 0


@dataclass(frozen=True)
class Write:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Resize:
    file: int
    size: int


@dataclass(frozen=True)
class Names:
    """An atomic change of names: (folder, name, what it names from now on; None: nothing)."""

    changes: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True)
class Sync:
    """A file or folder is made durable; `failed`: it was not, and what was not durable yet may never be."""

    node: int
    failed: bool = False


Event = Write | Resize | Names | Sync


@dataclass
class Change:
    """A change of a file after its last complete sync."""

    event: Write | Resize
    durable: bool = False
    lost: bool = False


@dataclass
class SimulatedFile:
    """Bytes as of a sync, and later changes."""

    data: bytes = b""
    changes: list[Change] = field(default_factory=list)

    def sync(self, failed: bool) -> None:
        for change in self.changes:
            if failed:
                change.lost |= not change.durable
            else:
                change.durable |= not change.lost
        if not any(change.lost for change in self.changes) and not failed:
            self.data, self.changes = self.content(random.Random(0), 1.0), []

    def content(self, rng: random.Random, share: float) -> bytes:
        """Return the bytes with every durable change and a `share` of the others."""
        data = bytearray(self.data)
        for change in self.changes:
            event, sure = change.event, change.durable or share == 1

            def applies(sure: bool = sure) -> bool:
                return sure or rng.random() < share

            if isinstance(event, Resize):
                if applies():
                    _resize(data, event.size)
                continue
            end = event.offset + len(event.data)
            if end > len(data) and applies():
                _resize(data, end)
            begin = event.offset
            while begin < min(end, len(data)):
                sector_end = min(begin - begin % SECTOR + SECTOR, end, len(data))
                if applies():
                    data[begin:sector_end] = event.data[begin - event.offset : sector_end - event.offset]
                begin = sector_end
        return bytes(data)


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    data.extend(bytes(size - len(data)))


@dataclass
class SimulatedDisk:
    """Files and folders by number, and the changes of names that are not durable yet."""

    files: dict[int, SimulatedFile] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    names: list[Names] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        if isinstance(event, Write | Resize):
            self.files[event.file].changes.append(Change(event))
        elif isinstance(event, Names):
            self.names.append(event)
        elif event.node in self.files:
            self.files[event.node].sync(event.failed)
        elif not event.failed:
            waiting = []
            for change in self.names:
                if any(folder == event.node for folder, _, _ in change.changes):
                    _rename(self.folders, change)
                else:
                    waiting.append(change)
            self.names = waiting

    def cut_power(self, target: Path, rng: random.Random, *, names: float, data: float) -> None:
        """Write to `target` what may be left, with these shares of the changes that are not durable."""
        folders = {number: dict(entries) for number, entries in self.folders.items()}
        for change in self.names:
            if names == 1 or rng.random() < names:
                _rename(folders, change)
        contents: dict[int, bytes] = {}
        target.mkdir(parents=True, exist_ok=True)
        waiting = [(ROOT, target)]
        while waiting:
            number, path = waiting.pop()
            for name, node in folders[number].items():
                if node in self.folders:
                    (path / name).mkdir()
                    waiting.append((node, path / name))
                else:
                    if node not in contents:  # a file may have several names
                        contents[node] = self.files[node].content(rng, data)
                    (path / name).write_bytes(contents[node])


def _rename(folders: dict[int, dict[str, int]], change: Names) -> None:
    for folder, name, node in change.changes:
        if node is None:
            folders[folder].pop(name, None)
        else:
            folders[folder][name] = node


class DiskTrace:
    """All changes of a folder, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.abspath(folder)
        self.events: list[Event] = []
        self._start = SimulatedDisk()
        self._kinds: dict[int, bool] = {ROOT: True}  # number of a file or folder: True if it is a folder
        self._names: dict[int, dict[str, int]] = {ROOT: {}}  # as of now
        self._open: dict[int, int] = {}  # descriptor: number
        self._import(ROOT, Path(folder))

    def disk(self, point: int) -> SimulatedDisk:
        """Return the disk after the first `point` changes."""
        disk = self._empty()
        for event in self.events[:point]:
            disk.apply(event)
        return disk

    def disks(self) -> Iterator[tuple[int, SimulatedDisk]]:
        """Iterate over the disks before and after every change. The disk is changed by the next iteration."""
        disk = self._empty()
        yield 0, disk
        for point, event in enumerate(self.events, start=1):
            disk.apply(event)
            yield point, disk

    def _empty(self) -> SimulatedDisk:
        disk = SimulatedDisk()
        for number, is_folder in self._kinds.items():
            if is_folder:
                disk.folders[number] = dict(self._start.folders.get(number, {}))
            else:
                disk.files[number] = SimulatedFile(self._start.files.get(number, SimulatedFile()).data)
        return disk

    def _import(self, number: int, path: Path) -> None:
        for child in sorted(path.iterdir()):
            node = self._new(is_folder=child.is_dir())
            self._names[number][child.name] = self._start.folders[number][child.name] = node
            if child.is_dir():
                self._start.folders[node] = {}
                self._import(node, child)
            else:
                self._start.files[node] = SimulatedFile(child.read_bytes())

    def _new(self, *, is_folder: bool) -> int:
        number = len(self._kinds)
        self._kinds[number] = is_folder
        if is_folder:
            self._names[number] = {}
        return number

    def _place(self, path: str) -> tuple[int, str]:
        """Return the number of the folder of a path, and the name in it."""
        *folders, name = os.path.relpath(path, self.folder).split(os.sep)
        number = ROOT
        for folder in folders:
            number = self._names[number][folder]
        return number, name

    def _node(self, path: str) -> int:
        folder, name = self._place(path)
        return self._names[folder][name]

    def _change_names(self, *changes: tuple[int, str, int | None]) -> None:
        event = Names(changes)
        self.events.append(event)
        _rename(self._names, event)

    # -- calls

    def before(self, call: DiskCall) -> int:
        """Return where a write begins that has no offset of its own."""
        if call.name != "write":
            return 0
        descriptor = call.arguments[0]
        return os.lseek(descriptor, 0, os.SEEK_CUR)

    def made(self, call: DiskCall, noted: int, result: Any) -> None:
        name = call.name
        if name == "open":
            self._opened(call, result)
        elif name == "close":
            self._open.pop(call.arguments[0], None)
        elif name in ("write", "pwrite"):
            offset = noted if name == "write" else call.arguments[2]
            data = bytes(memoryview(call.arguments[1]).cast("B")[:result])
            self.events.append(Write(self._open[call.arguments[0]], offset, data))
        elif name == "ftruncate":
            self.events.append(Resize(self._open[call.arguments[0]], call.arguments[1]))
        elif name == "truncate":
            self.events.append(Resize(self._node(call.paths[0]), call.arguments[1]))
        elif name in SYNCS:
            self.events.append(Sync(self._open[call.arguments[0]]))
        elif name == "mkdir":
            self._change_names((*self._place(call.paths[0]), self._new(is_folder=True)))
        elif name in ("unlink", "remove", "rmdir"):
            self._change_names((*self._place(call.paths[0]), None))
        elif name == "link":
            self._change_names((*self._place(call.paths[1]), self._node(call.paths[0])))
        else:  # rename, replace
            node = self._node(call.paths[0])
            self._change_names((*self._place(call.paths[0]), None), (*self._place(call.paths[1]), node))

    def _opened(self, call: DiskCall, descriptor: int) -> None:
        path = call.paths[0]
        if path == self.folder:
            self._open[descriptor] = ROOT
            return
        folder, name = self._place(path)
        if name not in self._names[folder]:
            self._change_names((folder, name, self._new(is_folder=False)))
        elif call.flags & os.O_TRUNC:
            self.events.append(Resize(self._node(path), 0))
        self._open[descriptor] = self._node(path)

    def sync_failed(self, call: DiskCall) -> None:
        self.events.append(Sync(self._open[call.arguments[0]], failed=True))


SPECIAL_SHARES = ((0.0, 0.0), (1.0, 1.0), (1.0, 0.0), (0.0, 1.0))


def shares(count: int, rng: random.Random) -> list[tuple[float, float]]:
    """Return shares of names and data for `count` cuts at one point: nothing, all, names only, data only, random ones."""
    return [
        SPECIAL_SHARES[k]
        if k < len(SPECIAL_SHARES)
        else (rng.choice((0.2, 0.5, 0.8, 1.0)), rng.choice((0.3, 0.7, 1.0)))
        for k in range(count)
    ]


def files_below(folder: Path) -> dict[str, bytes | None]:
    """Return the contents of all files by relative path, and None for folders."""
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


@contextmanager
def after_reboot(number: int = 1) -> Iterator[None]:
    """Give the machine another boot id: the page cache of before is gone, and the lake must not trust its head."""
    other = f"{number:08x}-0000-4000-8000-{number:012x}".encode()
    patched = []
    for name, module in list(sys.modules.items()):
        if name.startswith("millpond.") and "this_boot" in vars(module):
            patched.append((module, vars(module)["this_boot"]))
            module.this_boot = lambda: other  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, original in patched:
            module.this_boot = original  # type: ignore[attr-defined]

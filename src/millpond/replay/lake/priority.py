"""Priorities of a lake's records, for replay that draws in proportion to them (Schaul et al., 2016).

priorities = Priorities.open(lake, "big")
batch = lake.sample(256, rng, priority=priorities)
priorities.update(batch.stream, batch.index, abs(error) ** 0.6)     # kept when this returns

They are in the lake's folder, one file per stream: blocks of 4,096 bytes, each a checksum and 1,023 float32 numbers. In memory
is the sum of each block only, in float64, added in a fixed order: a sum is always exactly that of the file's numbers, whatever
the updates were, and is computed again when they are opened. A record is drawn by the sums of all blocks, then by the numbers
of one.

An update writes whole blocks within pages: a process that is killed leaves each block as it was before or after the update, and
what `update` returned for is there when they are opened again. After a power cut that holds for what `flush` returned for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from millpond.compiled import compiled, compiled_fast
from millpond.durable import DiskFile, FileLock, LockHeld, make_folder, read_file, replace_file
from millpond.replay.lake.checksum import Binding
from millpond.replay.lake.stream import View
from millpond.replay.schema import FINAL, LakeBusy, LakeDamaged, LakeError

if TYPE_CHECKING:
    from millpond.replay.lake.lake import Lake

Array = np.ndarray[Any, Any]
BLOCK_BYTES = 4_096  # a page: writes of one are not torn by the end of a process
LEAVES = BLOCK_BYTES // 4 - 1
CHUNK = 31  # leaves that are added at once when one is searched
KIND = "priority"
FIRST_PRIORITY = 1.0  # of the first records; later ones get the largest priority of all
FOLDER = "priorities"


class Priorities:
    """Priorities of all records of a lake as of its last `refresh`. One process has them open at a time."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.lake, self.folder = lake, lake.folder / FOLDER / name
        make_folder(self.folder)
        try:
            self._lock = FileLock(self.folder / "lock")
        except LockHeld as error:
            raise LakeBusy(f"the priorities {name!r} of {lake.folder} are open in {error.holder}") from None
        self._streams: dict[str, StreamPriorities] = {}
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def open(lake: Lake, name: str) -> Priorities:
        """Open the priorities of this name, or begin new ones. Several learners of one lake use several names."""
        if not name or name.startswith(".") or "/" in name:
            raise LakeError(f"priorities {name!r}: a name has no '/' and does not begin with '.'")
        return Priorities(lake, name)

    def refresh(self) -> None:
        """Follow the lake after its `refresh`: new records get the largest priority of all, dropped ones lose theirs."""
        largest = self.largest
        for name in self.lake.streams:
            if name not in self._streams:
                binding = Binding.of(self.lake.manifest.id, f"{name}/{self.folder.name}")
                self._streams[name] = StreamPriorities(self.folder, name, binding)
                largest = self.largest
            self._streams[name].follow(self.lake.view(name), largest)

    @property
    def largest(self) -> float:
        """The largest priority of any record; 1 if there are none."""
        return (
            max((float(stream.largest.max(initial=0)) for stream in self._streams.values()), default=0)
            or FIRST_PRIORITY
        )

    @property
    def total(self) -> float:
        """The sum of all priorities, those of records included that begin no valid transition."""
        return float(sum(stream.sums.sum() for stream in self._streams.values()))

    @property
    def nbytes(self) -> int:
        """Bytes kept in memory."""
        return sum(stream.sums.nbytes + stream.largest.nbytes for stream in self._streams.values())

    def update(self, stream: Array, index: Array, priority: Array) -> None:
        """Set the priorities of records `index` [n] of streams `stream` [n], as a batch names them; the last one counts."""
        priority = np.asarray(priority, np.float32)
        if not (np.isfinite(priority).all() and (priority >= 0).all()):
            raise LakeError(
                f"priorities must be finite and not negative; got {priority[~(priority >= 0)][:3].tolist()}"
            )
        names = self.lake.streams
        for number in np.unique(stream).tolist():
            mine = stream == number
            self._of(names[number]).put(index[mine], priority[mine])

    def get(self, stream: Array, index: Array) -> Array:
        """Return the priorities of records `index` [n] of streams `stream` [n]."""
        found, names = np.empty(len(index), np.float32), self.lake.streams
        for number in np.unique(stream).tolist():
            mine = stream == number
            found[mine] = self._of(names[number]).get(index[mine])
        return found

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw n records, each in proportion to its priority: streams and numbers, as a batch names them."""
        streams = [self._of(name) for name in self.lake.streams]
        sums = np.concatenate([stream.sums for stream in streams])
        ends = np.cumsum(sums)
        if not len(ends) or ends[-1] <= 0:
            raise LakeError(f"all priorities of {self.lake.folder} are 0: nothing can be drawn")
        at = rng.random(n) * ends[-1]
        block = np.minimum(np.searchsorted(ends, at, side="right"), np.flatnonzero(sums)[-1])
        rest = at - (ends - sums)[block]
        first = np.cumsum([0, *(len(stream.sums) for stream in streams)])
        which = np.searchsorted(first, block, side="right") - 1
        index = np.empty(n, np.int64)
        for number in np.unique(which).tolist():
            mine = which == number
            index[mine] = streams[number].draw(block[mine] - first[number], rest[mine])
        return which.astype(np.int32), index

    def flush(self) -> None:
        """Make all priorities durable: they survive a power cut, too."""
        for stream in self._streams.values():
            stream.file.sync()

    def _of(self, name: str) -> StreamPriorities:
        if name not in self._streams or self._streams[name].behind(self.lake.view(name)):
            raise LakeError(
                f"the lake was refreshed since these priorities were: call refresh() on {self.folder.name!r}"
            )
        return self._streams[name]

    def close(self) -> None:
        for stream in self._streams.values():
            stream.file.close()
        self._lock.release()

    def __enter__(self) -> Priorities:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StreamPriorities:
    """Priorities of one stream. Records have places in the file: their numbers plus those of records dropped before."""

    def __init__(self, folder: Path, name: str, binding: Binding) -> None:
        self.folder, self.name, self.binding = folder, name, binding
        self.file = DiskFile(folder / f"{name}.priorities", os.O_RDWR | os.O_CREAT)
        self._path = folder / f"{name}.json"
        self.dropped, self.count = 0, 0  # places before those of the first record; places in use
        self._segments: dict[int, int] = {}  # place of the first record of each segment
        if self._path.exists():
            saved = json.loads(read_file(self._path))
            self.dropped, self.count = int(saved["dropped"]), int(saved["count"])
            self._segments = {int(number): int(place) for number, place in saved["segments"]}
        blocks = -(-self.count // LEAVES)
        if self.file.size < blocks * BLOCK_BYTES:
            raise self._damage(self.file.size // BLOCK_BYTES)
        self.sums, self.largest = np.zeros(blocks), np.zeros(blocks, np.float32)
        self._map(blocks)
        for block in range(blocks):  # checked here once: later reads are of what this process wrote
            leaves = self._checked(block)
            self.sums[block], self.largest[block] = sum_in_order(leaves), leaves.max()

    def _map(self, blocks: int) -> None:
        """Map the blocks that are written; a read of a map of them needs no system call."""
        shape = (blocks, 1 + LEAVES)
        mapped = np.memmap(self.file.path, np.float32, "r", shape=shape) if blocks else np.empty(shape, np.float32)
        self._pages = np.asarray(mapped)  # [blocks, checksum and leaves]

    def behind(self, view: View) -> bool:
        """Return True if the stream has other records than these."""
        return view.num_records != self.count - self.dropped

    def follow(self, view: View, priority: float) -> None:
        """Take over the records of a view: give `priority` to the new ones, 0 to dropped ones and final observations."""
        segments = {each.number: each.begin for each in view.segments}
        known = next((number for number in segments if number in self._segments), None)
        dropped = self.count if known is None else self._segments[known] - segments[known]
        count = dropped + view.num_records
        same = (dropped, count) == (self.dropped, self.count)
        if same and set(segments) == set(self._segments):
            return
        self._fill(self.dropped, min(dropped, self.count), lambda places: np.zeros(len(places), np.float32))
        self._fill(count, self.count, lambda places: np.zeros(len(places), np.float32))  # rolled back

        def of_new(places: Array) -> Array:
            steps = view.flags[places - dropped] & FINAL == 0
            return np.where(steps, priority, 0).astype(np.float32)

        self._fill(max(self.count, dropped), count, of_new)
        self.dropped, self.count = dropped, count
        self._segments = {number: dropped + begin for number, begin in segments.items()}
        state = {"dropped": dropped, "count": count, "segments": sorted(self._segments.items())}
        replace_file(self._path, json.dumps(state).encode())  # after the numbers: what it counts is there

    def _fill(self, begin: int, end: int, values: Callable[[Array], Array]) -> None:
        """Set the priorities at places begin:end, block by block."""
        if end <= begin:
            return
        written, needed = len(self.sums), -(-end // LEAVES)
        if needed > written:
            self.sums = np.append(self.sums, np.zeros(needed - written))
            self.largest = np.append(self.largest, np.zeros(needed - written, np.float32))
        for block in range(begin // LEAVES, needed):
            leaves = self._pages[block, 1:].copy() if block < written else np.zeros(LEAVES, np.float32)
            places = np.arange(max(begin, block * LEAVES), min(end, (block + 1) * LEAVES))
            leaves[places - block * LEAVES] = values(places)
            self._write(block, leaves)
        if needed > written:
            self._map(needed)

    def put(self, index: Array, priority: Array) -> None:
        place = self._places(index)
        order = np.argsort(place, kind="stable")  # of several for one record the last one counts
        place, priority = place[order], priority[order]
        block = place // LEAVES
        begins = np.flatnonzero(np.diff(block, prepend=-1)).tolist()
        for begin, end in zip(begins, [*begins[1:], len(place)], strict=True):
            number = int(block[begin])
            leaves = self._pages[number, 1:].copy()
            leaves[place[begin:end] - number * LEAVES] = priority[begin:end]
            self._write(number, leaves)

    def get(self, index: Array) -> Array:
        place = self._places(index)
        found: Array = self._pages[place // LEAVES, 1 + place % LEAVES]
        return found

    def draw(self, block: Array, rest: Array) -> Array:
        """Return the numbers of records drawn in blocks [n]: those up to which the sum within the block exceeds `rest`."""
        found: Array = block * LEAVES + find_leaves(self._pages, block, rest) - self.dropped
        return found

    def _places(self, index: Array) -> Array:
        place: Array = np.asarray(index, np.int64) + self.dropped
        if len(place) and (place.min() < self.dropped or place.max() >= self.count):
            raise LakeError(f"records {np.asarray(index)[:3].tolist()} of stream {self.name!r}: some do not exist")
        return place

    def _checked(self, block: int) -> Array:
        """Return the leaves of a block whose checksum matches."""
        data = self._pages[block].tobytes()
        if int.from_bytes(data[:4], "little") != self.binding.checksum(data[4:], KIND, 0, block):
            raise self._damage(block)
        return self._pages[block, 1:]

    def _write(self, block: int, leaves: Array) -> None:
        data = leaves.tobytes()
        checksum = self.binding.checksum(data, KIND, 0, block)
        self.file.write(checksum.to_bytes(4, "little") + data, block * BLOCK_BYTES)
        self.sums[block], self.largest[block] = sum_in_order(leaves), leaves.max()

    def _damage(self, block: int) -> LakeDamaged:
        return LakeDamaged(
            f"{self.file.path}, block {block}: the checksum does not match, or it is missing; remove {self.folder} to begin "
            f"with equal priorities"
        )


@compiled
def sum_in_order(leaves: Any) -> Any:
    """Return the sum in float64, added from the first to the last."""
    total = 0.0
    for k in range(len(leaves)):
        total += np.float64(leaves[k])
    return total


@compiled_fast
def sum_of(page: Any, begin: Any, end: Any) -> Any:
    """Return the sum of page[begin:end] in float64, in any order: several numbers at once."""
    total = 0.0
    for k in range(begin, end):
        total += np.float64(page[k])
    return total


@compiled
def find_leaves(pages: Any, block: Any, rest: Any) -> Any:
    """Return, for each block and number [n], the first leaf up to which the sum exceeds it; else the last one above 0.

    Chunks of leaves are passed over by their sums.
    """
    found = np.zeros(len(rest), np.int64)
    for i in range(len(rest)):
        page, before, exceeds = pages[block[i]], 0.0, False
        chunk = 1  # the one that exceeds the number; else the last one with a leaf above 0
        for begin in range(1, len(page), CHUNK):
            total = before + sum_of(page, begin, min(begin + CHUNK, len(page)))
            if total > before:
                chunk, exceeds = begin, total > rest[i]
            if exceeds:
                break
            before = total
        for k in range(chunk, min(chunk + CHUNK, len(page))):
            if page[k] > 0:
                found[i] = k - 1
                before += np.float64(page[k])
                if exceeds and before > rest[i]:
                    break
    return found

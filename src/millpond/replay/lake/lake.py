"""A lake: all transitions of a mixture on disk, larger than memory, written by several and read by any number.

lake = Lake.create("runs/x/lake", schema)
with lake.writer("agent0", lanes=128) as writer:
    writer.append(steps)                      # on disk when this returns
lake.refresh()
batch = lake.sample(256, rng, stack=4)        # exactly uniform over all valid transitions
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np

from millpond.durable import create_file
from millpond.replay.draw import draw_sequences, draw_transitions
from millpond.replay.errors import LakeError
from millpond.replay.lake.format import NAME_PATTERN, SEGMENT_BYTES, Manifest, StreamFolder
from millpond.replay.lake.read import Damage, SpanReader
from millpond.replay.lake.sample import Assembler, DamageList, LakeBatch, LakeEpisode, Sequences, raise_damage
from millpond.replay.lake.stream import StreamReader, View
from millpond.replay.lake.write import Writer
from millpond.replay.schema import FINAL, Schema
from millpond.replay.walk import episode_rows, whole_episodes

Padding = Literal["zero", "repeat"]
OnDamage = Literal["raise", "skip"]
Array = np.ndarray[Any, Any]
Result = TypeVar("Result")
SMALLEST_SEGMENT = 64 << 10
TRIES = 5
TRIES_FOR_UNDAMAGED = 100


class Lake:
    """A folder of streams. Opening it reads the streams' indexes; `refresh` sees what was appended since."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        self.schema = self.manifest.schema
        self.damage: list[Damage] = []
        self._reader = SpanReader()
        self._streams: dict[str, StreamReader] = {}
        self.refresh()

    @staticmethod
    def create(
        folder: str | Path, schema: Schema, *, max_bytes: int | None = None, segment_bytes: int | None = None
    ) -> Lake:
        """Make a lake, or open the one that is there if its schema is the same. Several processes may do so at once."""
        folder = Path(folder)
        if segment_bytes is None:
            segment_bytes = (
                SEGMENT_BYTES if max_bytes is None else min(SEGMENT_BYTES, max(max_bytes // 32, SMALLEST_SEGMENT))
            )
        if segment_bytes < 1 or segment_bytes > 1 << 31:
            raise LakeError(f"segment_bytes={segment_bytes:,} must lie between 1 and {1 << 31:,}")
        if max_bytes is not None and max_bytes < 8 * segment_bytes:
            raise LakeError(
                f"max_bytes={max_bytes:,} is less than 8 segments of {segment_bytes:,}; try {8 * segment_bytes:,}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "streams").mkdir(exist_ok=True)
        manifest = Manifest(schema, max_bytes, segment_bytes)
        if not create_file(folder / "lake.json", manifest.to_bytes()):
            there = Manifest.read(folder)
            if there.schema != schema:
                raise LakeError(f"{folder} is a lake with another schema: {there.schema} there, {schema} asked for")
        return Lake(folder)

    @property
    def streams(self) -> list[str]:
        """Names of all streams, sorted; `LakeBatch.stream` counts in this order."""
        return list(self._streams)

    @property
    def replayed(self) -> dict[str, int]:
        """How many transitions of each stream this reader has returned."""
        return {name: stream.replayed for name, stream in self._streams.items()}

    def positions(self) -> dict[str, int]:
        """Acknowledged appends of each stream, as of the last `refresh`: what a checkpoint keeps for `Writer.rollback`."""
        return {name: stream.commits for name, stream in self._streams.items()}

    def view(self, stream: str) -> View:
        return self._streams[stream].view

    def reader(self, stream: str) -> StreamReader:
        return self._streams[stream]

    def writer(self, stream: str, lanes: int, *, continue_episodes: bool = False) -> Writer:
        """The writer of a stream, which is made where it is missing. One at a time, in any process.

        What a crash left behind the last acknowledged append is cut off. Episodes that were open begin anew with
        the next step, unless `continue_episodes` says that the envs go on where the stream ends.
        """
        if not re.fullmatch(NAME_PATTERN, stream):
            raise LakeError(
                f"stream {stream!r}: a name has letters, digits, '.', '_' and '-', and begins with a letter or digit"
            )
        folder = StreamFolder.make(self.folder / "streams" / stream, lanes)
        return Writer(self.folder, self.manifest, folder, continue_episodes=continue_episodes)

    def refresh(self) -> bool:
        """See new streams and what was acknowledged since; True where anything changed."""
        changed = False
        for path in sorted((self.folder / "streams").glob("*/stream.json")):
            if path.parent.name not in self._streams:
                self._streams[path.parent.name] = StreamReader(StreamFolder.read(path.parent), self.schema)
                changed = True
            elif self._streams[path.parent.name].refresh():
                changed = True
        self._streams = dict(sorted(self._streams.items()))
        if changed:
            self._reader.forget()
        return changed

    def transitions(self, stack: int | None = None, n_step: int = 1) -> int:
        """How many valid transitions `sample` chooses from."""
        return sum(stream.view.transitions(stack or 1, n_step) for stream in self._streams.values())

    def sample(
        self,
        n: int,
        rng: np.random.Generator,
        *,
        stack: int | None = None,
        n_step: int = 1,
        gamma: float = 1.0,
        padding: Padding = "zero",
        weights: Mapping[str, float] | None = None,
        quotas: Mapping[str, int] | None = None,
        on_damage: OnDamage = "raise",
    ) -> LakeBatch:
        """n transitions, exactly uniform over all valid ones.

        stack      frames an observation; None: single ones, without an axis of frames
        padding    what stands before an episode's first frame: zeros, or that frame repeated
        weights    chance of each stream; within a stream uniform
        quotas     exactly so many of each stream
        on_damage  skip: draw another in place of one that is damaged, and keep a note in `damage`
        """
        if n_step < 1 or (stack is not None and stack < 1):
            raise LakeError(f"stack={stack} and n_step={n_step} must be at least 1")

        def take(assembler: Assembler, count: int, shares: Array | None) -> tuple[LakeBatch, DamageList]:
            repeat = padding == "repeat"
            picked = draw_transitions(
                assembler.views, shares, count, rng, stack=stack or 1, n_step=n_step, repeat=repeat
            )
            return assembler.transitions(picked, stacked=stack is not None, gamma=gamma)

        def attempt() -> LakeBatch:
            assembler, shares = self.assembler(), self._shares(n, rng, weights, quotas)
            batch, damaged = take(assembler, n, shares)
            waiting = np.arange(n)
            for _ in range(TRIES_FOR_UNDAMAGED):
                waiting = waiting[np.unique([place for place, _ in damaged]).astype(np.int64)]
                if not len(waiting):
                    return batch
                self._note(damaged, on_damage)
                again = None if shares is None else np.bincount(batch.stream[waiting], minlength=len(shares))
                other, damaged = take(assembler, len(waiting), again)
                batch.put(waiting, other)
            raise LakeError(
                f"{self.folder}: hardly anything is left undamaged; run `millpond lake verify {self.folder}`"
            )

        batch = self._through_changes(attempt, rng)
        self._count(batch.stream)
        return batch

    def sample_sequences(
        self,
        n: int,
        rng: np.random.Generator,
        *,
        length: int,
        burn_in: int = 0,
        weights: Mapping[str, float] | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> Sequences:
        """n runs of `length` steps of one episode each, uniform over all places where such a run can begin.

        `burn_in` steps stand before each, masked where the episode had not begun yet.
        """
        if length < 1 or burn_in < 0:
            raise LakeError(f"length={length} must be at least 1 and burn_in={burn_in} at least 0")

        def attempt() -> Sequences:
            assembler, shares = self.assembler(), self._shares(n, rng, weights, quotas)
            picked = draw_sequences(assembler.views, shares, n, rng, length=length, burn_in=burn_in)
            sequences, damaged = assembler.sequences(picked)
            self._note(damaged, "raise")
            return sequences

        sequences = self._through_changes(attempt, rng)
        self._count(sequences.stream, each=length)
        return sequences

    def sample_episodes(self, n: int, rng: np.random.Generator) -> list[LakeEpisode]:
        """n whole episodes, uniform over all that are complete."""

        def attempt() -> list[LakeEpisode]:
            tables = [whole_episodes(stream.view) for stream in self._streams.values()]
            ends = np.cumsum([len(start) for start, _ in tables])
            if not len(ends) or ends[-1] == 0:
                raise LakeError(f"{self.folder} has no complete episode yet")
            drawn = rng.integers(0, ends[-1], n)
            which = np.searchsorted(ends, drawn, side="right")
            return [
                self._episode(int(number), tables[number], int(place))
                for number, place in zip(which, drawn - np.append(0, ends)[which], strict=True)
            ]

        return self._through_changes(attempt, rng)

    def episodes(self, stream: str | None = None) -> Iterator[LakeEpisode]:
        """All complete episodes, stream by stream, lane by lane."""
        for number, name in enumerate(self.streams):
            if stream in (None, name):
                table = whole_episodes(self._streams[name].view)
                for place in range(len(table[0])):
                    yield self._episode(number, table, place)

    def _episode(self, number: int, table: tuple[Array, Array], place: int) -> LakeEpisode:
        name = self.streams[number]
        rows = episode_rows(self._streams[name].view, int(table[0][place]), int(table[1][place]))
        final = bool(self._streams[name].view.flags[rows[-1]] & FINAL)
        episode, damaged = self.assembler().episode(number, rows, len(rows) - final, name)
        self._note(damaged, "raise")
        return episode

    def assembler(self) -> Assembler:
        """Reads rows of the streams as they are seen now."""
        return Assembler([stream.view for stream in self._streams.values()], self.schema, self._reader)

    def _shares(
        self, n: int, rng: np.random.Generator, weights: Mapping[str, float] | None, quotas: Mapping[str, int] | None
    ) -> Array | None:
        """How many of the n each stream gives; None: as it comes."""
        if weights is None and quotas is None:
            return None
        if weights is not None and quotas is not None:
            raise LakeError("weights and quotas are both given; take one of them")
        given: Mapping[str, float] = weights if weights is not None else quotas or {}
        unknown = sorted(set(given) - set(self._streams))
        if unknown:
            raise LakeError(f"streams {unknown} are not in {self.folder}; it has {self.streams}")
        values = np.array([given.get(name, 0) for name in self._streams], np.float64)
        if np.any(values < 0) or values.sum() <= 0:
            raise LakeError(f"shares {dict(given)} must not be negative, and not all 0")
        if weights is not None:
            return rng.multinomial(n, values / values.sum())
        if values.sum() != n:
            raise LakeError(f"quotas {dict(given)} add up to {int(values.sum())}, not to n={n}")
        return values.astype(np.int64)

    def _through_changes(self, attempt: Callable[[], Result], rng: np.random.Generator) -> Result:
        """Try again with a fresh look where a file was dropped or compacted since the last one."""
        state = rng.bit_generator.state
        for _ in range(TRIES):
            try:
                return attempt()
            except FileNotFoundError:
                rng.bit_generator.state = state
                self.refresh()
        return attempt()

    def _note(self, damaged: DamageList, on_damage: OnDamage) -> None:
        if on_damage == "raise":
            raise_damage(damaged, self.folder)
        self.damage += [what for _, what in damaged]

    def _count(self, stream: Array, each: int = 1) -> None:
        counts = np.bincount(stream, minlength=len(self._streams))
        for reader, count in zip(self._streams.values(), counts.tolist(), strict=True):
            reader.replayed += count * each

    def release(self) -> None:
        """Close all files and maps for now; they are opened again when they are needed."""
        self._reader.forget()

    def close(self) -> None:
        """Close all files and end the reading threads."""
        self._reader.close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

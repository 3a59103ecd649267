"""`Lake`: records on disk, more than fit into memory, written by several processes and read by any number.

lake = Lake.create("runs/x/lake", schema)
with lake.writer("agent0", lanes=128) as writer:
    writer.append(steps)                      # on disk when this returns
lake.refresh()
batch = lake.sample(256, rng, stack=4)        # exactly uniform over all valid transitions
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np

from millpond.durable import create_file, make_folder
from millpond.formatting import plural
from millpond.replay.draw import (
    DrawnSequences,
    DrawnTransitions,
    PlanRecords,
    draw_sequences,
    draw_transitions,
    draw_transitions_by,
    plan_at,
    sequence_plan,
    transition_plan,
)
from millpond.replay.lake.format import MAX_SEGMENT_BYTES, NAME_PATTERN, SEGMENT_BYTES, Manifest, StreamFolder
from millpond.replay.lake.priority import Priorities
from millpond.replay.lake.read import DamageList, SpanReader
from millpond.replay.lake.sample import Assembler, LakeBatch, LakeEpisode, Sequences, raise_damage
from millpond.replay.lake.stream import Damage, StreamReader, View
from millpond.replay.lake.write import Writer
from millpond.replay.schema import FINAL, LakeDamaged, LakeError, Schema
from millpond.replay.transitions import complete_episodes, episode_records

Padding = Literal["zero", "repeat"]
OnDamage = Literal["raise", "skip"]
Array = np.ndarray[Any, Any]
Result = TypeVar("Result")
MIN_SEGMENT_BYTES = 64 << 10
MAX_RETRIES = 5  # after files were dropped or compacted
MAX_REDRAWS = 100  # of damaged transitions


class Lake:
    """A folder of streams. Opening it reads the streams' indexes; `refresh` reads what was appended since."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        self.schema = self.manifest.schema
        self.damage: list[Damage] = []
        self._unusable: list[Damage] = []  # streams that cannot be opened at all
        self._reader = SpanReader()
        self._streams: dict[str, StreamReader] = {}
        self.refresh()

    @staticmethod
    def create(
        folder: str | Path, schema: Schema, *, max_bytes: int | None = None, segment_bytes: int | None = None
    ) -> Lake:
        """Create a lake, or open an existing one of the same schema. Several processes may do so at once."""
        folder = Path(folder)
        if segment_bytes is None:
            segment_bytes = (
                SEGMENT_BYTES if max_bytes is None else min(SEGMENT_BYTES, max(max_bytes // 32, MIN_SEGMENT_BYTES))
            )
        if segment_bytes < 1 or segment_bytes > MAX_SEGMENT_BYTES:
            raise LakeError(f"segment_bytes={segment_bytes:,} must be between 1 and {MAX_SEGMENT_BYTES:,}")
        if max_bytes is not None and max_bytes < 8 * segment_bytes:
            raise LakeError(
                f"max_bytes={max_bytes:,} is less than 8 segments of {segment_bytes:,}; try {8 * segment_bytes:,}"
            )
        make_folder(folder)
        manifest = Manifest(schema, max_bytes, segment_bytes, id=uuid.uuid4().hex)
        if not (folder / "lake.json").exists():
            make_folder(folder / manifest.streams)
            create_file(folder / "lake.json", manifest.to_bytes())
        lake = Lake(folder)
        if lake.schema != schema:
            raise LakeError(f"{folder} is a lake with another schema: it has {lake.schema}, {schema} was requested")
        return lake

    def __repr__(self) -> str:
        return f"<Lake {self.folder}: {plural(len(self._streams), 'stream')}>"

    @property
    def streams(self) -> list[str]:
        """Names of all streams, sorted; `LakeBatch.stream` counts in this order."""
        return list(self._streams)

    @property
    def replayed(self) -> dict[str, int]:
        """Number of transitions of each stream that this reader has returned."""
        return {name: stream.replayed for name, stream in self._streams.items()}

    def positions(self) -> dict[str, int]:
        """Return the acknowledged appends of each stream as of the last `refresh`, for checkpoints and `Writer.rollback`."""
        return {name: stream.commits for name, stream in self._streams.items()}

    def extent(self) -> dict[str, tuple[int, int]]:
        """Return the first segment and the number of records of each stream.

        Records are counted from the first segment: as long as it stays, a record's number means the same record.
        """
        return {
            name: (stream.view.segments[0].number if stream.view.segments else 0, stream.view.num_records)
            for name, stream in self._streams.items()
        }

    def view(self, stream: str) -> View:
        return self._streams[stream].view

    def reader(self, stream: str) -> StreamReader:
        return self._streams[stream]

    def writer(self, stream: str, lanes: int, *, continue_episodes: bool = False) -> Writer:
        """Return the writer of a stream, created if missing. A stream has one writer at a time, in any process.

        Bytes that a crash left after the last acknowledged append are cut off. The next step of every lane begins a new
        episode, unless `continue_episodes` is set: the envs continue where the stream ends.
        """
        if not re.fullmatch(NAME_PATTERN, stream):
            raise LakeError(
                f"stream {stream!r}: a name has letters, digits, '.', '_' and '-', and begins with a letter or digit"
            )
        folder = StreamFolder.make(self.folder / self.manifest.streams / stream, lanes, self.manifest)
        return Writer(self.folder, self.manifest, folder, continue_episodes=continue_episodes)

    def refresh(self) -> bool:
        """Read new streams and appends acknowledged since the last call; return True if anything changed."""
        manifest = Manifest.read(self.folder)
        changed = manifest != self.manifest
        if changed:  # upgraded to a new version of the format: its streams are in another folder
            self.manifest, self._streams = manifest, {}
        paths, problems = manifest.stream_paths(self.folder)
        self._unusable = [Damage(str(self.folder), -1, problem) for problem in problems]
        for path in paths:
            try:
                if path.name in self._streams:
                    changed |= self._streams[path.name].refresh()
                else:
                    self._streams[path.name] = StreamReader(StreamFolder.read(path, manifest), self.schema)
                    changed = True
            except LakeDamaged as error:
                self._unusable.append(Damage(str(path), -1, str(error)))
            except OSError as error:
                self._unusable.append(Damage(str(error.filename or path), -1, error.strerror or str(error)))
        self._streams = dict(sorted(self._streams.items()))
        if changed:
            self._reader.forget()
        return changed

    def known_damage(self) -> list[Damage]:
        """Return what is known to be missing or unreadable without reading all data; `verify` reads all."""
        return self._unusable + [damage for stream in self._streams.values() for damage in stream.damage]

    def require_intact(self, on_damage: OnDamage = "raise") -> None:
        """Raise an error if anything is known to be missing or unreadable, or add it to `damage` with `skip`."""
        known = self.known_damage()
        if on_damage == "raise":
            raise_damage(known, self.folder)
        self.damage += [damage for damage in known if damage not in self.damage]

    def transitions(self, stack: int | None = None, n_step: int = 1) -> int:
        """Return the number of valid transitions."""
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
        priority: Priorities | None = None,
        on_damage: OnDamage = "raise",
    ) -> LakeBatch:
        """Draw n transitions, exactly uniform over all valid ones.

        stack      frames per observation; None: single frames, without an axis of frames
        padding    before an episode's first frame: zeros, or that frame repeated
        weights    probability of each stream; uniform within a stream
        quotas     exact number from each stream
        priority   not uniform, but each valid transition in proportion to the priority of its record
        on_damage  skip: draw another one in place of a damaged transition, and list the damage in `damage`
        """
        if n_step < 1 or (stack is not None and stack < 1):
            raise LakeError(f"stack={stack} and n_step={n_step} must be at least 1")
        if priority is not None and (weights is not None or quotas is not None):
            raise LakeError("priority is set, which draws over all streams: leave out weights and quotas")

        def take(assembler: Assembler, count: int, shares: Array | None) -> tuple[LakeBatch, DamageList]:
            views, options = assembler.views, {"stack": stack or 1, "n_step": n_step}
            repeat = padding == "repeat"
            if priority is None:
                drawn = draw_transitions(views, shares, count, rng, **options, repeat=repeat)
            else:
                drawn = draw_transitions_by(views, lambda k: priority.draw(k, rng), count, **options, repeat=repeat)
            return assembler.transitions(drawn, stacked=stack is not None, gamma=gamma)

        def attempt() -> LakeBatch:
            self.require_intact(on_damage)
            assembler, shares = self.assembler(), self._shares(n, rng, weights, quotas)
            batch, damaged = take(assembler, n, shares)
            waiting = np.arange(n)
            for _ in range(MAX_REDRAWS):
                waiting = waiting[np.unique([place for place, _ in damaged]).astype(np.int64)]
                if not len(waiting):
                    return batch
                self._note(damaged, on_damage)
                again = None if shares is None else np.bincount(batch.stream[waiting], minlength=len(shares))
                other, damaged = take(assembler, len(waiting), again)
                batch.put(waiting, other)
            raise LakeError(f"{self.folder}: almost everything is damaged; run `millpond lake verify {self.folder}`")

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
        """Draw n sequences of `length` steps of one episode, uniform over all records where such a sequence can begin.

        `burn_in` steps precede each, masked where the episode had not begun yet.
        """
        if length < 1 or burn_in < 0:
            raise LakeError(f"length={length} must be at least 1 and burn_in={burn_in} at least 0")

        def attempt() -> Sequences:
            self.require_intact()
            assembler, shares = self.assembler(), self._shares(n, rng, weights, quotas)
            drawn = draw_sequences(assembler.views, shares, n, rng, length=length, burn_in=burn_in)
            sequences, damaged = assembler.sequences(drawn)
            self._note(damaged, "raise")
            return sequences

        sequences = self._through_changes(attempt, rng)
        self._count(sequences.stream, each=length)
        return sequences

    def read(
        self,
        stream: Array,
        index: Array,
        *,
        stack: int | None = None,
        n_step: int = 1,
        gamma: float = 1.0,
        padding: Padding = "zero",
    ) -> LakeBatch:
        """Return the transitions that begin with records `index` [n] of streams `stream` [n], as a batch names them.

        Arguments as for `sample`. Numbers are those of the last `refresh`.
        """

        def assemble(assembler: Assembler, which: Array, columns: tuple[Array, ...]) -> tuple[LakeBatch, DamageList]:
            drawn = DrawnTransitions(which, *columns)
            return assembler.transitions(drawn, stacked=stack is not None, gamma=gamma)

        return self._read_at(stream, index, transition_plan(stack or 1, n_step, padding == "repeat"), assemble)

    def read_sequences(self, stream: Array, index: Array, *, length: int, burn_in: int = 0) -> Sequences:
        """Return the sequences whose `length` steps begin with records `index` [n] of streams `stream` [n]."""

        def assemble(assembler: Assembler, which: Array, columns: tuple[Array, ...]) -> tuple[Sequences, DamageList]:
            return assembler.sequences(DrawnSequences(which, *columns))

        return self._read_at(stream, index, sequence_plan(length, burn_in), assemble)

    def _read_at(
        self,
        stream: Array,
        index: Array,
        plan: PlanRecords,
        assemble: Callable[[Assembler, Array, tuple[Array, ...]], tuple[Result, DamageList]],
    ) -> Result:
        names, extent = self.streams, self.extent()

        def attempt() -> Result:
            now = self.extent()
            for name, (first, _) in extent.items():
                if name not in now or now[name][0] != first:  # after a refresh of `_through_changes`
                    raise LakeError(
                        f"{self.folder}: the oldest files of stream {name!r} were dropped; refresh() and retry"
                    )
            assembler, which = self.assembler(), np.searchsorted(self.streams, names)[stream].astype(np.int32)
            result, damaged = assemble(assembler, which, plan_at(assembler.views, which, index, plan))
            self._note(damaged, "raise")
            return result

        return self._through_changes(attempt)

    def sample_episodes(self, n: int, rng: np.random.Generator) -> list[LakeEpisode]:
        """Draw n episodes, uniform over all complete ones."""

        def attempt() -> list[LakeEpisode]:
            self.require_intact()
            tables = [complete_episodes(stream.view) for stream in self._streams.values()]
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
        """Iterate over all complete episodes, stream by stream, lane by lane."""
        self.require_intact()
        for number, name in enumerate(self.streams):
            if stream in (None, name):
                table = complete_episodes(self._streams[name].view)
                for place in range(len(table[0])):
                    yield self._episode(number, table, place)

    def _episode(self, number: int, table: tuple[Array, Array], place: int) -> LakeEpisode:
        name = self.streams[number]
        records = episode_records(self._streams[name].view, int(table[0][place]), int(table[1][place]))
        final = bool(self._streams[name].view.flags[records[-1]] & FINAL)
        episode, damaged = self.assembler().episode(number, records, len(records) - final, name)
        self._note(damaged, "raise")
        return episode

    def assembler(self) -> Assembler:
        """Return a reader of records of the streams as of the last `refresh`."""
        return Assembler([stream.view for stream in self._streams.values()], self.schema, self._reader)

    def _shares(
        self, n: int, rng: np.random.Generator, weights: Mapping[str, float] | None, quotas: Mapping[str, int] | None
    ) -> Array | None:
        """Return how many of the n come from each stream; None: uniform over all."""
        if weights is None and quotas is None:
            return None
        if weights is not None and quotas is not None:
            raise LakeError("weights and quotas are both set; use one of them")
        shares: Mapping[str, float] = weights if weights is not None else quotas or {}
        unknown = sorted(set(shares) - set(self._streams))
        if unknown:
            raise LakeError(f"streams {unknown} are not in {self.folder}; it has {self.streams}")
        values = np.array([shares.get(name, 0) for name in self._streams], np.float64)
        if np.any(values < 0) or values.sum() <= 0:
            raise LakeError(f"shares {dict(shares)} must not be negative, and not all 0")
        if weights is not None:
            return rng.multinomial(n, values / values.sum())
        if values.sum() != n:
            raise LakeError(f"quotas {dict(shares)} add up to {int(values.sum())}, not to n={n}")
        return values.astype(np.int64)

    def _through_changes(self, attempt: Callable[[], Result], rng: np.random.Generator | None = None) -> Result:
        """Retry after a `refresh` if a file was dropped or compacted since the last one."""
        state = None if rng is None else rng.bit_generator.state
        for _ in range(MAX_RETRIES):
            try:
                return attempt()
            except FileNotFoundError:
                if rng is not None and state is not None:
                    rng.bit_generator.state = state
                for stream in self._streams.values():
                    stream.reread()
                self.refresh()
        return attempt()

    def _note(self, damaged: DamageList, on_damage: OnDamage) -> None:
        if on_damage == "raise":
            raise_damage([damage for _, damage in damaged], self.folder)
        self.damage += [damage for _, damage in damaged]

    def _count(self, stream: Array, each: int = 1) -> None:
        counts = np.bincount(stream, minlength=len(self._streams))
        for reader, count in zip(self._streams.values(), counts.tolist(), strict=True):
            reader.replayed += count * each

    def release(self) -> None:
        """Close all files and maps; they are reopened when needed."""
        self._reader.forget()

    def close(self) -> None:
        """Close all files and stop the reading threads."""
        self._reader.close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

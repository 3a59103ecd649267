"""`millpond lake info`: contents of a lake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from millpond.formatting import plural
from millpond.replay.lake.lake import Lake
from millpond.replay.lake.log import read_steps
from millpond.replay.schema import DAMAGED, ENDED, FINAL, FIRST

Array = np.ndarray[Any, Any]
BARS = " ▁▂▃▄▅▆▇█"
BINS = 16
MAX_LINES = 10  # of damage
Progress = Callable[[str, int, int], None]  # stream, files or records done, and in all


@dataclass
class Returns:
    """Returns of the complete episodes that began in one round. `histogram` has the same bins for the whole lake."""

    round: int
    episodes: int
    mean: float
    lowest: float
    highest: float
    mean_length: float
    histogram: list[int]

    @property
    def bars(self) -> str:
        most = max(*self.histogram, 1)
        return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in self.histogram)


@dataclass
class StreamInfo:
    """Contents of one stream. `rows`: records; `raw_bytes`: their size as plain arrays, each observation once."""

    name: str
    lanes: int
    commits: int
    segments: int
    compacted_segments: int
    rows: int
    transitions: int
    episodes: int
    stored_bytes: int
    raw_bytes: int
    returns: list[Returns] = field(default_factory=list)


@dataclass
class LakeInfo:
    """Contents of a lake."""

    folder: str
    streams: list[StreamInfo]
    lowest_return: float
    highest_return: float
    version: int
    damage: list[str] = field(default_factory=list)

    @property
    def transitions(self) -> int:
        return sum(stream.transitions for stream in self.streams)

    @property
    def stored_bytes(self) -> int:
        return sum(stream.stored_bytes for stream in self.streams)

    @property
    def raw_bytes(self) -> int:
        return sum(stream.raw_bytes for stream in self.streams)

    @property
    def bytes_a_transition(self) -> float:
        return self.stored_bytes / max(self.transitions, 1)

    def to_json(self) -> dict[str, Any]:
        totals = ("transitions", "stored_bytes", "raw_bytes", "bytes_a_transition")
        return {**asdict(self), **{name: getattr(self, name) for name in totals}}

    def lines(self) -> list[str]:
        """Return the contents as text."""
        lines = [
            f"{self.folder}: {plural(self.transitions, 'transition')} in {plural(len(self.streams), 'stream')}",
            f"  {self.stored_bytes:,} bytes stored, {self.raw_bytes:,} raw ({self.raw_bytes / max(self.stored_bytes, 1):.1f} "
            f"times as many), {self.bytes_a_transition:,.1f} bytes per transition",
        ]
        for stream in self.streams:
            lines.append(
                f"  {stream.name}: {plural(stream.transitions, 'transition')}, {plural(stream.episodes, 'episode')}, "
                f"{plural(stream.lanes, 'lane')}, {plural(stream.commits, 'append')}, "
                f"{plural(stream.segments, 'file')} ({stream.compacted_segments} compacted), "
                f"{stream.stored_bytes:,} bytes"
            )
            lines += [
                f"    round {each.round}: {plural(each.episodes, 'episode')}, return {each.mean:,.1f} "
                f"({each.lowest:,.1f} to {each.highest:,.1f}), {each.mean_length:,.1f} steps |{each.bars}|"
                for each in stream.returns
            ]
        if any(stream.returns for stream in self.streams):
            lines.append(f"  bars: returns from {self.lowest_return:,.1f} to {self.highest_return:,.1f}, {BINS} bins")
        lines += [f"  damaged: {damage}" for damage in self.damage[:MAX_LINES]]
        if len(self.damage) > MAX_LINES:
            lines.append(f"  and {len(self.damage) - MAX_LINES:,} more; `millpond lake verify {self.folder}` lists all")
        return lines


def info(folder: str | Path, *, progress: Progress | None = None) -> LakeInfo:
    """Read all records, in order; frames are not read. What is missing or damaged is listed and left out."""
    with Lake(folder) as lake:
        sums_by_stream = {name: _episode_sums(lake, name, progress) for name in lake.streams}
        returns = np.concatenate([sums[0] for sums in sums_by_stream.values()]) if sums_by_stream else np.empty(0)
        returns = returns[np.isfinite(returns)]
        low, high = (float(returns.min()), float(returns.max())) if len(returns) else (0.0, 0.0)
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
        streams = [
            _stream_info(lake, name, [_by_round(sums, number, edges) for number in np.unique(sums[2]).tolist()])
            for name, sums in sums_by_stream.items()
        ]
        damage = [str(each) for each in lake.known_damage()]
        return LakeInfo(str(folder), streams, low, high, lake.manifest.version, damage)


def _stream_info(lake: Lake, name: str, returns: list[Returns]) -> StreamInfo:
    view, reader = lake.view(name), lake.reader(name)
    return StreamInfo(
        name=name,
        lanes=view.lanes,
        commits=reader.commits,
        segments=len(view.segments),
        compacted_segments=sum(segment.codec == "zst" for segment in view.segments),
        rows=view.num_records,
        transitions=view.transitions(),
        episodes=sum(each.episodes for each in returns),
        stored_bytes=reader.folder.stored_bytes(),
        raw_bytes=view.num_records * lake.schema.raw_record_bytes,
        returns=returns,
    )


def _by_round(sums: tuple[Array, Array, Array], number: int, edges: Array) -> Returns:
    mine = sums[2] == number
    returns, lengths = sums[0][mine], sums[1][mine]
    histogram = np.histogram(returns[np.isfinite(returns)], edges)[0].tolist()
    ends = float(returns.min()), float(returns.max())
    return Returns(number, len(returns), float(returns.mean()), *ends, float(lengths.mean()), histogram)


def _episode_sums(lake: Lake, stream: str, progress: Progress | None) -> tuple[Array, Array, Array]:
    """Compute return, length and round of every complete episode of undamaged records."""
    view = lake.view(stream)
    parts: list[Array] = []
    for done, segment in enumerate(view.segments):
        if progress:
            progress(stream, done, len(view.segments))
        if not segment.num_records or np.all(view.flags[segment.begin : segment.begin + segment.num_records] & DAMAGED):
            continue
        records = read_steps(view.folder, lake.schema, segment.number, 0, segment.num_records)
        flags = view.flags[segment.begin : segment.begin + len(records)]
        parts.append(_sums_by_episode(records[flags & (FINAL | DAMAGED) == 0]))
    if not parts:
        return np.empty(0), np.empty(0), np.empty(0, np.int64)
    # An episode may go on in the next segment: add its parts up.
    columns = np.concatenate(parts, axis=1)
    number, place = np.unique(columns[0], return_inverse=True)
    total, length, begun, ended, rounds = (np.bincount(place, column, len(number)) for column in columns[1:])
    complete = (begun > 0) & (ended > 0)
    return total[complete], length[complete], rounds[complete].astype(np.int64)


def _sums_by_episode(records: Array) -> Array:
    """Return, for each episode among records: its number, return, length, whether it begins and ends here, and its round."""
    number, place = np.unique(records["episode"], return_inverse=True)
    first = (records["flags"] & FIRST) > 0
    columns = (
        records["reward"],
        np.ones(len(records)),
        first,
        (records["flags"] & ENDED) > 0,
        records["round"] * first,
    )
    return np.stack([number.astype(np.float64), *(np.bincount(place, column, len(number)) for column in columns)])

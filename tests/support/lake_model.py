"""What a lake must hold: plain lists of appends per stream, compared with a real lake row by row and byte by byte.

Every append holds steps with numbers that are never used again, so that each row that a lake returns can be identified.

    Append         the steps of each lane
    StreamState    all acknowledged appends that were not rolled back; the oldest `first` of them were dropped
    LakeModel      the streams, and what the one operation in flight would make of them
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from millpond.replay import Lake, LakeError, Schema, Steps
from millpond.replay.schema import FINAL, FIRST, HAS_FINAL, TERMINATED, TRUNCATED
from millpond.replay.tools import info, verify
from tests.support.naive_lake import Expected, NaiveLake, Step, assert_transition, observation

MIN_KEPT = 1  # appends of all streams that are left when some are dropped to keep a lake below its limit
Append = tuple[tuple[Step, ...], ...]  # by lane


@dataclass(frozen=True)
class StreamState:
    """The appends of a stream, and how many of the oldest were dropped to keep the lake below its limit."""

    lanes: int
    appends: tuple[Append, ...] = ()
    first: int = 0

    @property
    def position(self) -> int:
        return len(self.appends)

    def lane(self, lane: int, first: int | None = None) -> list[Step]:
        """Return the steps of a lane that are left."""
        kept = self.appends[self.first if first is None else first :]
        return [step for append in kept for step in append[lane]]

    def is_open(self, lane: int) -> bool:
        """Return True if the lane's episode goes on."""
        return bool(self.appends) and not (
            self.appends[-1][lane][-1].terminated or self.appends[-1][lane][-1].truncated
        )

    def transitions(self, stack: int = 1, n_step: int = 1) -> dict[int, Expected]:
        """Return all valid transitions by the number of their first observation: those whose every frame is left."""
        every = NaiveLake({("", lane): self.lane(lane, 0) for lane in range(self.lanes)})
        left = {step.number for lane in range(self.lanes) for step in self.lane(lane)} | {None}
        transitions = every.transitions(stack=stack, n_step=n_step, gamma=1.0, repeat=False)
        return {number: each for number, each in transitions.items() if number in left and left.issuperset(each.stack)}

    def episodes(self) -> set[tuple[int, ...]]:
        """Return the numbers of the steps of every complete episode."""
        complete = set()
        for lane in range(self.lanes):
            episode: list[int] = []
            for step in self.lane(lane):
                episode = [step.number] if step.first else [*episode, step.number] if episode else []
                if episode and (step.terminated or step.truncated):
                    complete.add(tuple(episode))
                    episode = []
        return complete


@dataclass
class LakeModel:
    """Acknowledged streams; `after`: the streams as they are once the operation in flight is acknowledged."""

    schema: Schema
    rng: np.random.Generator
    max_first: dict[str, int] = field(default_factory=dict)  # how many appends may be dropped, in a lake with a limit
    streams: dict[str, StreamState] = field(default_factory=dict)
    after: dict[str, StreamState] = field(default_factory=dict)
    cut_lanes: dict[str, set[int]] = field(default_factory=dict)
    numbers: int = 0

    def begin_append(self, stream: str, count: int, ends: float = 0.15) -> Steps:
        """Return random steps for the next append of a stream."""
        state = self.streams[stream]
        naive = NaiveLake({(stream, lane): state.lane(lane, 0)[-1:] for lane in range(state.lanes)}, self.numbers)
        steps = naive.generate(stream, state.lanes, count, self.rng, self.schema, fresh=False, ends=ends)
        self.numbers = naive.numbers
        added = []
        for lane in range(state.lanes):
            new = naive.lanes[stream, lane][-count:]
            if lane in self.cut_lanes.get(stream, ()):
                new[0] = replace(new[0], first=True)
            added.append(tuple(new))
        self.after = {stream: replace(state, appends=(*state.appends, tuple(added)))}
        return steps

    def begin_rollback(self, stream: str, position: int) -> None:
        state = self.streams[stream]
        self.after = {stream: replace(state, appends=state.appends[:position], first=min(state.first, position))}

    def acknowledge(self) -> None:
        """The operation in flight returned: from now on its outcome counts."""
        for stream in self.after:
            self.cut_lanes.pop(stream, None)
        self.streams.update(self.after)
        self.after = {}

    def refuse(self) -> None:
        """The operation in flight raised an error, and must have left the lake as it was."""
        self.after = {}

    def cut(self, stream: str) -> None:
        self.cut_lanes[stream] = set(range(self.streams[stream].lanes))

    def snapshot(self) -> LakeModel:
        """Return a copy that later operations do not change."""
        cuts = {name: set(lanes) for name, lanes in self.cut_lanes.items()}
        rng = np.random.default_rng(self.numbers)
        return replace(self, rng=rng, streams=dict(self.streams), after=dict(self.after), cut_lanes=cuts)

    def observe(self, lake: Lake, *, reappear: bool = False) -> dict[str, StreamState]:
        """Return each stream's state as a reader sees it; every other state than those allowed is an assertion error.

        `reappear`: after a power cut, appends that were dropped may be there again, complete.
        """
        observed = {}
        for name in sorted({*self.streams, *self.after, *lake.streams}):
            allowed = [each[name] for each in (self.streams, self.after) if name in each]
            if name not in lake.streams:
                assert not allowed or any(not state.appends for state in allowed), f"stream {name} has vanished"
                continue
            assert allowed, f"stream {name} was never written"
            observed[name] = self._observe_stream(lake, name, allowed, reappear)
        if any(state.first for state in observed.values()):
            assert sum(state.position - state.first for state in observed.values()) >= MIN_KEPT, "too much was dropped"
        return observed

    def _observe_stream(self, lake: Lake, name: str, allowed: list[StreamState], reappear: bool) -> StreamState:
        rows = read_rows(lake, name)
        lanes = allowed[0].lanes
        ids = [[row.number for row in rows if row.lane == lane] for lane in range(lanes)]
        problems = []
        for state in allowed:
            firsts = {append[0][0].number: number for number, append in enumerate(state.appends)}
            if not ids[0]:
                if not state.appends:
                    return state
                if state.position <= self.max_first.get(name, 0):
                    return replace(state, first=state.position)
                problems.append(f"no rows, {state.position} appends expected")
                continue
            first = firsts.get(ids[0][0])
            if first is None or (first < state.first and not reappear) or first > self.max_first.get(name, 0):
                dropped = f"{state.first} to {self.max_first.get(name, 0)} were dropped"
                problems.append(f"begins with step {ids[0][0]}, append {first}; {dropped}")
                continue
            expected = [[step.number for step in state.lane(lane, first)] for lane in range(lanes)]
            if ids != expected:
                missing = [sorted({*e} - {*i}) for e, i in zip(expected, ids, strict=True)]
                surplus = [sorted({*i} - {*e}) for e, i in zip(expected, ids, strict=True)]
                problems.append(f"missing {missing}, surplus {surplus}")
                continue
            seen = replace(state, first=first)
            _compare(rows, seen, self.schema)
            assert lake.positions()[name] == state.position, f"{name}: position {lake.positions()[name]}"
            return seen
        raise AssertionError(f"stream {name} is none of its {len(allowed)} possible states: {'; '.join(problems)}")


# -- reading a real lake


@dataclass(frozen=True)
class Row:
    """A step as the lake stores it: its flags, and the numbers of its observation and of the final one after it."""

    number: int
    lane: int
    action: Any
    reward: float
    flags: int
    final: int | None


def read_rows(lake: Lake, stream: str) -> list[Row]:
    """Read every record and frame of a stream. Observations are compared with those of their numbers, byte for byte."""
    which, count = lake.streams.index(stream), lake.view(stream).num_records
    if not count:
        return []
    assembler = lake.assembler()
    where, numbers = np.array([which], np.int32), np.arange(count)[None]
    records, damaged = assembler.records(where, numbers)
    observed, more = assembler.windows(where, numbers, records)
    assert not damaged, [str(each) for _, each in damaged]
    assert not more, [str(each) for _, each in more]
    records = records[0]
    is_final = records["flags"] & FINAL > 0
    final_numbers = _numbers(observed, lake.schema, is_final)
    ids = records["id"].copy()
    ids[is_final] = final_numbers
    expected = observation(ids, lake.schema)
    for spec in lake.schema.observation:
        array = expected if lake.schema.single else expected[spec.name]
        np.testing.assert_array_equal(observed[spec.name][0], array, err_msg=f"{stream}, field {spec.name}")
    rows = []
    for k in np.flatnonzero(~is_final).tolist():
        record = records[k]
        final = int(ids[k + 1]) if record["flags"] & HAS_FINAL else None
        flags = int(record["flags"]) & (FIRST | TERMINATED | TRUNCATED)
        rows.append(Row(int(ids[k]), int(record["lane"]), record["action"], float(record["reward"]), flags, final))
    return rows


def _numbers(observed: dict[str, Any], schema: Schema, which: Any) -> Any:
    """Return the numbers that final observations show in their first elements."""
    frames = observed[schema.observation[0].name][0][which]
    return frames.reshape(len(frames), math.prod(frames.shape[1:]))[:, :3].astype(np.int64) @ np.array([10_000, 100, 1])


def _compare(rows: list[Row], state: StreamState, schema: Schema) -> None:
    for lane in range(state.lanes):
        mine = [row for row in rows if row.lane == lane]
        for row, step in zip(mine, state.lane(lane), strict=True):
            flags = step.first * FIRST + step.terminated * TERMINATED + step.truncated * TRUNCATED
            assert row.flags == flags, f"step {step.number}: flags {row.flags}, not {flags}"
            assert row.reward == step.reward
            assert np.all(row.action == step.action)
            assert row.final == step.final


def check_counts(lake: Lake, states: dict[str, StreamState], stack: int = 2) -> None:
    """Compare the numbers of transitions, and all complete episodes, with those of the states."""
    for depth, n_step in ((1, 1), (stack, 1), (1, 3)):
        expected = sum(len(state.transitions(depth, n_step)) for state in states.values())
        assert lake.transitions(depth, n_step) == expected, f"transitions with stack={depth}, n_step={n_step}"
    for name, state in states.items():
        episodes = [tuple(episode.record["id"].tolist()) for episode in lake.episodes(name)]
        assert len(episodes) == len(set(episodes)), "an episode was returned twice"
        assert set(episodes) == state.episodes()


def check_sample(
    lake: Lake, states: dict[str, StreamState], rng: np.random.Generator, n: int, *, stack: int = 2, n_step: int = 1
) -> set[int]:
    """Draw n transitions and compare each with the expected one; return their numbers."""
    expected: dict[int, Expected] = {}
    for state in states.values():
        expected.update(state.transitions(stack, n_step))
    if not expected:
        return set()
    batch = lake.sample(n, rng, stack=stack, n_step=n_step)
    numbers = batch.record["id"].tolist()
    for i, number in enumerate(numbers):
        assert number in expected, f"transition {number} does not exist"
        assert_transition(batch, i, expected[number], lake.schema, stacked=True)
    return set(numbers)


def check_reopened(folder: Path, model: LakeModel, *, reappear: bool = False) -> dict[str, StreamState]:
    """Open a lake after a crash: a reader, `verify`, a writer of each stream, which appends once more.

    Returns the states that were recovered. The model afterwards holds the lake as it then is.
    """
    try:
        lake = Lake(folder)
    except LakeError:
        assert not any(state.appends for state in model.streams.values()), "the lake has vanished"
        lake = Lake.create(folder, model.schema)
    with lake:
        seen = model.observe(lake, reappear=reappear)
        check_counts(lake, seen)
        verify(folder)  # notes are allowed, and damage of what nobody needs; no error
        recovered: dict[str, StreamState] = {}
        for name, state in sorted(model.streams.items()):
            with lake.writer(name, state.lanes, continue_episodes=True) as writer:
                lake.refresh()
                recovered |= {name: model.observe(lake, reappear=reappear)[name]}
                assert writer.position == recovered[name].position
                rolling_back = name in model.after and model.after[name].position < state.position
                before = seen[name].position if name in seen else 0
                assert recovered[name].position >= before or rolling_back, f"{name}: rows were seen, then vanished"
        report = verify(folder)
        assert report.good, report.lines()
        model.streams.update(recovered)
        model.refuse()
        model.max_first = dict.fromkeys(model.max_first, 10**9)  # more may be dropped from here on
        lake.refresh()
        check_counts(lake, model.observe(lake))
        for name, state in sorted(recovered.items()):
            model.cut_lanes.pop(name, None)
            if state.first == state.position:  # nothing is left that the next step could continue
                model.cut(name)
            steps = model.begin_append(name, 2)
            with lake.writer(name, state.lanes, continue_episodes=True) as writer:
                assert writer.append(steps).commits == state.position + 1
            model.acknowledge()
        lake.refresh()
        final = model.observe(lake, reappear=True)
        model.streams.update(final)
        check_counts(lake, final)
        check_sample(lake, final, np.random.default_rng(0), 8)
        assert sum(stream.episodes for stream in info(folder).streams) == sum(len(s.episodes()) for s in final.values())
    return recovered

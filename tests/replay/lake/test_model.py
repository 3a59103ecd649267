"""Random sessions with a lake, compared with lists: append, sample, roll back, drop, compact, reopen, crash, two readers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from millpond.replay import Lake, LakeError, Writer
from millpond.replay.tools import compact
from tests.support.disk_calls import DiskCalls, without_syncs
from tests.support.faulty_disk import DiskFaults, Killed
from tests.support.lake_model import LakeModel, StreamState, check_counts, check_reopened, check_sample
from tests.support.naive_lake import SCHEMAS, assert_transition

LANES = {"a": 2, "b": 1}
SEGMENT_BYTES = {"frame": 2_000, "mixed": 3_500, "vector": 600}
streams = st.sampled_from(sorted(LANES))
readers = st.integers(0, 1)


class LakeMachine(RuleBasedStateMachine):
    """A lake with two writers and two readers. `seen` is what each reader must see until it refreshes."""

    @initialize(schema=st.sampled_from(sorted(SCHEMAS)), limited=st.booleans(), seed=st.integers(0, 1_000))
    def create(self, schema: str, limited: bool, seed: int) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "lake"
        self.limited = limited
        segment_bytes = SEGMENT_BYTES[schema]
        max_first = dict.fromkeys(LANES, 10**9) if limited else {}
        self.model = LakeModel(SCHEMAS[schema], np.random.default_rng(seed), max_first=max_first)
        self.rng = np.random.default_rng(seed)
        self.calls = DiskCalls(self.root)
        self.calls.__enter__()
        max_bytes = 12 * segment_bytes if limited else None
        Lake.create(self.folder, self.model.schema, max_bytes=max_bytes, segment_bytes=segment_bytes).close()
        self.readers = [Lake(self.folder), Lake(self.folder)]
        self.seen: list[dict[str, StreamState]] = [{}, {}]
        self.writers: dict[str, Writer] = {}

    def teardown(self) -> None:
        if not hasattr(self, "root"):
            return
        try:
            for writer in self.writers.values():
                writer.close()
            if self.model.streams:
                check_reopened(self.folder, self.model)
                self.every_transition_is_drawn()
        finally:
            for reader in self.readers:
                reader.close()
            self.calls.__exit__(None, None, None)
            shutil.rmtree(self.root)

    def every_transition_is_drawn(self) -> None:
        """Assert that as many draws as a uniform sampler needs, with a large margin, return every transition."""
        with Lake(self.folder) as lake:
            states = self.model.observe(lake)
            expected = {number for state in states.values() for number in state.transitions(2)}
            draws = int(len(expected) * (np.log(len(expected) + 1) + 20))
            drawn = lake.sample(draws, self.rng, stack=2).record["id"].tolist() if expected else []
            assert set(drawn) == expected

    def writer(self, stream: str, *, continue_episodes: bool = True) -> Writer:
        if stream not in self.writers:
            state = self.model.streams.setdefault(stream, StreamState(LANES[stream]))
            if not continue_episodes or state.first == state.position:
                self.model.cut(stream)
            with Lake(self.folder) as lake:
                begin_new = stream in self.model.cut_lanes
                self.writers[stream] = lake.writer(stream, LANES[stream], continue_episodes=not begin_new)
            assert self.writers[stream].position == state.position
        return self.writers[stream]

    def observe(self) -> None:
        """Compare the whole lake with the model, and note what was dropped."""
        with Lake(self.folder) as lake:
            self.model.streams.update(self.model.observe(lake))

    # -- writers

    @rule(stream=streams, count=st.integers(1, 6), ends=st.sampled_from([0.0, 0.15, 0.6]))
    def append(self, stream: str, count: int, ends: float) -> None:
        writer = self.writer(stream)
        ack = writer.append(self.model.begin_append(stream, count, ends))
        self.model.acknowledge()
        assert ack.commits == writer.position == self.model.streams[stream].position
        self.observe()

    @rule(stream=streams, back=st.integers(0, 5))
    def roll_back(self, stream: str, back: int) -> None:
        writer = self.writer(stream)
        state = self.model.streams[stream]
        position = max(state.position - back, 0)
        if position < state.position and state.first and position <= state.first:
            with pytest.raises(LakeError, match="was dropped"):
                writer.rollback(position)
            self.writers.pop(stream).close()
            return
        self.model.begin_rollback(stream, position)
        assert writer.rollback(position) == state.position - position
        self.model.acknowledge()
        self.observe()

    @rule(stream=streams)
    def cut(self, stream: str) -> None:
        self.writer(stream).cut()
        self.model.cut(stream)

    @rule(stream=streams, continue_episodes=st.booleans())
    def reopen(self, stream: str, continue_episodes: bool) -> None:
        if stream in self.writers:
            self.writers.pop(stream).close()
        if continue_episodes:
            self.model.cut_lanes.pop(stream, None)
        self.writer(stream, continue_episodes=continue_episodes)
        self.observe()

    @rule(keep=st.integers(1, 2))
    def compact(self, keep: int) -> None:
        compact(self.folder, keep=keep)
        self.observe()

    @rule(stream=streams, count=st.integers(1, 4), call=st.integers(1, 40), torn=st.booleans())
    def crash(self, stream: str, count: int, call: int, torn: bool) -> None:
        """Kill the writer at one of its calls in an append; the append is there completely or not at all."""
        writer = self.writer(stream)
        self.calls.faults = DiskFaults("torn kill" if torn else "kill", call)
        try:
            writer.append(self.model.begin_append(stream, count))
        except Killed:
            writer.close()  # of its descriptors; nothing changes any more
        else:
            self.model.acknowledge()
        finally:
            self.calls.faults = None
            self.writers.pop(stream).close()
        self.observe()
        self.model.cut_lanes.pop(stream, None)
        self.writers[stream] = self.reopened_after_crash(stream)
        self.observe()

    def reopened_after_crash(self, stream: str) -> Writer:
        with Lake(self.folder) as lake:
            before = self.model.observe(lake)
            if self.is_empty(before.get(stream)):
                self.model.cut(stream)
            begin_new = stream in self.model.cut_lanes
            writer = lake.writer(stream, LANES[stream], continue_episodes=not begin_new)
            lake.refresh()
            self.model.streams.update(self.model.observe(lake))
        assert writer.position == self.model.streams[stream].position
        assert writer.position >= (before[stream].position if stream in before else 0)
        self.model.refuse()
        return writer

    @staticmethod
    def is_empty(state: StreamState | None) -> bool:
        return state is None or state.first == state.position

    # -- readers

    @rule(reader=readers)
    def refresh(self, reader: int) -> None:
        self.readers[reader].refresh()
        self.seen[reader] = self.model.observe(self.readers[reader])
        check_counts(self.readers[reader], self.seen[reader])
        assert not self.readers[reader].refresh()

    @precondition(lambda self: any(state.appends for state in self.model.streams.values()))
    @rule(reader=readers, stack=st.integers(1, 3), n_step=st.integers(1, 3), n=st.integers(1, 12))
    def sample(self, reader: int, stack: int, n_step: int, n: int) -> None:
        """Draw from a reader that may be behind the writers: all it returns is of its last refresh, or of now."""
        lake = self.readers[reader]
        candidates = []
        for states in (self.seen[reader], self.model.streams):
            expected = {}
            for state in states.values():
                expected.update(state.transitions(stack, n_step))
            candidates.append(expected)
        if not candidates[0]:
            self.refresh(reader)
            check_sample(lake, self.seen[reader], self.rng, n, stack=stack, n_step=n_step)
            return
        if not candidates[1]:
            return
        batch = lake.sample(n, self.rng, stack=stack, n_step=n_step)
        numbers = batch.record["id"].tolist()
        matching = [each for each in candidates if each.keys() >= set(numbers)]
        assert matching, f"transitions {numbers} are neither of the last refresh nor of now"
        for i, number in enumerate(numbers):
            assert_transition(batch, i, matching[0][number], lake.schema, stacked=True)
        if lake.positions() != {name: state.position for name, state in self.seen[reader].items()}:
            self.refresh(reader)  # files that it needed were gone, so it has refreshed itself


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    with without_syncs():
        run_state_machine_as_test(
            LakeMachine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                derandomize=derandomize,
                suppress_health_check=checks,
            ),
        )


def test_random_sessions_agree_with_plain_lists() -> None:
    run(40, 25, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_many_random_sessions_agree_with_plain_lists() -> None:
    run(300, 60, derandomize=False)

"""A scripted session with a lake: append, roll back, drop, compact, cut, reopen; with a model of what it must hold.

session = LakeSession(folder, SCRIPTS["plain"], seed=0)
session.run()                       # errors are expected where a disk fails; each is checked, and the session goes on
check_reopened(session.folder, session.model)

The same script makes the same calls, so that a fault at call n hits the same place every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from millpond.errors import MillpondError
from millpond.replay import Lake, Schema, Writer
from millpond.replay.tools import compact
from tests.support.lake_model import LakeModel, StreamState
from tests.support.naive_lake import FRAME, MIXED, VECTOR

LANES = {"a": 2, "b": 1}
MAX_ATTEMPTS = 3  # to open a writer, on a disk that fails once


@dataclass(frozen=True)
class Script:
    """Operations, one per word: `a3` appends 3 steps to stream a, `a-2` rolls back 2 appends, `a|` cuts its episodes,
    `a~` closes its writer (the next one continues the episodes), `a!` likewise (the next one does not), `compact`.
    """

    words: str
    schema: Schema
    segment_bytes: int
    max_bytes: int | None = None


SCRIPTS = {
    "plain": Script(
        "a3 a4 b5 a3 a2 compact a3 b4 a| a3 a4 a-2 a3 a5 a! a3 compact a-3 a2 b-1 b3 a~ a2 a4 compact a3", FRAME, 3_000
    ),
    "mixed": Script("b4 a2 a3 a3 compact a2 a-2 a3 b~ a4 b3 compact a2 b2", MIXED, 4_000),
    "numbers": Script("a3 a4 a2 a-1 a3 a~ a4 a3 a-2 a2", VECTOR, 700),
    "limited": Script(
        "b6 b8 b8 b8 b8 b8 b~ a3 a3 compact a3 a3 a3 a3 a-1 a3 a3 b~ a3 a3 b8 a3 a3 a-1 a3", FRAME, 2_000, 16_000
    ),
}


@dataclass
class LakeSession:
    """A lake, its writers and its model. `on_change` is called whenever the model has changed."""

    folder: Path
    script: Script
    seed: int = 0
    on_change: Callable[[LakeModel], None] = lambda model: None
    max_first: Mapping[str, int] = field(default_factory=dict)
    stop_at_first_error: bool = False  # the caller gives up; what was in flight may be there or not
    errors: list[str] = field(default_factory=list)
    acknowledged: int = 0
    stopped: bool = False  # the disk failed for good
    refused: dict[str, StreamState] = field(default_factory=dict)  # each stream with its last append, if that failed
    # Each stream as it was seen after a rollback that failed, and as it was before it.
    rolled_back: dict[str, tuple[StreamState, StreamState]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.model = LakeModel(self.script.schema, rng, max_first=dict(self.max_first))
        self._writers: dict[str, Writer] = {}
        self._lake: Lake | None = None

    def run(self) -> None:
        """Follow the script. An operation that fails must leave the lake valid, and the next one must work."""
        try:
            for word in self.script.words.split():
                if not self.stopped:
                    self._do(word)
        finally:
            self.close()

    def close(self) -> None:
        for writer in self._writers.values():
            self._quietly(writer.close)
        self._writers = {}
        if self._lake is not None:
            self._lake.close()
            self._lake = None

    def model_after_power_cut(self) -> LakeModel:
        """Return the model at the end.

        The append that failed last may be there, if the power failed before it was undone; and so may appends that a failed
        rollback has removed, if nothing was written after it.
        """
        model = self.model.snapshot()
        for stream, (after, before) in self.rolled_back.items():
            if model.streams[stream] == after:
                model.after.setdefault(stream, before)
        for stream, state in self.refused.items():
            if state.appends[:-1] == model.streams[stream].appends:
                model.after.setdefault(stream, state)
        return model

    def _quietly(self, work: Callable[[], None]) -> bool:
        try:
            work()
            return True
        except (OSError, MillpondError) as error:
            self.errors.append(repr(error))
            return False

    # -- operations

    def _do(self, word: str) -> None:
        if word == "compact":
            if self._quietly(lambda: self._ignore(compact(self.folder))):
                self.acknowledged += 1
            self.stopped |= bool(self.errors) and self.stop_at_first_error
            self._after_operation()
            return
        stream, what = word[0], word[1:]
        if what in ("~", "!"):
            self._close_writer(stream)
            if what == "!":
                self.model.cut(stream)
        elif what == "|":
            writer = self._writer(stream)
            if writer is not None:
                writer.cut()
                self.model.cut(stream)
        elif what.startswith("-"):
            self._rollback(stream, int(what[1:]))
        else:
            self._append(stream, int(what))

    @staticmethod
    def _ignore(_: object) -> None:
        return

    def _append(self, stream: str, count: int) -> None:
        writer = self._writer(stream)
        if writer is None:
            return
        before = self.model.streams[stream]
        steps = self.model.begin_append(stream, count)
        self.on_change(self.model)
        try:
            ack = writer.append(steps)
        except (OSError, MillpondError) as error:
            self.errors.append(repr(error))
            if "open a new writer" in str(error):  # an earlier operation broke it
                self._close_writer(stream)
            self._after_failure()
            return
        assert ack.commits == before.position + 1
        assert writer.position == ack.commits
        self.model.acknowledge()
        self.acknowledged += 1
        self._after_operation()

    def _rollback(self, stream: str, back: int) -> None:
        writer = self._writer(stream)
        if writer is None:
            return
        position = max(self.model.streams[stream].position - back, 0)
        self.model.begin_rollback(stream, position)
        self.on_change(self.model)
        try:
            writer.rollback(position)
        except (OSError, MillpondError) as error:
            self.errors.append(repr(error))
            self._after_failure()
            return
        assert writer.position == position
        self.model.acknowledge()
        self.acknowledged += 1
        self._after_operation()

    def _after_operation(self) -> None:
        """Take over what was dropped, after comparing the whole lake with the model."""
        if self._lake is None:
            return
        with Lake(self.folder) as lake:
            seen = self.model.observe(lake)
        self.model.streams.update(seen)
        self.on_change(self.model)

    def _after_failure(self) -> None:
        """Compare the lake with the model: an append that failed is not there, a rollback was done or not."""
        if self.stop_at_first_error:
            self.stopped = True
            return
        before = dict(self.model.streams)
        attempted = list(self.model.after)
        for stream in attempted:
            if self.model.after[stream].position > before[stream].position:
                self.refused[stream] = self.model.after.pop(stream)
        with Lake(self.folder) as lake:
            seen = self.model.observe(lake)
        for stream in attempted:
            if seen[stream].position < before[stream].position:
                self.rolled_back[stream] = seen[stream], before[stream]
        self.model.streams.update(seen)
        self.model.refuse()
        self.on_change(self.model)

    # -- writers

    def _writer(self, stream: str) -> Writer | None:
        """Return the open writer of a stream; None if the disk does not let one be opened."""
        if stream not in self._writers:
            for _ in range(MAX_ATTEMPTS):
                if self._quietly(lambda: self._open(stream)):
                    return self._writers[stream]
            self.stopped = True
            return None
        return self._writers[stream]

    def _open(self, stream: str) -> None:
        if self._lake is None:
            script = self.script
            self._lake = Lake.create(
                self.folder, script.schema, max_bytes=script.max_bytes, segment_bytes=script.segment_bytes
            )
        begin_new = stream in self.model.cut_lanes
        state = self.model.streams.setdefault(stream, StreamState(LANES[stream]))
        self.on_change(self.model)
        if state.first == state.position:  # nothing is left that the next step could continue
            self.model.cut(stream)
        writer = self._lake.writer(stream, LANES[stream], continue_episodes=not begin_new)
        assert writer.position == self.model.streams[stream].position
        self._writers[stream] = writer

    def _close_writer(self, stream: str) -> None:
        if stream in self._writers:
            self._quietly(self._writers.pop(stream).close)

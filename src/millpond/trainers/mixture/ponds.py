"""The ponds of all agents, the lake, and the thread that pours ponds into it.

Every agent has its own stream of the lake, written by the rank that has the agent. The layout of a stream does not
depend on when a pond was poured: each collection is divided into the same appends, so that a resumed run draws from the
lake what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from millpond.distributed import ALONE, Ranks
from millpond.replay import Lake, LakeError, Steps, Writer
from millpond.replay.lake.format import read_log
from millpond.replay.pond import Pond
from millpond.replay.schema import FINAL
from millpond.replay.transfer import pour
from millpond.sizes import divisors
from millpond.trainers.mixture.ranks import refresh_together


@dataclass(frozen=True)
class StreamConfig:
    """A stream: its name, one lane per env, and the size of its pond."""

    name: str
    lanes: int
    pond_records: int


def steps_per_append(num_steps: int, lanes: int, acknowledge_every: int) -> int:
    """Return the steps of one append: at most `acknowledge_every`, and a collection is a whole number of appends."""
    fitting = [steps for steps in divisors(num_steps) if steps * lanes <= acknowledge_every]
    return max(fitting, default=1) * lanes


class Ponds:
    """A pond and a writer for each stream of this rank. Call `open` once before adding."""

    def __init__(
        self,
        lake: Lake,
        streams: list[StreamConfig],
        *,
        num_steps: int,
        acknowledge_every: int,
        collections_per_pour: int,
        device: torch.device,
        savable: bool,
        ranks: Ranks = ALONE,
    ) -> None:
        self.lake, self.streams, self.savable, self.ranks = lake, streams, savable, ranks
        self.collections_per_pour = collections_per_pour
        self.ponds = [
            Pond.init(lake.schema, each.pond_records, lanes=each.lanes, device=device, guarded=True) for each in streams
        ]
        self._steps_per_append = [steps_per_append(num_steps, each.lanes, acknowledge_every) for each in streams]
        self._writers: list[Writer] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="pour")
        self._pouring: list[Future[None]] = []
        self._all_poured = True
        self._collections = 0  # in the ponds since they were last poured
        self._positions: dict[str, int] = {}
        self._pour_seconds = 0.0
        # Poured into the lake by this rank in the whole run; after a resume rank 0 has the sum of all ranks.
        self.env_steps = 0
        self.tail_env_steps = 0  # of these, collected between a checkpoint and a crash, by agents that are lost

    def open(self) -> None:
        """Open the writers at the positions of the checkpoint.

        If the environments can be restored to that moment, their streams are rolled back, and everything after it is
        collected again. Otherwise new episodes start, and the steps collected after the checkpoint stay in the lake.
        """
        for stream in self.streams:
            writer = self.lake.writer(stream.name, stream.lanes, continue_episodes=self.savable)
            self._writers.append(writer)
            position = self._positions.get(stream.name, 0)
            if writer.position < position:
                raise LakeError(
                    f"stream {stream.name!r} of {self.lake.folder} has {writer.position} appends, the checkpoint has "
                    f"{position}: this is not the lake that the run wrote; restore that one"
                )
            if self.savable and writer.position > position:
                removed = writer.rollback(position)
                warnings.warn(
                    f"lake: stream {stream.name} rolled back by {removed} appends, which the run will collect again",
                    stacklevel=2,
                )
        refresh_together(self.ranks, self.lake)
        if not self.savable:
            self._count_tails()

    def _count_tails(self) -> None:
        tail = 0
        for stream in self.streams:
            reader = self.lake.reader(stream.name)
            entries = read_log(reader.folder, self.lake.schema, self._positions.get(stream.name, 0)).entries
            records = int(entries["lane_rows"].sum())
            flags = reader.view.flags[reader.view.num_records - records :]
            tail += int(np.count_nonzero(flags & FINAL == 0))
        if tail:
            warnings.warn(
                f"lake: {tail:,} env steps collected after the checkpoint stay in it, though the agents that took them "
                "are lost; they count as lake/tail_env_steps",
                stacklevel=2,
            )
        self.env_steps += tail
        self.tail_env_steps += tail

    def metrics(self) -> dict[str, float]:
        """Return the size of the lake, if all ponds are poured: while they are being poured, numbers are not exact."""
        if not self._all_poured:
            return {}
        own = (self.env_steps, self.tail_env_steps, sum(writer.stream.stored_bytes() for writer in self._writers))
        env_steps, tail, stored = (sum(column) for column in zip(*self.ranks.all_gather(own), strict=True))
        return {
            "lake/env_steps": env_steps,
            "lake/tail_env_steps": tail,
            "lake/bytes": stored,
            "time/pouring": self._pour_seconds,
        }

    # -- adding and pouring

    def add(self, collections: list[Steps]) -> None:
        """Add one collection of every stream of this rank to its pond."""
        self.wait()
        self._all_poured = False
        for pond, steps in zip(self.ponds, collections, strict=True):
            pond.add(steps)
        self._collections += 1

    def pour_full(self) -> None:
        """Start to pour the ponds into the lake, concurrently with training, if another collection might not fit."""
        if self._collections >= self.collections_per_pour:
            self._start_pouring()

    def flush(self) -> None:
        """Pour everything of all ranks into the lake, wait for it, and refresh the lake."""
        if not self._all_poured:
            self._start_pouring()
            self.wait()
            refresh_together(self.ranks, self.lake)
            self._all_poured = True

    def wait(self) -> None:
        """Wait until nothing is being poured; raise errors of the pouring thread."""
        while self._pouring:
            self._pouring.pop(0).result()

    def _start_pouring(self) -> None:
        self.wait()
        self._collections = 0
        for pond, writer, steps in zip(self.ponds, self._writers, self._steps_per_append, strict=True):
            self._pouring.append(self._pool.submit(self._pour, pond, writer, steps, pond.heads))

    def _pour(self, pond: Pond, writer: Writer, steps: int, heads: Any) -> None:
        start = time.perf_counter()
        self.env_steps += sum(ack.steps for ack in pour(pond, writer, steps_per_append=steps, heads=heads))
        self._pour_seconds += time.perf_counter() - start

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for writer in self._writers:
            writer.close()
        self.lake.close()

    # -- state: positions in the lake only, since the ponds are poured first

    def state_dict(self) -> dict[str, Any]:
        self.flush()
        own = {stream.name: w.position for stream, w in zip(self.streams, self._writers, strict=True)}
        positions, env_steps, tail = zip(
            *self.ranks.all_gather((own, self.env_steps, self.tail_env_steps)), strict=True
        )
        of_all = {name: position for of_rank in positions for name, position in of_rank.items()}
        return {"positions": of_all, "env_steps": sum(env_steps), "tail_env_steps": sum(tail)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._positions = dict(state["positions"])
        if self.ranks.first:
            self.env_steps, self.tail_env_steps = int(state["env_steps"]), int(state["tail_env_steps"])

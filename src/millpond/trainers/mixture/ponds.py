"""The ponds of all agents, the lake behind them, and the thread that pours from one into the other.

Every agent has a stream of its own in the lake, which the rank that has the agent writes. What lies where in a stream
does not depend on when a pond was poured out: each collection is cut into the same appends, so that a run that was
stopped and taken up again draws from the lake what an uninterrupted one would have drawn.
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
class Stream:
    """Who writes a stream: a name, its envs, and the rows of its pond."""

    name: str
    lanes: int
    pond_rows: int


def steps_at_once(num_steps: int, lanes: int, acknowledge_every: int) -> int:
    """Steps of one append: at most `acknowledge_every` of all lanes, and a collection is a whole number of appends."""
    fitting = [part for part in divisors(num_steps) if part * lanes <= acknowledge_every]
    return max(fitting, default=1) * lanes


class Ponds:
    """A pond and a writer for each stream of this rank. `open` must be called, once, before anything is added."""

    def __init__(
        self,
        lake: Lake,
        streams: list[Stream],
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
            Pond.init(lake.schema, each.pond_rows, lanes=each.lanes, device=device, guarded=True) for each in streams
        ]
        self._pieces = [steps_at_once(num_steps, each.lanes, acknowledge_every) for each in streams]
        self._writers: list[Writer] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="pour")
        self._pouring: list[Future[None]] = []
        self._settled = True
        self._collections = 0  # in the ponds since they were last poured out
        self._positions: dict[str, int] = {}
        self._pour_seconds = 0.0
        # Poured into the lake by this rank over the whole run; rank 0 goes on with the sum of a checkpoint.
        self.env_steps = 0
        self.tail_env_steps = 0  # of these, taken between a checkpoint and a crash: the agents that took them are lost

    def open(self) -> None:
        """Begin to write where the checkpoint says that the streams ended.

        Where environments were set back to that moment too, so are their streams, and everything is collected again. Other
        environments start fresh episodes; what they did after the checkpoint was real, and stays in the lake.
        """
        for stream in self.streams:
            writer = self.lake.writer(stream.name, stream.lanes, continue_episodes=self.savable)
            self._writers.append(writer)
            position = self._positions.get(stream.name, 0)
            if writer.position < position:
                raise LakeError(
                    f"stream {stream.name!r} of {self.lake.folder} has {writer.position} appends, the checkpoint knew "
                    f"{position}: the lake is not the one that this run left behind; put that one back"
                )
            if self.savable and writer.position > position:
                taken = writer.rollback(position)
                warnings.warn(
                    f"lake: stream {stream.name} rolled back by {taken} appends, which the run will make again",
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
            rows = int(entries["lane_rows"].sum())
            flags = reader.view.flags[reader.view.num_records - rows :]
            tail += int(np.count_nonzero(flags & FINAL == 0))
        if tail:
            warnings.warn(
                f"lake: {tail:,} env steps from after the checkpoint stay there, though the agents that took them are "
                "lost; they count as lake/tail_env_steps",
                stacklevel=2,
            )
        self.env_steps += tail
        self.tail_env_steps += tail

    def metrics(self) -> dict[str, float]:
        """How the lake grows; only when the ponds are empty, since while they are poured out nobody knows exactly."""
        if not self._settled:
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
        """One collection of every stream of this rank, into its pond."""
        self.wait()
        self._settled = False
        for pond, steps in zip(self.ponds, collections, strict=True):
            pond.add(steps)
        self._collections += 1

    def pour_full(self) -> None:
        """Where one more collection might not fit, begin to empty the ponds into the lake, beside the training."""
        if self._collections >= self.collections_per_pour:
            self._begin_to_pour()

    def flush(self) -> None:
        """Everything of all ranks into the lake, acknowledged; readers see it."""
        if not self._settled:
            self._begin_to_pour()
            self.wait()
            refresh_together(self.ranks, self.lake)
            self._settled = True

    def wait(self) -> None:
        """Until nothing is being poured. What went wrong there is raised here."""
        while self._pouring:
            self._pouring.pop(0).result()

    def _begin_to_pour(self) -> None:
        self.wait()
        self._collections = 0
        for pond, writer, piece in zip(self.ponds, self._writers, self._pieces, strict=True):
            self._pouring.append(self._pool.submit(self._pour, pond, writer, piece, pond.heads))

    def _pour(self, pond: Pond, writer: Writer, piece: int, heads: Any) -> None:
        began = time.perf_counter()
        self.env_steps += sum(ack.steps for ack in pour(pond, writer, steps_at_once=piece, heads=heads))
        self._pour_seconds += time.perf_counter() - began

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for writer in self._writers:
            writer.close()
        self.lake.close()

    # -- state: the ponds are poured out, so that positions in the lake are all there is to keep

    def state_dict(self) -> dict[str, Any]:
        self.flush()
        own = {stream.name: w.position for stream, w in zip(self.streams, self._writers, strict=True)}
        positions, env_steps, tail = zip(
            *self.ranks.all_gather((own, self.env_steps, self.tail_env_steps)), strict=True
        )
        together = {name: position for part in positions for name, position in part.items()}
        return {"positions": together, "env_steps": sum(env_steps), "tail_env_steps": sum(tail)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._positions = dict(state["positions"])
        if self.ranks.first:
            self.env_steps, self.tail_env_steps = int(state["env_steps"]), int(state["tail_env_steps"])

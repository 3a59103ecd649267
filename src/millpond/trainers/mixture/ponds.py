"""The ponds of all agents, the lake, the thread that pours ponds into it, and the BigPond that is filled from it.

Every agent has its own stream of the lake, written by the rank that has the agent. The layout of a stream does not
depend on when a pond was poured: each collection is divided into the same appends, so that a resumed run draws from the
lake what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from millpond.config import MixtureRecipe
from millpond.config.mixture import longest_n_step, state_shape
from millpond.distributed import ALONE, Ranks
from millpond.planner import MixturePlan
from millpond.replay import Lake, LakeError, Schema, Steps, Writer
from millpond.replay.blocks import BlockBatch, list_blocks, read_blocks
from millpond.replay.lake.log import read_log
from millpond.replay.pond import Pond, PondBatch, separate_masks
from millpond.replay.schema import FINAL
from millpond.replay.steps import join_lanes
from millpond.replay.transfer import fill, fill_blocks, pour, restore_rings
from millpond.sizes import divisors
from millpond.trainers.common.envs import make_spec
from millpond.trainers.mixture.ranks import agent_name, agents_of_rank, refresh_together

FILL, BLOCKS = 4, 6  # purposes of seeds, besides those in `agents`


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
    """A pond and a writer for each stream of this rank. Call `open` once before adding.

    These ponds are in the memory of the CPU: steps come from envs, and the lake is on disk.
    """

    def __init__(
        self,
        lake: Lake,
        streams: list[StreamConfig],
        *,
        num_steps: int,
        acknowledge_every: int,
        collections_per_pour: int,
        savable: bool,
        ranks: Ranks = ALONE,
    ) -> None:
        self.lake, self.streams, self.savable, self.ranks = lake, streams, savable, ranks
        self.collections_per_pour = collections_per_pour
        self.ponds = [Pond.init(lake.schema, each.pond_records, lanes=each.lanes, guarded=True) for each in streams]
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


def make_ponds(recipe: MixtureRecipe, plan: MixturePlan, folder: Path, ranks: Ranks = ALONE) -> Ponds | None:
    """Build the ponds of this rank's players and open the lake; None in mode single, which replays nothing."""
    if plan.mode == "single":
        return None
    spec = make_spec(recipe.env, stacked=False)
    schema = Schema.from_spec(spec, state_shape=state_shape(recipe))
    lake = Lake.create(folder, schema, max_bytes=recipe.lake.max_bytes)
    agents = agents_of_rank(ranks, plan.agents)
    streams = [StreamConfig(agent_name(number), plan.envs_per_agent, plan.pond_rows) for number in agents]
    if plan.own_envs and ranks.first:
        streams.append(StreamConfig("big", plan.own_envs, plan.own_pond_rows))
    return Ponds(
        lake,
        streams,
        num_steps=recipe.pqn.num_steps,
        acknowledge_every=recipe.lake.acknowledge_every,
        collections_per_pour=plan.collections_per_pour,
        savable=spec.savable,
        ranks=ranks,
    )


class BigPond:
    """The BigAgent's replay buffer: `fill(round)` or `add(steps)`, then `sample(rng)`, or `next_blocks` for returns.

    In mode rounds it is filled uniformly from the lake in each round. In mode live it is a ring that the steps of all
    agents are added to as they are collected. Its content is not in checkpoints: it can be restored from the lake.
    """

    def __init__(self, recipe: MixtureRecipe, plan: MixturePlan, lake: Lake, device: torch.device) -> None:
        self.recipe, self.plan, self.lake, self.device = recipe, plan, lake, device
        self.stack = recipe.env.frame_stack if recipe.env.frame_stack > 1 else None
        self.pond: Pond | None = None
        self.order = BlockOrder(recipe.seed)

    @property
    def empty(self) -> bool:
        return self.pond is None

    def fill(self, round_number: int, *, begins: bool = True) -> int:
        """Fill with transitions of the lake, drawn uniformly; return their number. A function of lake, seed and round.

        `begins`: it is the first fill of this round, and none that repeats it after a resume.
        """
        dqn = self.recipe.dqn
        n_step = longest_n_step(dqn.target, dqn.n_step, dqn.n_step_from)
        count = min(self.plan.big_pond_transitions, self.lake.transitions(self.stack, n_step))
        if count == 0:
            raise LakeError(f"{self.lake.folder} has no transitions with stack {self.stack or 1} and n_step {n_step}")
        self.pond = None  # free its memory before allocating the next
        records = min(self.plan.big_pond_rows, sum(self.lake.view(name).num_records for name in self.lake.streams))
        self.pond = Pond.init(self.lake.schema, records, device=self.device)
        rng = np.random.default_rng([self.recipe.seed, FILL, round_number])
        if dqn.target == "n_step":
            fill(self.pond, self.lake, count, rng, stack=self.stack, n_step=n_step)
        else:
            count = self._fill_with_blocks(count, rng)
            if begins:
                self.order.begin()
            self._list_blocks()
        self.lake.release()
        return count

    def _fill_with_blocks(self, count: int, rng: np.random.Generator) -> int:
        assert self.pond is not None
        rounds, length = self.recipe.mixture.big_pond_rounds, self.recipe.dqn.block_steps
        newest = None if rounds is None else rounds * self.plan.collections_per_round * self.recipe.pqn.num_steps
        most = max(1, count - length + 1)  # the last block drawn may exceed it
        return fill_blocks(self.pond, self.lake, most, rng, length=length, stack=self.stack, newest=newest)

    def add(self, steps: list[Steps]) -> None:
        """Add one collection of every stream (mode live)."""
        self._ring().add(join_lanes(steps))
        if self.recipe.dqn.target != "n_step":
            self.order.begin()
            self._list_blocks()

    def restore(self, streams: list[str], *, continue_episodes: bool) -> None:
        """Restore the ring from the lake (mode live)."""
        if all(name in self.lake.streams for name in streams):
            restore_rings(self._ring(), self.lake, streams, continue_episodes=continue_episodes)

    def _ring(self) -> Pond:
        if self.pond is None:
            lanes = self.plan.agents * self.plan.envs_per_agent + self.plan.own_envs
            self.pond = Pond.init(self.lake.schema, self.plan.big_pond_rows, lanes=lanes, device=self.device)
        return self.pond

    def send(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Return an array on the pond's device; the host does not wait."""
        assert self.pond is not None
        return self.pond.send({"array": np.ascontiguousarray(array)})["array"]

    def sample(
        self, count: int, rng: np.random.Generator, part: slice = slice(None), *, n_step: int, gamma: float
    ) -> list[PondBatch]:
        """Draw batches and return the given part of each, with stacks of frames."""
        if self.pond is None:
            raise LakeError("the BigPond is empty: fill it or add to it before sampling")
        batches = self.pond.sample_many(
            count,
            self.recipe.dqn.batch_size,
            rng,
            stack=self.stack,
            n_step=n_step,
            gamma=gamma,
            part=part,
            columns=("agent",),
        )
        return [separate_masks(batch, stacked=self.stack is not None) for batch in batches]

    def _list_blocks(self) -> None:
        assert self.pond is not None
        self._blocks = list_blocks(
            self.pond.view(),
            self.recipe.dqn.block_steps,
            stack=self.stack or 1,
            offset=self.order.offset(self.recipe.dqn.block_steps),
        )

    def next_blocks(self, transitions: int | None = None, *, blocks: int = 0) -> BlockBatch:
        """Return the next blocks: so many `blocks`, or as many as have at least so many `transitions`.

        All blocks are returned once, in a random order, then all again.
        """
        if self.pond is None:
            raise LakeError("the BigPond is empty: fill it or add to it before sampling")
        if transitions is None:
            which = self.order.take(np.ones(len(self._blocks), np.int64), blocks)
        else:
            which = self.order.take(self._blocks.steps, transitions)
        return read_blocks(self.pond, self._blocks, which, self.recipe.dqn.block_steps, stack=self.stack)


class BlockOrder:
    """The order in which blocks are learned from: passes over all of them, each in a new random order.

    It is a function of the seed, of how often the BigPond was filled or added to, and of its place in that order.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.contents = self.passes = self.place = 0

    def begin(self) -> None:
        """Begin anew, with other blocks."""
        self.contents, self.passes, self.place = self.contents + 1, 0, 0

    def offset(self, length: int) -> int:
        """Return the offset of the blocks that the BigPond is divided into."""
        return int(np.random.default_rng([self.seed, BLOCKS, self.contents]).integers(length))

    def take(self, steps: np.ndarray[Any, Any], transitions: int) -> np.ndarray[Any, Any]:
        """Return the numbers of the next blocks, which have `steps` [K]: as many as have at least so many transitions."""
        if not len(steps):
            raise LakeError("the BigPond has no whole transition yet; collect longer, or make it larger")
        taken, missing = [], transitions
        while missing > 0:
            order = np.random.default_rng([self.seed, BLOCKS, self.contents, self.passes + 1]).permutation(len(steps))
            rest = order[self.place :]
            count = min(len(rest), int(np.searchsorted(np.cumsum(steps[rest]), missing)) + 1)
            taken.append(rest[:count])
            missing -= int(steps[rest[:count]].sum())
            self.place += count
            if self.place == len(order):
                self.passes, self.place = self.passes + 1, 0
        return np.concatenate(taken)

    def state_dict(self) -> dict[str, int]:
        return {"contents": self.contents, "passes": self.passes, "place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.contents, self.passes, self.place = (int(state[name]) for name in ("contents", "passes", "place"))

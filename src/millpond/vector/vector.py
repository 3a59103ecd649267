"""Many envs behind `recv` and `send`."""

from __future__ import annotations

import json
from dataclasses import fields
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EpisodeStats
from millpond.envs.spec import EnvSpec
from millpond.plurals import plural
from millpond.vector.batch import Batch, Status
from millpond.vector.failures import VectorError
from millpond.vector.fleet import Fleet
from millpond.vector.scheduler import Turns
from millpond.vector.worker import Op


class Vector:
    """`num_envs` envs in `groups` equal, contiguous groups, which step in turn: see `Turns` for the loop.

    Made by `make_vector`. One thread at a time may use it. Seeds, and so trajectories, do not depend on `backend`,
    `num_workers` or `groups`; `reason` says why the backend is what it is.
    """

    def __init__(self, fleet: Fleet, backend: str, reason: str) -> None:
        layout = fleet.layout
        self.spec: EnvSpec = fleet.spec
        self.num_envs = layout.num_envs
        self.groups = layout.groups
        self.num_workers = layout.num_workers
        self.backend = backend
        self.reason = reason
        self._fleet = fleet
        self._turns = Turns(
            fleet,
            [layout.group(group) for group in range(layout.groups)],
            [f"group {group_name(group)}" for group in range(layout.groups)],
        )

    def __len__(self) -> int:
        """Batches in a round of turns: the groups."""
        return self.groups

    def reset(self, seed: int) -> None:
        """Start every env afresh; env i's seed is a function of (seed, i) alone."""
        self._fleet.require_open()
        if not 0 <= seed < 2**63:
            raise VectorError(f"seed={seed} must be in 0..2**63-1")
        mover = self._fleet.mover
        if mover is not None:
            mover.drain()
            mover.begin()
        self._turns.begin()
        self._fleet.mover = None
        self._fleet.reset(seed)

    def recv(self) -> Batch:
        """Wait for the next group in turn."""
        return self._turns.recv()

    def send(self, actions: npt.ArrayLike | None = None) -> None:
        """Give the actions of the group that was received first of those not yet sent; see `Turns.send`."""
        self._turns.send(actions)

    def rest(self) -> None:
        """End a round; see `Turns.rest`."""
        self._turns.rest()

    def part(self, first: int, count: int) -> Turns:
        """Turns over only the envs first..first+count-1, counted around the end; all others hold still.

        The vector must rest before the part moves, and the part before the vector moves again.
        """
        self._fleet.require_open()
        self._fleet.layout.require_whole_batches(self.spec, first, count)
        pieces = self._fleet.layout.pieces(first, count)
        return Turns(self._fleet, pieces, [f"the part of envs {low} to {high - 1}" for low, high in pieces])

    def drain(self) -> None:
        """Wait until no worker has anything to do; what has landed is received at its turn."""
        mover = self._fleet.mover
        if mover is not None:
            mover.drain()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything, at any moment but in the middle of a part: going on from it repeats bit for bit."""
        self._fleet.require_open()
        self.drain()
        return save_state(self._fleet, self._turns)

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Take up a state of `save_state` of a vector of the same sizes."""
        self._fleet.require_open()
        self.drain()
        load_state(self._fleet, self._turns, state)

    @property
    def seeds(self) -> npt.NDArray[np.uint64]:
        """From which each env was last started [num_envs]."""
        return _read_only(self._fleet.arena.seeds)

    @property
    def env_steps(self) -> npt.NDArray[np.int64]:
        """That each env has taken since it was started from its seed [num_envs]."""
        return _read_only(self._fleet.env_steps)

    @property
    def restarts(self) -> npt.NDArray[np.int64]:
        """How often each env was restarted after a crash [num_envs]."""
        return _read_only(self._fleet.restarts)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of all processes that belong to the vector and run."""
        return () if self._fleet.closed else self._fleet.pool.pids

    def close(self) -> None:
        """End all workers and free what they held; harmless when repeated."""
        self._fleet.close()

    def __enter__(self) -> Vector:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def group_name(group: int) -> str:
    """A, B, ... Z, then numbers."""
    return chr(ord("A") + group) if group < 26 else str(group)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


# -- A vector's whole state as named arrays, so that it can lie in a checkpoint and be loaded without trust.

State = dict[str, npt.NDArray[Any]]


def save_state(fleet: Fleet, turns: Turns) -> State:
    """Arrays of the vector itself, and `world/SHARD/NAME` for those of each environment."""
    _require_savable(fleet)
    if fleet.seed is None:
        raise VectorError("there is nothing to save before reset(seed)")
    if fleet.mover not in (None, turns) and not fleet.mover.resting:
        raise VectorError("a part is in the middle of its round: receive what it sent and call its rest() first")
    env_batches = fleet.command_all(Op.SAVE)
    waiting = [[_plain(episode) for episode in stretch.ended] for stretch in turns.stretches]
    state: State = {
        "layout": _layout(fleet),
        "seed": np.array(fleet.seed, np.int64),
        "position": np.array(turns.position, np.int64),
        "status": np.array([stretch.status for stretch in turns.stretches], np.int64),
        "episodes": np.frombuffer(json.dumps(waiting).encode(), np.uint8).copy(),
        "seeds": fleet.arena.seeds.copy(),
        "env_steps": fleet.env_steps.copy(),
        "restarts": fleet.restarts.copy(),
        "unreported": fleet.unreported.copy(),
    }
    state |= {f"buffers/{name}": array.copy() for name, array in _buffers(fleet).items()}
    for index, env_batch in enumerate(env_batches):
        state |= {f"world/{index}/{name}": array for name, array in env_batch.items()}
    return state


def load_state(fleet: Fleet, turns: Turns, state: State) -> None:
    _require_savable(fleet)
    saved, here = state["layout"], _layout(fleet)
    if not np.array_equal(saved, here):
        raise VectorError(
            f"the state is of {_in_words(saved)}, and this vector has {_in_words(here)}: a state goes back only into the "
            f"same sizes"
        )
    env_batches: list[State] = [{} for _ in fleet.layout.shards]
    for name, array in state.items():
        if name.startswith("world/"):
            _, index, own_name = name.split("/", 2)
            env_batches[int(index)][own_name] = array
    fleet.command_all(Op.LOAD, env_batches)
    for name, array in _buffers(fleet).items():
        array[...] = state[f"buffers/{name}"]
    fleet.seed = int(state["seed"])
    fleet.arena.seeds[:] = state["seeds"]
    fleet.env_steps[:] = state["env_steps"]
    fleet.restarts[:] = state["restarts"]
    fleet.unreported[:] = state["unreported"]
    fleet.mark_restarts()
    if fleet.mover is not None:
        fleet.mover.begin()
    fleet.mover = turns
    turns.position = (int(state["position"][0]), int(state["position"][1]))
    waiting = json.loads(state["episodes"].tobytes())
    for stretch, status, episodes in zip(turns.stretches, state["status"], waiting, strict=True):
        stretch.status = Status(int(status))
        stretch.ended = [EpisodeStats(env, tuple(returns), length, info) for env, returns, length, info in episodes]


def _plain(episode: EpisodeStats) -> tuple[int, list[float], int, dict[str, float]]:
    """As JSON has it; an environment may have put numpy's numbers where Python's are meant."""
    returns, info = map(float, episode.returns), episode.info.items()
    return int(episode.env), list(returns), int(episode.length), {name: float(value) for name, value in info}


def _layout(fleet: Fleet) -> npt.NDArray[np.int64]:
    layout = fleet.layout
    beside = [layout.trainer_envs] if layout.trainer_envs else []  # states of earlier versions know nothing of it
    return np.array([layout.num_envs, layout.groups, layout.num_workers, *beside], np.int64)


def _in_words(layout: npt.NDArray[np.int64]) -> str:
    envs, groups, workers, *beside = layout.tolist()
    sizes = f"{envs:,} envs in {plural(groups, 'group')} and {plural(workers, 'worker')}"
    return f"{sizes}, of which the trainer steps {beside[0]:,} of each group" if beside else sizes


def _buffers(fleet: Fleet) -> State:
    return {field.name: getattr(fleet.arena.buffers, field.name) for field in fields(Buffers)}


def _require_savable(fleet: Fleet) -> None:
    if not fleet.spec.savable:
        raise VectorError(
            f"{fleet.spec.id} cannot save its state (spec.savable is false): its episodes start afresh after a resume"
        )

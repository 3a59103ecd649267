"""`Vector`: many envs behind `recv` and `send`, and their state as named arrays for a checkpoint."""

from __future__ import annotations

import json
from dataclasses import fields
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EpisodeStats
from millpond.envs.spec import EnvSpec
from millpond.formatting import plural
from millpond.vector.fleet import Fleet
from millpond.vector.layout import Batch, SliceStatus, VectorError
from millpond.vector.scheduler import RoundRobin
from millpond.vector.worker import Op

State = dict[str, npt.NDArray[Any]]  # no pickle: it is loaded from files without trust


class Vector:
    """`num_envs` envs in `groups` equal, contiguous groups, which step in turn: see `RoundRobin` for the loop.

    Made by `make_vector`; not thread-safe. Seeds, and so trajectories, do not depend on `backend`, `num_workers` or
    `groups`; `reason` says why this backend was chosen.
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
        self._scheduler = RoundRobin(
            fleet,
            [layout.group(group) for group in range(layout.groups)],
            [f"group {group_name(group)}" for group in range(layout.groups)],
        )

    def __len__(self) -> int:
        """Number of batches per env step: the groups."""
        return self.groups

    def reset(self, seed: int) -> None:
        """Start every env; the seed of env i is a function of (seed, i) alone."""
        self._fleet.require_open()
        if not 0 <= seed < 2**63:
            raise VectorError(f"seed={seed} must be in 0..2**63-1")
        active = self._fleet.active
        if active is not None:
            active.drain()
            active.reset()
        self._scheduler.reset()
        self._fleet.active = None
        self._fleet.reset(seed)

    def recv(self) -> Batch:
        """Wait for the next group in turn."""
        return self._scheduler.recv()

    def send(self, actions: npt.ArrayLike | None = None) -> None:
        """Send the actions of the oldest batch that was received and not yet sent; see `RoundRobin.send`."""
        self._scheduler.send(actions)

    def end_round(self) -> None:
        """End a round; see `RoundRobin.end_round`."""
        self._scheduler.end_round()

    def slice(self, first: int, count: int) -> RoundRobin:
        """Return a scheduler over the envs first..first+count-1 only, wrapping around the end; the others wait.

        End the round of the vector before the slice is used, and the round of the slice before the vector is used again.
        """
        self._fleet.require_open()
        self._fleet.layout.require_whole_batches(self.spec, first, count)
        ranges = self._fleet.layout.ranges(first, count)
        return RoundRobin(self._fleet, ranges, [f"the slice of envs {low} to {high - 1}" for low, high in ranges])

    def drain(self) -> None:
        """Wait until all workers are idle; each result is received at its turn."""
        active = self._fleet.active
        if active is not None:
            active.drain()

    def save_state(self) -> State:
        """Return the whole state, except in the middle of a slice's round; continuing from it repeats bit for bit."""
        self._fleet.require_open()
        self.drain()
        return _save_state(self._fleet, self._scheduler)

    def load_state(self, state: State) -> None:
        """Restore a state of `save_state` of a vector of the same sizes."""
        self._fleet.require_open()
        self.drain()
        _load_state(self._fleet, self._scheduler, state)

    @property
    def seeds(self) -> npt.NDArray[np.uint64]:
        """Seeds from which the envs were last started [num_envs]."""
        return _read_only(self._fleet.arena.seeds)

    @property
    def env_steps(self) -> npt.NDArray[np.int64]:
        """Steps of each env since it was started from its seed [num_envs]."""
        return _read_only(self._fleet.env_steps)

    def buffers_of(self, env: int) -> dict[str, npt.NDArray[Any]]:
        """Return the newest values of one env, by name; views."""
        return {name: array[env] for name, array in _buffers(self._fleet).items()}

    @property
    def episode_steps(self) -> npt.NDArray[np.int64]:
        """Steps of each env in its current episode [num_envs]."""
        return np.asarray(self._fleet.env_steps - self._fleet.episode_start)

    def worker_of(self, env: int) -> str | None:
        """Describe the worker that steps an env; None if the trainer steps all of them."""
        layout = self._fleet.layout
        if self.backend == "inline":
            return None
        worker = next(shard.worker for shard in layout.shards if shard.first <= env < shard.last)
        return "stepped by the trainer" if worker == layout.num_workers else f"worker {worker}"

    @property
    def restarts(self) -> npt.NDArray[np.int64]:
        """Number of restarts of each env after a crash [num_envs]."""
        return _read_only(self._fleet.restarts)

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of all running processes of the vector."""
        return () if self._fleet.closed else self._fleet.pool.pids

    def close(self) -> None:
        """End all workers and free their resources; may be called twice."""
        self._fleet.close()

    def __enter__(self) -> Vector:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def group_name(group: int) -> str:
    """Return the name of a group: A, B, ... Z, then numbers."""
    return chr(ord("A") + group) if group < 26 else str(group)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _save_state(fleet: Fleet, scheduler: RoundRobin) -> State:
    """Return arrays of the vector itself, and `world/SHARD/NAME` for those of each env batch."""
    _require_savable(fleet)
    if fleet.seed is None:
        raise VectorError("there is nothing to save before reset(seed)")
    if fleet.active not in (None, scheduler) and not fleet.active.is_idle:
        raise VectorError(
            "a slice is in the middle of its round: receive the results of what it sent and call its end_round() first"
        )
    env_batches = fleet.command_all(Op.SAVE)
    pending = [[_to_json(episode) for episode in env_slice.ended] for env_slice in scheduler.slices]
    state: State = {
        "layout": _sizes(fleet),
        "seed": np.array(fleet.seed, np.int64),
        "position": np.array(scheduler.position, np.int64),
        "status": np.array([env_slice.status for env_slice in scheduler.slices], np.int64),
        "episodes": np.frombuffer(json.dumps(pending).encode(), np.uint8).copy(),
        "seeds": fleet.arena.seeds.copy(),
        "env_steps": fleet.env_steps.copy(),
        "episode_start": fleet.episode_start.copy(),
        "restarts": fleet.restarts.copy(),
        "unreported": fleet.unreported.copy(),
    }
    state |= {f"buffers/{name}": array.copy() for name, array in _buffers(fleet).items()}
    for index, env_batch in enumerate(env_batches):
        state |= {f"world/{index}/{name}": array for name, array in env_batch.items()}
    return state


def _load_state(fleet: Fleet, scheduler: RoundRobin, state: State) -> None:
    _require_savable(fleet)
    saved_sizes, sizes = state["layout"], _sizes(fleet)
    if not np.array_equal(saved_sizes, sizes):
        raise VectorError(
            f"the state is of {_describe_sizes(saved_sizes)}, and this vector has {_describe_sizes(sizes)}: a state can "
            f"only be loaded into a vector of the same sizes"
        )
    env_batches: list[State] = [{} for _ in fleet.layout.shards]
    for key, array in state.items():
        if key.startswith("world/"):
            _, index, name = key.split("/", 2)
            env_batches[int(index)][name] = array
    fleet.command_all(Op.LOAD, env_batches)
    for name, array in _buffers(fleet).items():
        array[...] = state[f"buffers/{name}"]
    fleet.seed = int(state["seed"])
    fleet.arena.seeds[:] = state["seeds"]
    fleet.env_steps[:] = state["env_steps"]
    fleet.episode_start[:] = state.get("episode_start", 0)  # absent in states of version 0.2 and before
    fleet.restarts[:] = state["restarts"]
    fleet.unreported[:] = state["unreported"]
    fleet.mark_restarts()
    if fleet.active is not None:
        fleet.active.reset()
    fleet.active = scheduler
    scheduler.position = (int(state["position"][0]), int(state["position"][1]))
    pending = json.loads(state["episodes"].tobytes())
    for env_slice, status, episodes in zip(scheduler.slices, state["status"], pending, strict=True):
        env_slice.status = SliceStatus(int(status))
        env_slice.ended = [EpisodeStats(env, tuple(returns), length, info) for env, returns, length, info in episodes]


def _to_json(episode: EpisodeStats) -> tuple[int, list[float], int, dict[str, float]]:
    """Convert to plain numbers; an environment may have used numpy's."""
    returns, info = map(float, episode.returns), episode.info.items()
    return int(episode.env), list(returns), int(episode.length), {name: float(value) for name, value in info}


def _sizes(fleet: Fleet) -> npt.NDArray[np.int64]:
    layout = fleet.layout
    trainer_envs = [layout.trainer_envs] if layout.trainer_envs else []  # absent in states of earlier versions
    return np.array([layout.num_envs, layout.groups, layout.num_workers, *trainer_envs], np.int64)


def _describe_sizes(sizes: npt.NDArray[np.int64]) -> str:
    envs, groups, workers, *trainer_envs = sizes.tolist()
    text = f"{envs:,} envs in {plural(groups, 'group')} and {plural(workers, 'worker')}"
    return f"{text}, of which the trainer steps {trainer_envs[0]:,} of each group" if trainer_envs else text


def _buffers(fleet: Fleet) -> State:
    return {field.name: getattr(fleet.arena.buffers, field.name) for field in fields(Buffers)}


def _require_savable(fleet: Fleet) -> None:
    if not fleet.spec.savable:
        raise VectorError(
            f"{fleet.spec.id} cannot save its state (spec.savable is false): its episodes restart after a resume"
        )

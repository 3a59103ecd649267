"""Many envs behind `recv` and `send`."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.spec import EnvSpec
from millpond.vector.batch import Batch
from millpond.vector.crash import VectorError
from millpond.vector.fleet import Fleet
from millpond.vector.state import load_state, save_state
from millpond.vector.turns import Turns


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

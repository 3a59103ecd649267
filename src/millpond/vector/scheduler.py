"""The order in which slices of envs are received and sent: strictly in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.vector.fleet import Fleet
from millpond.vector.layout import Batch, EnvSlice, SliceStatus, VectorError


class RoundRobin:
    """Slices of envs that take turns: all groups of a vector, or the ranges of a slice of it.

    `recv` and `send` each iterate over the slices in order, whichever is ready first, so that runs repeat:

        for every env step:
            for _ in range(len(envs)):
                batch = envs.recv()        # waits for this slice; the others step meanwhile
                envs.send(act(batch))      # starts its next step
        for _ in range(len(envs)):
            batch = envs.recv()            # results of the last actions
        envs.end_round()                   # the next round starts with the same observations

    Between rounds no env steps, and another scheduler over the same envs may run. The first `recv` of a slice in a
    round returns its current observation, with `Batch.stepped` False.
    """

    def __init__(self, fleet: Fleet, ranges: Sequence[tuple[int, int]], names: Sequence[str]) -> None:
        self._fleet = fleet
        self._slices = [fleet.make_slice(index, first, last) for index, (first, last) in enumerate(ranges)]
        self._names = names
        self._next_recv = 0
        self._next_send = 0

    def __len__(self) -> int:
        """Number of batches per env step."""
        return len(self._slices)

    @property
    def num_envs(self) -> int:
        return sum(env_slice.last - env_slice.first for env_slice in self._slices)

    @property
    def slices(self) -> list[EnvSlice]:
        return self._slices

    @property
    def position(self) -> tuple[int, int]:
        """Indices of the slices to be received next and to be sent next."""
        return self._next_recv, self._next_send

    @position.setter
    def position(self, position: tuple[int, int]) -> None:
        self._next_recv, self._next_send = position

    @property
    def is_idle(self) -> bool:
        """True between rounds."""
        return all(env_slice.status == SliceStatus.IDLE for env_slice in self._slices)

    def recv(self) -> Batch:
        """Wait for the next slice in turn."""
        if self._fleet.active is not self:
            self._take_over()
        env_slice = self._slices[self._next_recv]
        if env_slice.status == SliceStatus.STEPPING:
            self._fleet.finish_step(env_slice)
        elif env_slice.status == SliceStatus.RECEIVED:
            raise VectorError(
                f"{self._names[self._next_recv]} was received and not sent: send its actions or, at the end of a "
                f"round, call end_round() to start the next one with the same observations"
            )
        self._next_recv = (self._next_recv + 1) % len(self._slices)
        return self._fleet.deliver(env_slice)

    def send(self, actions: npt.ArrayLike | None = None) -> None:
        """Send the actions [envs, agents, ...] of the oldest batch that was received and not yet sent.

        None: they are already in `Batch.action`.
        """
        if self._fleet.active is not self:
            self._take_over()
        env_slice = self._slices[self._next_send]
        if env_slice.status != SliceStatus.RECEIVED:
            raise VectorError(f"{self._names[self._next_send]} is next to be sent and was not received: call recv()")
        if actions is not None:
            _write_actions(env_slice.batch.action, actions)
        self._next_send = (self._next_send + 1) % len(self._slices)
        self._fleet.start_step(env_slice)

    def end_round(self) -> None:
        """End a round: everything that was sent must have been received, so that no result is lost."""
        for env_slice, name in zip(self._slices, self._names, strict=True):
            if env_slice.status in (SliceStatus.STEPPING, SliceStatus.STEPPED):
                raise VectorError(
                    f"{name} was sent and not received: recv() the results of its actions before end_round()"
                )
        for env_slice in self._slices:
            env_slice.status = SliceStatus.IDLE
        self._next_recv = self._next_send = 0

    def drain(self) -> None:
        """Wait until all workers are idle. No result is lost: each is received at its turn."""
        for env_slice in self._slices:
            if env_slice.status == SliceStatus.STEPPING:
                self._fleet.finish_step(env_slice)

    def reset(self) -> None:
        """Forget all pending results: every slice is idle at a first observation."""
        for env_slice in self._slices:
            env_slice.status = SliceStatus.IDLE
            env_slice.ended = []
        self._next_recv = self._next_send = 0

    def _take_over(self) -> None:
        self._fleet.require_open()
        active = self._fleet.active
        if self._fleet.seed is None:
            raise VectorError("the vector has no envs yet: call reset(seed) or load_state(state) first")
        if active is not None and not active.is_idle:
            raise VectorError(
                "the same envs are in the middle of a round of the vector or of another slice: receive what was sent "
                "there and call its end_round() first"
            )
        self._fleet.active = self


def _write_actions(target: npt.NDArray[Any], actions: npt.ArrayLike) -> None:
    array = actions if isinstance(actions, np.ndarray) else np.asarray(actions)
    if array.shape != target.shape:
        raise VectorError(f"actions have the shape {array.shape}; [envs, agents, ...] is {target.shape} here")
    if not np.can_cast(array.dtype, target.dtype, "same_kind"):
        raise VectorError(f"actions are {array.dtype}, which cannot be stored as {target.dtype}")
    np.copyto(target, array, casting="same_kind")

"""Who is received, and who is sent, when: strictly in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.vector.batch import Batch, Status, Stretch
from millpond.vector.failures import VectorError
from millpond.vector.fleet import Fleet


class Turns:
    """Stretches of envs that take turns: all groups of a vector, or the pieces of a part of it.

    `recv` and `send` each go round the stretches in order, whichever is ready first, so that runs repeat:

        for every env step:
            for _ in range(len(turns)):
                batch = turns.recv()        # waits for this stretch; the others step meanwhile
                turns.send(act(batch))      # lets it step
        for _ in range(len(turns)):
            batch = turns.recv()            # what came of the last actions
        turns.rest()                        # the round is over; the next begins with the same observations

    At rest everything stands still, and other turns over the same envs may move. The first `recv` of a stretch in a
    round hands out the observation that it rests at, with `Batch.stepped` False.
    """

    def __init__(self, fleet: Fleet, ranges: Sequence[tuple[int, int]], names: Sequence[str]) -> None:
        self._fleet = fleet
        self._stretches = [fleet.stretch(index, first, last) for index, (first, last) in enumerate(ranges)]
        self._names = names
        self._next_recv = 0
        self._next_send = 0

    def __len__(self) -> int:
        """Batches in a round of turns."""
        return len(self._stretches)

    @property
    def num_envs(self) -> int:
        return sum(stretch.last - stretch.first for stretch in self._stretches)

    @property
    def stretches(self) -> list[Stretch]:
        return self._stretches

    @property
    def position(self) -> tuple[int, int]:
        """Whose turn it is to be received, and to be sent."""
        return self._next_recv, self._next_send

    @position.setter
    def position(self, position: tuple[int, int]) -> None:
        self._next_recv, self._next_send = position

    @property
    def resting(self) -> bool:
        return all(stretch.status == Status.REST for stretch in self._stretches)

    def recv(self) -> Batch:
        """Wait for the next stretch in turn."""
        if self._fleet.mover is not self:
            self._take_over()
        stretch = self._stretches[self._next_recv]
        if stretch.status == Status.FLYING:
            self._fleet.land(stretch)
        elif stretch.status == Status.HELD:
            raise VectorError(
                f"{self._names[self._next_recv]} was received and not sent: send its actions, or, at the end of a "
                f"round, call rest() to begin the next with the same observations"
            )
        self._next_recv = (self._next_recv + 1) % len(self._stretches)
        return self._fleet.hand_out(stretch)

    def send(self, actions: npt.ArrayLike | None = None) -> None:
        """Give the actions [envs, agents, ...] of the stretch that was received first of those not yet sent.

        None: they are in `Batch.action` already.
        """
        if self._fleet.mover is not self:
            self._take_over()
        stretch = self._stretches[self._next_send]
        if stretch.status != Status.HELD:
            raise VectorError(f"{self._names[self._next_send]} is next to be sent and was not received: call recv()")
        if actions is not None:
            _put(stretch.batch.action, actions)
        self._next_send = (self._next_send + 1) % len(self._stretches)
        self._fleet.launch(stretch)

    def rest(self) -> None:
        """End a round: all that was sent must have been received, so that no outcome is lost."""
        for stretch, name in zip(self._stretches, self._names, strict=True):
            if stretch.status in (Status.FLYING, Status.LANDED):
                raise VectorError(f"{name} was sent and not received: recv() what came of its actions before rest()")
        for stretch in self._stretches:
            stretch.status = Status.REST
        self._next_recv = self._next_send = 0

    def drain(self) -> None:
        """Wait until no worker has anything to do. Nothing is lost: what landed is received at its turn."""
        for stretch in self._stretches:
            if stretch.status == Status.FLYING:
                self._fleet.land(stretch)

    def begin(self) -> None:
        """Forget where everything was; all stand at fresh observations."""
        for stretch in self._stretches:
            stretch.status = Status.REST
            stretch.ended = []
        self._next_recv = self._next_send = 0

    def _take_over(self) -> None:
        self._fleet.require_open()
        mover = self._fleet.mover
        if self._fleet.seed is None:
            raise VectorError("the vector has no envs yet: call reset(seed) or load_state(state) first")
        if mover is not None and not mover.resting:
            raise VectorError(
                "other turns over the same envs are in the middle of a round: receive what they sent and call their "
                "rest() first"
            )
        self._fleet.mover = self


def _put(place: npt.NDArray[Any], actions: npt.ArrayLike) -> None:
    given = actions if isinstance(actions, np.ndarray) else np.asarray(actions)
    if given.shape != place.shape:
        raise VectorError(f"actions have the shape {given.shape}; [envs, agents, ...] is {place.shape} here")
    if not np.can_cast(given.dtype, place.dtype, "same_kind"):
        raise VectorError(f"actions are {given.dtype}, which cannot be stored as {place.dtype}")
    np.copyto(place, given, casting="same_kind")

"""A run of envs that steps together: a group, or a piece of a part."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from millpond.envs.env_batch import Episode
from millpond.vector.batch import Batch
from millpond.vector.layout import Task

NO_TICKET = 0  # tickets begin at 1


class Status(IntEnum):
    REST = 0  # nothing asked for; its latest observation can be received
    HELD = 1  # received: the policy has it
    FLYING = 2  # sent: workers have it
    LANDED = 3  # stepped, and not yet received


@dataclass(eq=False)
class Stretch:
    batch: Batch
    tasks: tuple[Task, ...]
    tickets: list[int]
    status: Status = Status.REST
    ended: list[Episode] = field(default_factory=list)  # episodes, until they are received

    @property
    def first(self) -> int:
        return self.batch.first

    @property
    def last(self) -> int:
        return self.batch.last

"""A pond's records as the rings or runs that they are stored in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.replay.transitions import Runs

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RingView:
    """A pond's records as a `RecordView`, in the pond's memory: a record is the slot where it is stored.

    `flags` are the pond's own, so that a view costs the same whatever the pond holds; it is valid until the next `add`.
    """

    flags: Array
    runs: Runs
    held: Array  # records in each run

    @property
    def num_records(self) -> int:
        return int(self.held.sum())

    def records(self, numbers: Array) -> Array:
        """Return the slots of records that are counted run by run, the oldest first, whatever slot it has.

        So a pond that was restored from a lake draws the transitions that it would have drawn before.
        """
        begin, ends, oldest = self.runs.begin, np.cumsum(self.held), self.runs.rings[:, 0]
        if (oldest == ends - self.held).all():  # nothing has wrapped, and no slot is free
            return numbers
        run = np.searchsorted(ends, numbers, side="right")
        first = begin[run]
        age: Array = numbers - (ends - self.held)[run] + oldest[run] - first
        slots: Array = first + age % (begin[run + 1] - first)
        return slots

    def later(self, records: Array, steps: Array) -> Array:
        """Return the records that come so many steps after others of the same lane."""
        run = np.searchsorted(self.runs.begin, records, side="right") - 1
        begin = self.runs.begin[run]
        following: Array = begin + (records - begin + steps) % (self.runs.begin[run + 1] - begin)
        return following

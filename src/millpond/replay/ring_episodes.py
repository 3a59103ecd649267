"""The whole episodes in a pond's rings, for learning from returns.

Only records that were added since the last call are read, so a call costs the same whatever the pond holds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from millpond.compiled import compiled
from millpond.replay.pond import Pond
from millpond.replay.schema import DAMAGED, ENDED, FINAL, FIRST

Array = np.ndarray[Any, Any]
NONE = -1  # place of the current episode's first record: it is not known


class WholeEpisodes(NamedTuple):
    """Whole episodes, lane by lane, the oldest first."""

    start: Array  # slots of the first records
    steps: Array  # without the record of the final observation
    mean_reward: Array


class _RingReader:
    """One ring: how far it was read, the current episode, and the whole ones by place, counted from the first record ever."""

    def __init__(self) -> None:
        self.read = 0
        self.current = np.array([NONE, 0, 0], np.float64)  # place of its first record, steps, return so far
        self.place, self.steps = np.empty(0, np.int64), np.empty(0, np.int64)
        self.total = np.empty(0, np.float64)

    def extend(self, begin: int, flags: Array, reward: Array) -> None:
        """Read the records that follow `begin`."""
        most = int(np.count_nonzero(flags & ENDED))
        place, steps, total = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.float64)
        count = find_episodes(begin, flags, reward, self.current, place, steps, total)
        self.place = np.concatenate([self.place, place[:count]])
        self.steps = np.concatenate([self.steps, steps[:count]])
        self.total = np.concatenate([self.total, total[:count]])
        self.read = begin + len(flags)

    def drop_before(self, oldest: int) -> None:
        """Drop the episodes that begin before a place: their first records were overwritten."""
        first = int(np.searchsorted(self.place, oldest))
        self.place, self.steps, self.total = self.place[first:], self.steps[first:], self.total[first:]


class RingEpisodes:
    """The whole episodes of a pond to which steps are added."""

    def __init__(self, pond: Pond) -> None:
        self.pond = pond
        self._content: object = None
        self._lanes: list[_RingReader] = []

    def find(self) -> WholeEpisodes:
        """Return the whole episodes that the pond holds now."""
        pond, size = self.pond, self.pond.ring_size
        if self._content is not pond.content:
            self._content, self._lanes = pond.content, [_RingReader() for _ in range(pond.lanes)]
        for number, (lane, head) in enumerate(zip(self._lanes, pond.heads.tolist(), strict=True)):
            oldest = max(0, head - size)
            if lane.read < oldest:  # records were overwritten unread, and the current episode's with them
                lane.current[0] = NONE
            begin = max(lane.read, oldest)
            slots = number * size + np.arange(begin, head) % size
            lane.extend(begin, pond.flags[slots], pond.rewards(slots))
            lane.drop_before(oldest)
        start = [number * size + lane.place % size for number, lane in enumerate(self._lanes)]
        steps = np.concatenate([lane.steps for lane in self._lanes])
        return WholeEpisodes(np.concatenate(start), steps, np.concatenate([lane.total for lane in self._lanes]) / steps)


@compiled
def find_episodes(begin: int, flags: Any, reward: Any, current: Any, place: Any, steps: Any, total: Any) -> int:
    """Write place, steps and return of the episodes that end in records [n] from place `begin` on; return how many."""
    count = 0
    first, length, so_far = int(current[0]), int(current[1]), current[2]
    for k in range(len(flags)):
        flag = flags[k]
        if flag & DAMAGED:
            first = NONE
            continue
        if flag & FINAL:
            continue
        if flag & FIRST:
            first, length, so_far = begin + k, 0, 0.0
        length += 1
        so_far += reward[k]
        if flag & ENDED:
            if first != NONE:
                place[count], steps[count], total[count] = first, length, so_far
                count += 1
            first = NONE
    current[0], current[1], current[2] = first, length, so_far
    return count

"""Blocks: the steps of a pond or a lake, divided into stretches of consecutive steps of a lane.

A block has up to `length` steps, and may contain ends of episodes. Each of its steps is a valid transition; a block ends
where the next one is not, and at the end of the lane. So returns over many steps can be computed along it. Every step is in
one block.

K blocks   k drawn   T length   N steps of all drawn blocks
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from millpond.compiled import compiled
from millpond.replay.draw import transition_plan, valid_blocks
from millpond.replay.pond import Pond, PondBatch
from millpond.replay.schema import FINAL, TERMINATED, TRUNCATED
from millpond.replay.transitions import NO_RECORD, RecordView, extent, next_record, run_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Blocks:
    """The first record of each block, and its number of steps [K]."""

    first: Array
    steps: Array

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class BlockBatch:
    """The steps of k blocks [N], one block after the other.

    `place` [N] is the place of each step in an array [T, k] that is read row by row; `last` [N]: it is its block's last step.
    `bootstraps` [M]: the steps whose return needs the value of the next observation: truncated, or the last of a block.
    """

    steps: PondBatch
    place: torch.Tensor
    last: torch.Tensor
    bootstraps: torch.Tensor
    shape: tuple[int, int]


def read_blocks(pond: Pond, blocks: Blocks, which: Array, length: int, *, stack: int | None = None) -> BlockBatch:
    """Read blocks `which` [k] of a pond's `list_blocks`."""
    records = block_records(pond.view(), blocks, which, length)
    inside = records != NO_RECORD
    block, time = np.nonzero(inside)
    last = time + 1 == blocks.steps[which][block]

    flags = pond.view().flags[records[inside]]
    bootstraps = np.flatnonzero((((flags & TRUNCATED) > 0) | last) & ((flags & TERMINATED) == 0))
    steps = pond.read_steps(records[inside], stack=stack)
    sent = pond.send({"place": time * len(which) + block, "last": last, "bootstraps": bootstraps})
    return BlockBatch(steps, **sent, shape=(length, len(which)))


def list_blocks(view: RecordView, length: int, *, stack: int = 1, offset: int = 0, newest: int | None = None) -> Blocks:
    """Divide the steps of a view into blocks.

    stack    frames per observation; steps whose frames are missing are in no block
    offset   the first block of each lane ends this many steps earlier, so that other steps are the last of their block
    newest   only this many steps of each lane, the newest
    """
    parts = list(valid_blocks(view, transition_plan(stack, 1, False)))
    valid = np.zeros(len(view.flags), np.bool_)
    valid[view.records(np.arange(view.num_records))] = np.concatenate(parts) if parts else False
    upper = int(np.count_nonzero(valid))
    first, steps = np.empty(upper, np.int64), np.empty(upper, np.int32)
    count = _list_blocks(valid, view.flags, view.runs, length, offset, -1 if newest is None else newest, first, steps)
    return Blocks(first[:count].copy(), steps[:count].copy())


def block_records(view: RecordView, blocks: Blocks, which: Array, length: int) -> Array:
    """Return the records of the steps of blocks `which` [k] as [k, T], NO_RECORD after the last step."""
    records = np.full((len(which), length), NO_RECORD, np.int64)
    _block_records(blocks.first[which], blocks.steps[which], view.flags, view.runs, records)
    return records


@compiled
def _following_step(record: Any, run: Any, flags: Any, begin: Any, lanes: Any, rings: Any) -> Any:
    """Return the lane's next record that is a step, and its run; NO_RECORD at the end."""
    record, run = next_record(record, run, begin, lanes, rings)
    while record != NO_RECORD and flags[record] & FINAL:
        record, run = next_record(record, run, begin, lanes, rings)
    return record, run


@compiled
def _first_of_lane(lane: Any, flags: Any, begin: Any, lanes: Any, rings: Any) -> Any:
    """Return the lane's first record that is a step, and its run; NO_RECORD if there is none."""
    for run in range(lane, len(begin) - 1, lanes):
        first, last = extent(run, begin, rings)
        if last > first:
            record = rings[run, 0] if len(rings) > 0 else first
            if flags[record] & FINAL:
                return _following_step(record, run, flags, begin, lanes, rings)
            return record, run
    return NO_RECORD, lane


@compiled
def _list_blocks(
    valid: Any, flags: Any, runs: Any, length: Any, offset: Any, newest: Any, first: Any, steps: Any
) -> Any:
    begin, lanes, rings = runs
    count = 0
    for lane in range(lanes):
        skipped = 0
        if newest >= 0:
            record, run = _first_of_lane(lane, flags, begin, lanes, rings)
            while record != NO_RECORD:
                skipped += 1
                record, run = _following_step(record, run, flags, begin, lanes, rings)
            skipped = max(skipped - newest, 0)
        record, run = _first_of_lane(lane, flags, begin, lanes, rings)
        place, inside, limit = 0, False, length - offset
        while record != NO_RECORD:
            if place >= skipped:
                if not valid[record]:
                    inside = False
                else:
                    if not inside or steps[count - 1] == limit:
                        if inside:
                            limit = length
                        first[count], steps[count] = record, 0
                        count, inside = count + 1, True
                    steps[count - 1] += 1
            record, run = _following_step(record, run, flags, begin, lanes, rings)
            place += 1
    return count


@compiled
def _block_records(first: Any, steps: Any, flags: Any, runs: Any, records: Any) -> None:
    begin, lanes, rings = runs
    for k in range(len(first)):
        record = first[k]
        run = run_of(record, begin)
        for t in range(steps[k]):
            records[k, t] = record
            record, run = _following_step(record, run, flags, begin, lanes, rings)

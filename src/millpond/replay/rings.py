"""A pond's rings as they were, from the lake: the newest rows of every lane of some streams.

A pond that several streams were added to as they came need not be in a checkpoint: the lake has all of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from millpond.replay.assemble import raise_damage
from millpond.replay.encode import Lanes
from millpond.replay.faults import LakeError
from millpond.replay.lake import Lake
from millpond.replay.pond import Pond
from millpond.replay.pour import ROWS_AT_ONCE, read_rows
from millpond.replay.schema import ENDED, FINAL
from millpond.replay.stream import View

Array = np.ndarray[Any, Any]


def restore_rings(pond: Pond, lake: Lake, streams: list[str], *, continue_episodes: bool) -> int:
    """Put the newest rows of these streams' lanes, one stream behind the other, into the pond's rings; how many.

    `continue_episodes`: envs go on where the streams end; else the next step of every lane begins an episode.
    """
    views = [lake.view(name) for name in streams]
    if pond.guarded or sum(view.lanes for view in views) != pond.lanes:
        raise LakeError(f"streams {streams} have other lanes than the pond's {pond.lanes}, or the pond is guarded")
    numbers = [lake.streams.index(name) for name in streams]
    pond.clear()
    slots: list[Array] = []
    rows: list[Array] = []
    origin: list[Array] = []
    lane, opened = 0, np.zeros(pond.lanes, bool)
    for number, view in zip(numbers, views, strict=True):
        for own in range(view.lanes):
            newest = newest_rows(view, own, pond.ring)
            if len(newest):
                opened[lane] = not view.flags[newest[-1]] & (ENDED | FINAL)
            pond.heads[lane] = len(newest)
            slots.append(lane * pond.ring + np.arange(len(newest)))
            rows.append(newest)
            origin.append(np.full(len(newest), number, np.int32))
            lane += 1
    slot, row, stream = np.concatenate(slots), np.concatenate(rows), np.concatenate(origin)
    assembler = lake.assembler()
    for begin in range(0, len(row), ROWS_AT_ONCE):
        block = slice(begin, begin + ROWS_AT_ONCE)
        fields, damaged = read_rows(assembler, stream[block], row[block])
        raise_damage(damaged, lake.folder)
        where = torch.from_numpy(slot[block]).to(pond.device)
        for name, values in fields.items():
            pond.fields[name][where] = torch.from_numpy(values).to(pond.device, pond.fields[name].dtype)
    for number, view in zip(numbers, views, strict=True):
        mine = stream == number
        pond.flags[slot[mine]] = view.flags[row[mine]]
    lanes = Lanes.fresh(pond.lanes)
    lanes.open[:] = opened & continue_episodes
    pond.continue_with(lanes)
    return len(row)


def newest_rows(view: View, lane: int, most: int) -> Array:
    """The last `most` rows of one lane, oldest first."""
    found: list[Array] = []
    missing, runs = most, len(view.run_begin) - 1
    for run in range(runs - view.lanes + lane, -1, -view.lanes):
        begin, end = int(view.run_begin[run]), int(view.run_begin[run + 1])
        begin = max(begin, end - missing)
        found.append(np.arange(begin, end))
        missing -= end - begin
        if missing <= 0:
            break
    return np.concatenate(found[::-1]) if found else np.empty(0, np.int64)

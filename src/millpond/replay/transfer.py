"""Between ponds and the lake: `pour` from a pond into a stream, `fill` a pond from all streams."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from millpond.replay.draw import draw_transitions
from millpond.replay.errors import LakeError, PondFull
from millpond.replay.lake.lake import Lake
from millpond.replay.lake.sample import Assembler, raise_damage
from millpond.replay.lake.stream import View
from millpond.replay.lake.write import Ack, Writer
from millpond.replay.pond import Pond
from millpond.replay.schema import COLUMNS, CONTEXT, ENDED, FINAL, HAS_FINAL, TERMINATED, TRUNCATED
from millpond.replay.steps import LaneState, Steps
from millpond.replay.walk import NO_ROW, plan_transitions, succeeds

Array = np.ndarray[Any, Any]
ROWS_AT_ONCE = 2_048


def pour(pond: Pond, writer: Writer, *, steps_at_once: int = 4_096, heads: Array | None = None) -> list[Ack]:
    """Append to the lake what it does not have yet, in pieces of about `steps_at_once` steps of all lanes together.

    A piece that is acknowledged counts as poured, so that a full disk in between loses nothing and doubles nothing.
    `heads` (an earlier `pond.heads`) is where to stop, so that another thread may go on adding behind it.
    """
    if not pond.guarded:
        raise LakeError("pour needs a pond made with guarded=True: others overwrite steps before they are poured")
    if writer.stream.lanes != pond.lanes:
        raise LakeError(f"the pond has {pond.lanes} lanes, stream {writer.stream.name!r} has {writer.stream.lanes}")
    acks: list[Ack] = []
    piece = max(1, steps_at_once // pond.lanes)
    ends = pond.heads if heads is None else heads
    while True:
        steps, poured = _unpoured(pond, piece, ends)
        if steps is None:
            return acks
        acks.append(writer.append(steps))
        pond.poured = poured


def _unpoured(pond: Pond, most: int, ends: Array) -> tuple[Steps | None, Array]:
    """The next up to `most` steps of every lane that were not poured, and where each lane then stands."""
    rows = []
    for lane in range(pond.lanes):
        places = np.arange(pond.poured[lane], ends[lane])
        slots = lane * pond.ring + places % pond.ring
        rows.append((slots, pond.flags[slots]))
    counts = {int(np.count_nonzero(flags & FINAL == 0)) for _, flags in rows}
    steps = min(min(counts), most)
    if steps == 0:
        return None, pond.poured
    taken, heads = [], pond.poured.copy()
    for lane, (slots, flags) in enumerate(rows):
        place = np.flatnonzero(flags & FINAL == 0)
        end = int(place[steps]) if len(place) > steps else len(slots)
        heads[lane] += end
        taken.append(slots[place[:steps]])
    where = np.stack(taken, axis=1)  # [T, L]
    flags = pond.flags[where]
    has_final = (flags & HAS_FINAL) > 0
    # A final observation lies behind its step, in the lane's ring.
    lane_begin = where // pond.ring * pond.ring
    final = lane_begin + (where - lane_begin + 1) % pond.ring

    def column(name: str, slots: Array) -> Array:
        index = torch.from_numpy(slots.reshape(-1)).to(pond.device)
        values = pond.fields[name][index].cpu().numpy()
        return values.reshape(*slots.shape, *values.shape[1:])

    schema = pond.schema
    observed = {field.name: column(schema.column(field), where) for field in schema.observation}
    finals = {field.name: column(schema.column(field), final[has_final]) for field in schema.observation}
    provenance = {name: column(name, where) for name in COLUMNS}
    return Steps(
        observation=observed,
        action=column(schema.action.name, where),
        terminated=(flags & TERMINATED) > 0,
        truncated=(flags & TRUNCATED) > 0,
        final_observation=finals,
        has_final=has_final,
        extra={field.name: column(field.name, where) for field in schema.extra},
        **provenance,
        valid_for=schema,  # by `Pond.add`
    ), heads


def fill(
    pond: Pond,
    lake: Lake,
    n: int,
    rng: np.random.Generator,
    *,
    stack: int | None = None,
    n_step: int = 1,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Put n different transitions, drawn uniformly from the lake, in place of what the pond held. Returns its rows.

    Each row that any of them needs (its stack, its n steps, its next observation) is stored once, so neighbours share
    theirs. `stack` and `n_step` are the largest that will be sampled. `threads` read ahead; `progress(done, of)`.
    """
    if pond.schema != lake.schema:
        raise LakeError("the pond and the lake have different schemas")
    assembler = lake.assembler()
    number, drawn = _draw_different(assembler, n, rng, stack or 1, n_step)
    streams, rows, flags, run_begin = _runs(assembler, number, drawn, stack or 1, n_step)
    if len(rows) > pond.rows:
        raise PondFull(
            f"{n:,} transitions with stack {stack or 1} and n_step {n_step} need {len(rows):,} rows; the pond has "
            f"{pond.rows:,}. Make it larger, or draw fewer."
        )
    pond.clear()
    blocks = [slice(begin, begin + ROWS_AT_ONCE) for begin in range(0, len(rows), ROWS_AT_ONCE)]
    with ThreadPoolExecutor(threads, thread_name_prefix="pond-fill") as pool:
        waiting = [pool.submit(read_rows, assembler, streams[block], rows[block]) for block in blocks[: 2 * threads]]
        for k, block in enumerate(blocks):
            fields, damaged = waiting.pop(0).result()
            if k + 2 * threads < len(blocks):
                later = blocks[k + 2 * threads]
                waiting.append(pool.submit(read_rows, assembler, streams[later], rows[later]))
            raise_damage(damaged, lake.folder)
            for name, values in fields.items():
                source = torch.from_numpy(values)
                pond.fields[name][block.start : block.start + len(values)] = source.to(
                    pond.device, pond.fields[name].dtype
                )
            if progress:
                progress(min(block.stop, len(rows)), len(rows))
    pond.lay_down(flags, run_begin)
    return len(rows)


def _draw_different(
    assembler: Assembler, n: int, rng: np.random.Generator, stack: int, n_step: int
) -> tuple[Array, Array]:
    """n different valid transitions: streams and rows. Any n of them are equally likely."""
    views = assembler.views
    there = sum(view.transitions(stack, n_step) for view in views)
    if n > there:
        raise LakeError(f"the lake has {there:,} transitions (stack {stack}, n_step {n_step}); {n:,} were asked for")
    bases = np.cumsum([0, *(view.rows for view in views)])
    if 2 * n <= there:  # drawn again and again until n are different: few are drawn in vain
        found = np.empty(0, np.int64)
        while len(found) < n:
            more = draw_transitions(views, None, n - len(found), rng, stack=stack, n_step=n_step, repeat=False)
            found = np.unique(np.concatenate([found, bases[more.stream] + more.observed[:, -1]]))
    else:
        found = np.sort(rng.choice(_all_valid(assembler, bases, stack, n_step), n, replace=False))
    number = np.searchsorted(bases, found, side="right") - 1
    return number.astype(np.int32), found - bases[number]


def _all_valid(assembler: Assembler, bases: Array, stack: int, n_step: int) -> Array:
    valid = []
    for base, view in zip(bases, assembler.views, strict=False):
        for begin in range(0, view.rows, 1 << 18):
            rows = np.arange(begin, min(begin + (1 << 18), view.rows))
            valid.append(base + rows[_plan(view, rows, stack, n_step)[3] > 0])
    return np.concatenate(valid)


def _plan(view: Any, rows: Array, stack: int, n_step: int) -> tuple[Array, Array, Array, Array]:
    observed, behind = (np.full((len(rows), stack), NO_ROW, np.int64) for _ in range(2))
    path, steps = np.empty((len(rows), n_step), np.int64), np.empty(len(rows), np.int32)
    plan_transitions(rows, view.flags, view.run_begin, view.lanes, False, observed, behind, path, steps)
    return observed, behind, path, steps


def _runs(
    assembler: Assembler, number: Array, drawn: Array, stack: int, n_step: int
) -> tuple[Array, Array, Array, Array]:
    """All rows that the drawn transitions need, in runs of consecutive rows of a lane: streams, rows, flags, runs."""
    streams, all_rows, all_flags, begins = [], [], [], []
    total = 0
    for k in np.unique(number).tolist():
        view, mine = assembler.views[k], drawn[number == k]
        observed, behind, path, _ = _plan(view, mine, stack, n_step)
        rows = np.unique(np.concatenate([observed, behind, path], axis=1))
        rows = rows[rows != NO_ROW]
        lane = (np.searchsorted(view.run_begin, rows, side="right") - 1) % view.lanes
        rows = rows[np.lexsort((rows, lane))]
        flags = view.flags[rows].copy()
        flags[~np.isin(rows, mine) & (flags & FINAL == 0)] |= CONTEXT
        first = ~succeeds(rows, view.run_begin, view.lanes)
        begins.append(total + np.flatnonzero(first))
        total += len(rows)
        streams.append(np.full(len(rows), k, np.int32))
        all_rows.append(rows)
        all_flags.append(flags)
    run_begin = np.append(np.concatenate(begins), total)
    return np.concatenate(streams), np.concatenate(all_rows), np.concatenate(all_flags), run_begin


def read_rows(assembler: Assembler, streams: Array, rows: Array) -> tuple[dict[str, Array], Any]:
    """A block of rows as columns of a pond."""
    schema = assembler.schema
    records, damaged = assembler.records(streams, rows[:, None])
    observed, more = assembler.windows(streams, rows[:, None], records)
    fields = {schema.column(field): observed[field.name][:, 0] for field in schema.observation}
    for name in (*COLUMNS, schema.action.name, *(field.name for field in schema.extra)):
        column = np.ascontiguousarray(records[name][:, 0])
        fields[name] = column.astype(COLUMNS[name]) if name in COLUMNS else column
    return fields, damaged + more


# -- A pond's rings as they were, from the lake: the newest rows of every lane of some streams.
#
# A pond that several streams were added to as they came need not be in a checkpoint: the lake has all of it.


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
    lanes = LaneState.fresh(pond.lanes)
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

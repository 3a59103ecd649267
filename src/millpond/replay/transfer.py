"""Between ponds and the lake.

`pour`            a pond's new records into a stream
`fill`            a pond with uniformly drawn transitions of all streams
`fill_blocks`     a pond with uniformly drawn blocks of consecutive steps
`restore_rings`   a pond's rings with the newest records of some streams
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from millpond.replay.blocks import block_records, list_blocks
from millpond.replay.draw import draw_transitions
from millpond.replay.lake.lake import Lake
from millpond.replay.lake.read import DamageList
from millpond.replay.lake.sample import Assembler, raise_damage
from millpond.replay.lake.stream import View
from millpond.replay.lake.write import Ack, Writer
from millpond.replay.pond import Pond
from millpond.replay.schema import COLUMNS, CONTEXT, ENDED, FINAL, HAS_FINAL, TERMINATED, TRUNCATED, LakeError, PondFull
from millpond.replay.steps import LaneState, Steps
from millpond.replay.transitions import NO_RECORD, RecordView, plan_transitions, succeeds

Array = np.ndarray[Any, Any]
RECORDS_PER_BLOCK = 2_048


def pour(pond: Pond, writer: Writer, *, steps_per_append: int = 4_096, heads: Array | None = None) -> list[Ack]:
    """Append the records that are not in the lake yet, in appends of about `steps_per_append` steps over all lanes.

    Each acknowledged append counts as poured, so that a full disk in between neither loses nor duplicates steps.
    `heads` (an earlier `pond.heads`) is where to stop, so that another thread may keep adding after it.
    """
    if not pond.guarded:
        raise LakeError("pour needs a pond made with guarded=True: others may overwrite steps that are not poured")
    if writer.stream.lanes != pond.lanes:
        raise LakeError(f"the pond has {pond.lanes} lanes, stream {writer.stream.name!r} has {writer.stream.lanes}")
    acks: list[Ack] = []
    steps_per_lane = max(1, steps_per_append // pond.lanes)
    ends = pond.heads if heads is None else heads
    while True:
        steps, poured = _unpoured(pond, steps_per_lane, ends)
        if steps is None:
            return acks
        acks.append(writer.append(steps))
        pond.poured = poured


def _unpoured(pond: Pond, max_steps: int, ends: Array) -> tuple[Steps | None, Array]:
    """Return the next up to `max_steps` steps of every lane that are not poured, and the new `pond.poured`."""
    lanes = []
    for lane in range(pond.lanes):
        places = np.arange(pond.poured[lane], ends[lane])
        slots = lane * pond.ring_size + places % pond.ring_size
        lanes.append((slots, pond.flags[slots]))
    counts = {int(np.count_nonzero(flags & FINAL == 0)) for _, flags in lanes}
    steps = min(min(counts), max_steps)
    if steps == 0:
        return None, pond.poured
    step_slots, poured = [], pond.poured.copy()
    for lane, (slots, flags) in enumerate(lanes):
        place = np.flatnonzero(flags & FINAL == 0)
        end = int(place[steps]) if len(place) > steps else len(slots)
        poured[lane] += end
        step_slots.append(slots[place[:steps]])
    where = np.stack(step_slots, axis=1)  # [T, L]
    flags = pond.flags[where]
    has_final = (flags & HAS_FINAL) > 0
    # A final observation is stored after its step, in the lane's ring.
    lane_begin = where // pond.ring_size * pond.ring_size
    final = lane_begin + (where - lane_begin + 1) % pond.ring_size

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
    ), poured


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
    """Replace the pond's content by n different transitions, drawn uniformly from the lake. Returns its records.

    Each record that any of them needs (its stack, its n steps, its next observation) is stored once, so neighbours
    share theirs. `stack` and `n_step` are the largest that will be sampled. `threads` read ahead; `progress(done, of)`.
    """
    if pond.schema != lake.schema:
        raise LakeError("the pond and the lake have different schemas")
    lake.require_intact()
    assembler = lake.assembler()
    number, drawn = _draw_different(assembler, n, rng, stack or 1, n_step)
    return _store(pond, lake, assembler, number, drawn, stack or 1, n_step, threads, progress)


def fill_blocks(
    pond: Pond,
    lake: Lake,
    n: int,
    rng: np.random.Generator,
    *,
    length: int,
    stack: int | None = None,
    newest: int | None = None,
    threads: int = 2,
) -> int:
    """Replace the pond's content by at least n transitions in different blocks of `length` steps; return their number.

    All blocks are equally likely, and where they begin is drawn anew, so that every step is. `newest` steps of each lane are
    drawn from; None: all. If there are fewer than n transitions, all of them are taken.
    """
    if pond.schema != lake.schema:
        raise LakeError("the pond and the lake have different schemas")
    lake.require_intact()
    assembler, offset = lake.assembler(), int(rng.integers(length))
    found = [list_blocks(view, length, stack=stack or 1, offset=offset, newest=newest) for view in assembler.views]
    number = np.repeat(np.arange(len(found), dtype=np.int32), [len(blocks) for blocks in found])
    if not len(number):
        raise LakeError(f"{lake.folder} has no transitions with stack {stack or 1}")
    place = np.concatenate([np.arange(len(blocks)) for blocks in found])
    order = rng.permutation(len(number))
    ends = np.cumsum(np.concatenate([blocks.steps for blocks in found])[order])
    order = order[: int(np.searchsorted(ends, n)) + 1]
    streams, records = [], []
    for stream in np.unique(number[order]).tolist():
        which = np.sort(place[order[number[order] == stream]])
        mine = block_records(assembler.views[stream], found[stream], which, length)
        records.append(np.sort(mine[mine != NO_RECORD]))
        streams.append(np.full(len(records[-1]), stream, np.int32))
    drawn = np.concatenate(records)
    _store(pond, lake, assembler, np.concatenate(streams), drawn, stack or 1, 1, threads, None)
    return len(drawn)


def _store(
    pond: Pond,
    lake: Lake,
    assembler: Assembler,
    number: Array,
    drawn: Array,
    stack: int,
    n_step: int,
    threads: int,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Replace the pond's content by these transitions: records `drawn` of streams `number`. Return its records."""
    streams, records, flags, run_begin = _runs(assembler, number, drawn, stack, n_step)
    if len(records) > pond.capacity:
        raise PondFull(
            f"{len(drawn):,} transitions with stack {stack} and n_step {n_step} need {len(records):,} records; the pond "
            f"has {pond.capacity:,}. Make it larger, or draw fewer."
        )
    pond.clear()
    blocks = [slice(begin, begin + RECORDS_PER_BLOCK) for begin in range(0, len(records), RECORDS_PER_BLOCK)]
    with ThreadPoolExecutor(threads, thread_name_prefix="pond-fill") as pool:
        waiting = [pool.submit(read_fields, assembler, streams[b], records[b]) for b in blocks[: 2 * threads]]
        for k, block in enumerate(blocks):
            fields, damaged = waiting.pop(0).result()
            if k + 2 * threads < len(blocks):
                later = blocks[k + 2 * threads]
                waiting.append(pool.submit(read_fields, assembler, streams[later], records[later]))
            raise_damage([damage for _, damage in damaged], lake.folder)
            for name, values in fields.items():
                source = torch.from_numpy(values)
                pond.fields[name][block.start : block.start + len(values)] = source.to(
                    pond.device, pond.fields[name].dtype
                )
            if progress:
                progress(min(block.stop, len(records)), len(records))
    pond.set_runs(flags, run_begin)
    return len(records)


def _draw_different(
    assembler: Assembler, n: int, rng: np.random.Generator, stack: int, n_step: int
) -> tuple[Array, Array]:
    """Draw n different valid transitions: streams and records. All subsets of n are equally likely."""
    views = assembler.views
    available = sum(view.transitions(stack, n_step) for view in views)
    if n > available:
        raise LakeError(
            f"the lake has {available:,} transitions (stack {stack}, n_step {n_step}); {n:,} were requested"
        )
    bases = np.cumsum([0, *(view.num_records for view in views)])
    if 2 * n <= available:  # draw until n are different: few draws are repetitions
        drawn = np.empty(0, np.int64)
        while len(drawn) < n:
            more = draw_transitions(views, None, n - len(drawn), rng, stack=stack, n_step=n_step, repeat=False)
            drawn = np.unique(np.concatenate([drawn, bases[more.stream] + more.observed[:, -1]]))
    else:
        drawn = np.sort(rng.choice(_all_valid(assembler, bases, stack, n_step), n, replace=False))
    number = np.searchsorted(bases, drawn, side="right") - 1
    return number.astype(np.int32), drawn - bases[number]


def _all_valid(assembler: Assembler, bases: Array, stack: int, n_step: int) -> Array:
    valid = []
    for base, view in zip(bases, assembler.views, strict=False):
        for begin in range(0, view.num_records, 1 << 18):
            records = np.arange(begin, min(begin + (1 << 18), view.num_records))
            valid.append(base + records[_plan(view, records, stack, n_step)[3] > 0])
    return np.concatenate(valid)


def _plan(view: RecordView, records: Array, stack: int, n_step: int) -> tuple[Array, Array, Array, Array]:
    observed, next_observed = (np.full((len(records), stack), NO_RECORD, np.int64) for _ in range(2))
    path, steps = np.empty((len(records), n_step), np.int64), np.empty(len(records), np.int32)
    plan_transitions(records, view.flags, view.runs, False, observed, next_observed, path, steps)
    return observed, next_observed, path, steps


def _runs(
    assembler: Assembler, number: Array, drawn: Array, stack: int, n_step: int
) -> tuple[Array, Array, Array, Array]:
    """Return all records that the drawn transitions need, in runs of neighbours of a lane: streams, records, flags, runs."""
    streams, all_records, all_flags, begins = [], [], [], []
    total = 0
    for k in np.unique(number).tolist():
        view, mine = assembler.views[k], drawn[number == k]
        observed, next_observed, path, _ = _plan(view, mine, stack, n_step)
        records = np.unique(np.concatenate([observed, next_observed, path], axis=1))
        records = records[records != NO_RECORD]
        lane = (np.searchsorted(view.runs.begin, records, side="right") - 1) % view.runs.lanes
        records = records[np.lexsort((records, lane))]
        flags = view.flags[records].copy()
        flags[~np.isin(records, mine) & (flags & FINAL == 0)] |= CONTEXT
        first = ~succeeds(records, view.runs)
        begins.append(total + np.flatnonzero(first))
        total += len(records)
        streams.append(np.full(len(records), k, np.int32))
        all_records.append(records)
        all_flags.append(flags)
    run_begin = np.append(np.concatenate(begins), total)
    return np.concatenate(streams), np.concatenate(all_records), np.concatenate(all_flags), run_begin


def read_fields(assembler: Assembler, streams: Array, numbers: Array) -> tuple[dict[str, Array], DamageList]:
    """Read a block of records as columns of a pond."""
    schema = assembler.schema
    records, damaged = assembler.records(streams, numbers[:, None])
    observed, more = assembler.windows(streams, numbers[:, None], records)
    fields = {schema.column(field): observed[field.name][:, 0] for field in schema.observation}
    for name in (*COLUMNS, schema.action.name, *(field.name for field in schema.extra)):
        column = np.ascontiguousarray(records[name][:, 0])
        fields[name] = column.astype(COLUMNS[name]) if name in COLUMNS else column
    return fields, damaged + more


def restore_rings(pond: Pond, lake: Lake, streams: list[str], *, continue_episodes: bool) -> int:
    """Put the newest records of these streams' lanes, stream after stream, into the pond's rings; return their number.

    A pond that streams were added to as they were collected need not be in a checkpoint: the lake has all of it.
    `continue_episodes`: envs continue where the streams end; else the next step of every lane begins an episode.
    """
    views = [lake.view(name) for name in streams]
    if pond.guarded or sum(view.lanes for view in views) != pond.lanes:
        raise LakeError(f"streams {streams} have other lanes than the pond's {pond.lanes}, or the pond is guarded")
    lake.require_intact()
    numbers = [lake.streams.index(name) for name in streams]
    pond.clear()
    slots: list[Array] = []
    records: list[Array] = []
    origin: list[Array] = []
    lane, opened = 0, np.zeros(pond.lanes, bool)
    for number, view in zip(numbers, views, strict=True):
        for own in range(view.lanes):
            newest = newest_records(view, own, pond.ring_size)
            if len(newest):
                opened[lane] = not view.flags[newest[-1]] & (ENDED | FINAL)
            pond.heads[lane] = len(newest)
            slots.append(lane * pond.ring_size + np.arange(len(newest)))
            records.append(newest)
            origin.append(np.full(len(newest), number, np.int32))
            lane += 1
    slot, record, stream = np.concatenate(slots), np.concatenate(records), np.concatenate(origin)
    assembler = lake.assembler()
    for begin in range(0, len(record), RECORDS_PER_BLOCK):
        block = slice(begin, begin + RECORDS_PER_BLOCK)
        fields, damaged = read_fields(assembler, stream[block], record[block])
        raise_damage([damage for _, damage in damaged], lake.folder)
        where = torch.from_numpy(slot[block]).to(pond.device)
        for name, values in fields.items():
            pond.fields[name][where] = torch.from_numpy(values).to(pond.device, pond.fields[name].dtype)
    for number, view in zip(numbers, views, strict=True):
        mine = stream == number
        pond.flags[slot[mine]] = view.flags[record[mine]]
    lanes = LaneState.fresh(pond.lanes)
    lanes.open[:] = opened & continue_episodes
    pond.continue_with(lanes)
    return len(record)


def newest_records(view: View, lane: int, count: int) -> Array:
    """Return the last `count` records of one lane, oldest first."""
    runs_of_lane: list[Array] = []
    missing, runs = count, len(view.run_begin) - 1
    for run in range(runs - view.lanes + lane, -1, -view.lanes):
        begin, end = int(view.run_begin[run]), int(view.run_begin[run + 1])
        begin = max(begin, end - missing)
        runs_of_lane.append(np.arange(begin, end))
        missing -= end - begin
        if missing <= 0:
            break
    return np.concatenate(runs_of_lane[::-1]) if runs_of_lane else np.empty(0, np.int64)

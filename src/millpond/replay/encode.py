"""From steps `[T, L]` to bytes: records lane by lane, final observations behind their steps, frames one by one.

The rows of one append are ordered by lane, so that consecutive steps of a lane are neighbours on disk, and a stack of
frames with the next observation is mostly one read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.replay.checksum import row_checksums
from millpond.replay.lz4_frames import encode_rows
from millpond.replay.schema import FINAL, FIRST, HAS_FINAL, TERMINATED, TRUNCATED, Schema
from millpond.replay.steps import CheckedSteps

Array = np.ndarray[Any, Any]


@dataclass
class Lanes:
    """Where each lane's current episode stands. `open`: the next step goes on with it."""

    episode: Array
    episode_step: Array
    open: Array
    next_episode: int

    @staticmethod
    def fresh(lanes: int, next_episode: int = 0) -> Lanes:
        zeros = np.zeros(lanes, np.int64)
        return Lanes(zeros, zeros.copy(), np.zeros(lanes, bool), next_episode)


@dataclass(frozen=True)
class Encoded:
    records: Array
    frames: Array
    lane_rows: Array
    lanes: Lanes


def encode(steps: CheckedSteps, schema: Schema, lanes: Lanes, frame_begin: int, time: float) -> Encoded:
    """The bytes of one append; `lanes` is left as it was, the state after the append is in the result."""
    count = len(lanes.episode)
    has_final = steps.has_final
    lane_rows = steps.steps + has_final.sum(axis=0)
    lane_begin = np.cumsum(lane_rows) - lane_rows
    earlier_finals = np.cumsum(has_final, axis=0) - has_final
    place = lane_begin + np.arange(steps.steps)[:, None] + earlier_finals  # [T, L] row of each step
    final_place = place[has_final] + 1

    episode, episode_step, first, after = number_episodes(steps, lanes)
    records = np.zeros(int(lane_rows.sum()), schema.record)
    flags = first * FIRST + steps.terminated * TERMINATED + steps.truncated * TRUNCATED + has_final * HAS_FINAL
    columns = {
        **steps.columns,
        "flags": flags,
        "lane": np.broadcast_to(np.arange(count), place.shape),
        "episode": episode,
        "episode_step": episode_step,
    }
    provenance = ("lane", "episode", "agent", "round", "policy_version", "epsilon")
    for name, values in columns.items():
        records[name][place] = values
        if name in provenance:
            records[name][final_place] = values[has_final]
    records["flags"][final_place] = FINAL
    records["episode_step"][final_place] = episode_step[has_final] + 1
    records["time"] = time
    for field in schema.observation:
        if field.storage == "fixed":
            records[schema.column(field)][place] = steps.observation[field.name]
            records[schema.column(field)][final_place] = steps.final_observation[field.name]
    frames, frame_ends = _encode_frames(steps, schema, place, final_place, len(records))
    records["frame_end"] = frame_begin + frame_ends
    records["checksum"] = row_checksums(records)
    return Encoded(records, frames, lane_rows, after)


def number_episodes(steps: CheckedSteps, lanes: Lanes) -> tuple[Array, Array, Array, Lanes]:
    """Episode, step within it and whether it is the first, for [T, L]; and the lanes' state behind them."""
    ended = steps.terminated | steps.truncated
    first = np.empty(ended.shape, bool)
    first[0], first[1:] = ~lanes.open, ended[:-1]
    starts_at, lane_at = np.nonzero(first)
    episode = np.zeros(ended.shape, np.int64)
    episode[starts_at, lane_at] = lanes.next_episode + np.arange(len(starts_at))
    # Within a lane numbers grow, so a running maximum carries each episode's number to its last step.
    episode[0] = np.where(first[0], episode[0], lanes.episode)
    episode = np.maximum.accumulate(episode, axis=0)
    clock = np.arange(len(ended))[:, None]
    since = np.maximum.accumulate(np.where(first, clock, -1), axis=0)
    episode_step = np.where(since >= 0, clock - since, lanes.episode_step + clock)
    after = Lanes(episode[-1], episode_step[-1] + 1, ~ended[-1], lanes.next_episode + len(starts_at))
    return episode, episode_step, first, after


def _encode_frames(
    steps: CheckedSteps, schema: Schema, place: Array, final_place: Array, rows: int
) -> tuple[Array, Array]:
    """All frames in the order of the rows, and where each row's frames end."""
    if not schema.compressed:
        return np.empty(0, np.uint8), np.zeros(rows, np.int64)
    # Number of a row's observation: T * L steps in the order of the arrays, then the final ones.
    order = np.empty(rows, np.int64)
    order[place.reshape(-1)] = np.arange(place.size)
    order[final_place] = place.size + np.arange(len(final_place))
    fields = schema.compressed
    widths = [field.nbytes for field in fields]
    observed = [as_bytes(steps.observation[field.name], place.size) for field in fields]
    finals = [as_bytes(steps.final_observation[field.name], len(final_place)) for field in fields]
    if len(fields) == 1:
        return encode_rows(order, observed[0], finals[0], widths)
    return encode_rows(order, np.concatenate(observed, axis=1), np.concatenate(finals, axis=1), widths)


def as_bytes(array: Array, count: int) -> Array:
    """An array of `count` frames as `[count, bytes]`."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(count, array.nbytes // max(count, 1))

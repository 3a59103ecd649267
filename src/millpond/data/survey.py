"""One pass over all vectors, actions, rewards and flags, an episode at a time: what an audit is made from.

Images are not read: there may be a hundred gigabytes of them.

# N episodes  D columns  A numbers of an action
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from millpond.data.episodes import Episodes
from millpond.data.source import Array

LINEAR = 0.9999  # correlation with the step's number from which a column is a clock
SHORTEST = 4  # steps that an episode needs for that to mean anything
SAME = 1e-6  # of a column's range: values that differ by less are the same


@dataclass
class Survey:
    """What one pass over the data found. Columns are those of `Episodes.columns`."""

    data: Episodes
    lowest: Array  # [D] of finite values
    highest: Array
    linear: Array  # [D] whether a column rises or falls evenly with time in every episode
    by_step: Array  # [D] whether its value follows from the step's number alone, wherever two episodes can be compared
    moved: Array  # [D] whether it changes there
    timed_episodes: int = 0  # episodes that were long enough to see
    not_finite: list[tuple[str, str]] = field(default_factory=list)  # episode, array
    action_lowest: Array = field(default_factory=lambda: np.zeros(0))  # [A]
    action_highest: Array = field(default_factory=lambda: np.zeros(0))
    action_values: int = 0
    action_bounds: tuple[float, float] | None = None  # that the files themselves give
    outside: int = 0  # values of actions beyond them; beyond -1 and 1 where there are none
    same: dict[str, list[int]] = field(default_factory=dict)  # digest -> episodes
    flags_inside: list[str] = field(default_factory=list)  # episodes that go on after a terminated or truncated step
    flags_missing: list[str] = field(default_factory=list)  # episodes with flags, none of them at the end
    flags_both: list[str] = field(default_factory=list)
    terminated: int = 0  # episodes whose last step is flagged so
    rewards_before_the_end: bool = False


def survey(data: Episodes, progress: Callable[[int], None] | None = None) -> Survey:
    """Read every episode once. `progress` is told how many were read."""
    width = len(data.columns)
    found = Survey(
        data,
        np.full(width, np.inf),
        np.full(width, -np.inf),
        np.ones(width, bool),
        np.ones(width, bool),
        np.zeros(width, bool),
    )
    bounds = {source.action_bounds for source in data.sources}
    found.action_bounds = bounds.pop() if len(bounds) == 1 else None
    reference = np.empty((0, width))
    for episode in range(len(data)):
        vector = data.vectors(episode).astype(np.float64)
        _ranges(found, vector)
        if _numbers(found, episode, vector):
            reference = _clocks(found, vector, reference)
        _flags(found, episode)
        if progress:
            progress(episode + 1)
    return found


def _ranges(found: Survey, vector: Array) -> None:
    finite = np.isfinite(vector)
    found.lowest = np.minimum(found.lowest, np.where(finite, vector, np.inf).min(0))
    found.highest = np.maximum(found.highest, np.where(finite, vector, -np.inf).max(0))


def _clocks(found: Survey, vector: Array, reference: Array) -> Array:
    """A clock is even in time, or the same function of the step's number in every episode. Gives the longest episode."""
    if len(vector) >= SHORTEST:
        found.timed_episodes += 1
        found.linear &= _even(vector)
    shared = min(len(vector), len(reference))
    if shared >= SHORTEST:
        spread = np.maximum(found.highest - found.lowest, 0)
        with np.errstate(invalid="ignore"):
            found.by_step &= (np.abs(vector[:shared] - reference[:shared]) <= SAME * spread).all(0)
        found.moved |= np.ptp(vector[:shared], axis=0) > 0
    return vector if len(vector) > len(reference) else reference


def _even(vector: Array) -> Array:
    """Whether each column correlates with time all but perfectly."""
    time = np.arange(len(vector)) - (len(vector) - 1) / 2
    with np.errstate(invalid="ignore", over="ignore"):
        centred = vector - vector.mean(0)
        norm = np.sqrt((centred**2).sum(0) * (time**2).sum())
        even: Array = np.abs(time @ centred) >= LINEAR * np.where(norm > 0, norm, np.inf)
    return even


def _numbers(found: Survey, episode: int, vector: Array) -> bool:
    """Ranges of actions, values that are not finite, and a digest of everything. False for a copy of another one."""
    data, name = found.data, found.data.names[episode]
    length = int(data.lengths[episode])
    actions = np.empty((length, 0)) if data.action is None else np.asarray(data.actions(episode), np.float64)
    actions = actions.reshape(length, 0 if data.action is None else data.action.width)
    rewards = np.asarray(data.rewards(episode), np.float64) if data.has_rewards else np.zeros(0)
    arrays = (("observation", vector), ("action", actions), ("reward", rewards))
    found.not_finite += [(name, what) for what, array in arrays if not np.isfinite(array).all()]
    found.rewards_before_the_end |= bool((rewards[:-1] != 0).any())
    if not found.action_values:
        found.action_lowest, found.action_highest = (
            np.full(actions.shape[1], np.inf),
            np.full(actions.shape[1], -np.inf),
        )
    found.action_lowest = np.fmin(found.action_lowest, actions.min(0))
    found.action_highest = np.fmax(found.action_highest, actions.max(0))
    found.action_values += actions.size
    low, high = found.action_bounds or (-1.0, 1.0)
    slack = SAME * (high - low)
    found.outside += int(((actions < low - slack) | (actions > high + slack)).sum())
    digest = hashlib.blake2b(digest_size=16)
    for _, array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    copies = found.same.setdefault(digest.hexdigest(), [])
    copies.append(episode)
    return len(copies) == 1


def _flags(found: Survey, episode: int) -> None:
    """Flags that contradict each other or the episode's end. A run of flags up to the end counts as one."""
    ends, name = found.data.ends(episode), found.data.names[episode]
    flags = [array for array in (ends.terminated, ends.truncated) if array is not None]
    if not flags:
        return
    ended = np.logical_or.reduce(flags)
    if not ended[-1]:
        found.flags_missing.append(name)
    first = int(np.argmax(ended)) if ended.any() else len(ended)
    if not ended[first:].all():
        found.flags_inside.append(name)
    if len(flags) == 2 and (flags[0] & flags[1]).any():
        found.flags_both.append(name)
    found.terminated += bool(ends.terminated is not None and ends.terminated[-1])

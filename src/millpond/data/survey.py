"""One pass over all vectors, actions, rewards and flags, one episode at a time: the facts that an audit is based on.

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

CLOCK_CORRELATION = 0.9999  # correlation with the step index from which a column is a clock
MIN_CLOCK_STEPS = 4  # shortest episode for which that correlation means anything
TOLERANCE = 1e-6  # relative to a column's range: values that differ by less count as equal


@dataclass
class Survey:
    """Facts of one pass over the data. Columns are those of `Episodes.columns`."""

    data: Episodes
    lowest: Array  # [D] of finite values
    highest: Array
    linear: Array  # [D] True if a column is linear in time in every episode
    by_step: Array  # [D] True if its value depends on the step index alone, wherever two episodes can be compared
    moved: Array  # [D] True if it changes there
    timed_episodes: int = 0  # episodes that were long enough for that
    not_finite: list[tuple[str, str]] = field(default_factory=list)  # episode, array
    action_lowest: Array = field(default_factory=lambda: np.zeros(0))  # [A]
    action_highest: Array = field(default_factory=lambda: np.zeros(0))
    action_values: int = 0
    action_bounds: tuple[float, float] | None = None  # as stated by the files
    outside: int = 0  # values of actions outside the stated bounds, or outside -1 and 1 if there are none
    copies: dict[str, list[int]] = field(default_factory=dict)  # digest -> episodes
    flags_inside: list[str] = field(default_factory=list)  # episodes that continue after a terminated or truncated step
    flags_missing: list[str] = field(default_factory=list)  # episodes with flags, but none at the end
    flags_both: list[str] = field(default_factory=list)
    terminated: int = 0  # episodes whose last step is flagged as terminated
    rewards_before_the_end: bool = False


def survey_episodes(data: Episodes, progress: Callable[[int], None] | None = None) -> Survey:
    """Read every episode once; call `progress` with the number read so far."""
    width = len(data.columns)
    survey = Survey(
        data,
        np.full(width, np.inf),
        np.full(width, -np.inf),
        np.ones(width, bool),
        np.ones(width, bool),
        np.zeros(width, bool),
    )
    bounds = {source.action_bounds for source in data.sources}
    survey.action_bounds = bounds.pop() if len(bounds) == 1 else None
    reference = np.empty((0, width))
    for episode in range(len(data)):
        vector = data.vectors(episode).astype(np.float64)
        _survey_ranges(survey, vector)
        if _survey_numbers(survey, episode, vector):
            reference = _survey_clocks(survey, vector, reference)
        _survey_flags(survey, episode)
        if progress:
            progress(episode + 1)
    return survey


def _survey_ranges(survey: Survey, vector: Array) -> None:
    finite = np.isfinite(vector)
    survey.lowest = np.minimum(survey.lowest, np.where(finite, vector, np.inf).min(0))
    survey.highest = np.maximum(survey.highest, np.where(finite, vector, -np.inf).max(0))


def _survey_clocks(survey: Survey, vector: Array, reference: Array) -> Array:
    """Look for clocks: columns linear in time, or the same function of the step index in every episode.

    `reference` is the longest episode so far; return the new one.
    """
    if len(vector) >= MIN_CLOCK_STEPS:
        survey.timed_episodes += 1
        survey.linear &= _is_linear(vector)
    shared = min(len(vector), len(reference))
    if shared >= MIN_CLOCK_STEPS:
        spread = np.maximum(survey.highest - survey.lowest, 0)
        with np.errstate(invalid="ignore"):
            survey.by_step &= (np.abs(vector[:shared] - reference[:shared]) <= TOLERANCE * spread).all(0)
        survey.moved |= np.ptp(vector[:shared], axis=0) > 0
    return vector if len(vector) > len(reference) else reference


def _is_linear(vector: Array) -> Array:
    """bool [D]: True where a column correlates almost perfectly with time."""
    time = np.arange(len(vector)) - (len(vector) - 1) / 2
    with np.errstate(invalid="ignore", over="ignore"):
        centred = vector - vector.mean(0)
        norm = np.sqrt((centred**2).sum(0) * (time**2).sum())
        linear: Array = np.abs(time @ centred) >= CLOCK_CORRELATION * np.where(norm > 0, norm, np.inf)
    return linear


def _survey_numbers(survey: Survey, episode: int, vector: Array) -> bool:
    """Record action ranges, non-finite values and a digest of everything. False for a copy of an earlier episode."""
    data, name = survey.data, survey.data.names[episode]
    length = int(data.lengths[episode])
    actions = np.empty((length, 0)) if data.action is None else np.asarray(data.actions(episode), np.float64)
    actions = actions.reshape(length, 0 if data.action is None else data.action.width)
    rewards = np.asarray(data.rewards(episode), np.float64) if data.has_rewards else np.zeros(0)
    arrays = (("observation", vector), ("action", actions), ("reward", rewards))
    survey.not_finite += [(name, kind) for kind, array in arrays if not np.isfinite(array).all()]
    survey.rewards_before_the_end |= bool((rewards[:-1] != 0).any())
    if not survey.action_values:
        survey.action_lowest = np.full(actions.shape[1], np.inf)
        survey.action_highest = np.full(actions.shape[1], -np.inf)
    survey.action_lowest = np.fmin(survey.action_lowest, actions.min(0))
    survey.action_highest = np.fmax(survey.action_highest, actions.max(0))
    survey.action_values += actions.size
    low, high = survey.action_bounds or (-1.0, 1.0)
    slack = TOLERANCE * (high - low)
    survey.outside += int(((actions < low - slack) | (actions > high + slack)).sum())
    digest = hashlib.blake2b(digest_size=16)
    for _, array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    copies = survey.copies.setdefault(digest.hexdigest(), [])
    copies.append(episode)
    return len(copies) == 1


def _survey_flags(survey: Survey, episode: int) -> None:
    """Record flags that contradict each other or the end of the episode. Consecutive flags up to the end count as one."""
    ends, name = survey.data.ends(episode), survey.data.names[episode]
    flags = [array for array in (ends.terminated, ends.truncated) if array is not None]
    if not flags:
        return
    ended = np.logical_or.reduce(flags)
    if not ended[-1]:
        survey.flags_missing.append(name)
    first = int(np.argmax(ended)) if ended.any() else len(ended)
    if not ended[first:].all():
        survey.flags_inside.append(name)
    if len(flags) == 2 and (flags[0] & flags[1]).any():
        survey.flags_both.append(name)
    survey.terminated += bool(ends.terminated is not None and ends.terminated[-1])

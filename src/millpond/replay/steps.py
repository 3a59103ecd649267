"""Steps as they are handed over: `[T, L]`, T steps of each of L lanes, with the final observations of episodes.

# T steps  L lanes  K final observations
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millpond.plurals import plural
from millpond.replay.errors import LakeError
from millpond.replay.schema import Field, Schema

Array = np.ndarray[Any, Any]


@dataclass
class Steps:
    """T steps of L lanes.

    observation        [T, L, ...]  what the agent saw before it acted; a dict where the schema has several fields
    action             [T, L, ...]
    reward             [T, L]
    terminated         [T, L]       the episode came to its own end with this step
    truncated          [T, L]       it was cut off; its final observation must be given
    final_observation  [K, ...]     of the places where `has_final` is set, step by step, lane by lane
    has_final          [T, L]       None: where `truncated` is set; or, if there are as many final observations as
                                    ended episodes, where either flag is set
    extra              {name: [T, L, ...]}, one for each extra field of the schema
    agent, round, policy_version, epsilon: where the steps came from, numbers or arrays that broadcast to [T, L]
    """

    observation: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_observation: Any = None
    has_final: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    agent: Any = 0
    round: Any = 0
    policy_version: Any = 0
    epsilon: Any = 0.0


@dataclass
class CheckedSteps:
    """Steps of the right shapes and dtypes, observations by field name."""

    observation: dict[str, Array]
    final_observation: dict[str, Array]
    columns: dict[str, Array]
    terminated: Array
    truncated: Array
    has_final: Array
    steps: int


def check(steps: Steps, schema: Schema, lanes: int) -> CheckedSteps:
    """Compare every array with the schema; errors name the field, what came and what was expected."""
    reward = np.asarray(steps.reward)
    if reward.ndim != 2 or reward.shape[1] != lanes or reward.shape[0] < 1:
        raise LakeError(f"reward has shape {reward.shape}; expected [T, {lanes}] with T of at least 1")
    shape = reward.shape
    terminated, truncated = _flags("terminated", steps.terminated, shape), _flags("truncated", steps.truncated, shape)
    finals = {} if steps.final_observation is None else schema.observations(steps.final_observation)
    first = next(iter(finals.values())) if finals else np.empty(0)
    has_final = _has_final(steps, len(first) if first.ndim else 0, terminated, truncated)
    count = int(np.count_nonzero(has_final))
    columns: dict[str, Array] = {"reward": reward.astype(np.float32)}
    for name in ("agent", "round", "policy_version", "epsilon"):
        columns[name] = _provenance(name, getattr(steps, name), shape, schema)
    columns[schema.action.name] = _cast(schema.action, np.asarray(steps.action), shape)
    if set(steps.extra) != {extra.name for extra in schema.extra}:
        raise LakeError(f"extra has {sorted(steps.extra)}; the schema has {[extra.name for extra in schema.extra]}")
    for extra in schema.extra:
        columns[extra.name] = _cast(extra, np.asarray(steps.extra[extra.name]), shape)
    observation = schema.observations(steps.observation)
    for each in schema.observation:
        observation[each.name] = _cast(each, observation[each.name], shape)
        finals[each.name] = (
            _cast(each, finals[each.name], (count,)) if count else np.empty((0, *each.shape), each.stored_dtype)
        )
    return CheckedSteps(observation, finals, columns, terminated, truncated, has_final, shape[0])


def _has_final(steps: Steps, entries: int, terminated: Array, truncated: Array) -> Array:
    """Return the steps [T, L] that the final observations belong to. None of these is dropped, and none is missing."""
    ended = terminated | truncated
    if steps.has_final is not None:
        has_final = _flags("has_final", steps.has_final, ended.shape)
    elif steps.final_observation is None:
        has_final = np.zeros_like(ended)
    else:
        has_final = ended if entries == np.count_nonzero(ended) else truncated
    if np.any(has_final & ~ended):
        raise LakeError("has_final is set where no episode ended; only ended episodes have a final observation")
    missing = int(np.count_nonzero(truncated & ~terminated & ~has_final))
    if missing:
        raise LakeError(
            f"{plural(missing, 'truncated step')} without a final observation; a truncated episode bootstraps from it, "
            f"so give final_observation [K, ...] with one entry for each"
        )
    count = int(np.count_nonzero(has_final))
    if entries != count:
        expected = (
            f"has_final is set for {count:,}"
            if steps.has_final is not None
            else f"{np.count_nonzero(truncated):,} steps are truncated and {np.count_nonzero(ended):,} end an episode"
        )
        raise LakeError(
            f"final_observation has {entries:,} entries, and {expected}; give one for each truncated step, or one for each "
            f"step that ends an episode, or say in has_final [T, L] which steps they belong to"
        )
    return has_final


def _flags(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    array = np.asarray(value)
    if array.shape != shape:
        raise LakeError(f"{name} has shape {array.shape}; expected {shape}, like reward")
    return array.astype(bool)


def _provenance(name: str, value: Any, shape: tuple[int, ...], schema: Schema) -> Array:
    array, dtype = np.asarray(value), schema.record[name]
    try:
        wide = np.broadcast_to(array, shape)
    except ValueError:
        raise LakeError(f"{name} has shape {array.shape}; expected one that broadcasts to {shape}") from None
    if dtype.kind == "u" and array.size and (array.min() < 0 or array.max() > np.iinfo(dtype).max):
        raise LakeError(f"{name}={array.min()}..{array.max()} must lie between 0 and {np.iinfo(dtype).max:,}")
    return wide.astype(dtype)


def _cast(spec: Field, array: Array, lead: tuple[int, ...]) -> Array:
    """The field's array in its stored dtype; a cast that could change a value is refused."""
    if array.shape != (*lead, *spec.shape):
        raise LakeError(f"field {spec.name!r} has shape {array.shape}; expected {(*lead, *spec.shape)}")
    if array.dtype == spec.stored_dtype:
        return np.ascontiguousarray(array)
    cast = array.astype(spec.stored_dtype)
    if not np.array_equal(cast, array, equal_nan=array.dtype.kind == "f") and not (
        array.dtype.kind == "f" and spec.stored_dtype.kind == "f"
    ):
        raise LakeError(f"field {spec.name!r} has dtype {array.dtype}, and values that {spec.dtype} cannot hold")
    return np.ascontiguousarray(cast)


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


def number_episodes(steps: CheckedSteps, lanes: Lanes) -> tuple[Array, Array, Array, Lanes]:
    """LakeEpisode, step within it and whether it is the first, for [T, L]; and the lanes' state behind them."""
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

"""`Steps`: what is added to a pond or appended to a lake, validated once.

A step is validated against the schema where it enters: in `Collection.as_steps`, `Pond.add` or `Writer.append`,
whichever comes first. The result remembers its schema, so that stores further down the path take it unchanged.

T steps   L lanes   K final observations
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millpond.formatting import plural
from millpond.replay.schema import Field, LakeError, Schema

Array = np.ndarray[Any, Any]
PROVENANCE = ("agent", "round", "policy_version", "epsilon")


@dataclass
class Steps:
    """T consecutive steps of L lanes.

    observation        [T, L, ...]  seen before the action; a dict if the schema has several fields
    action             [T, L, ...]
    reward             [T, L]
    terminated         [T, L]       the episode ended with this step
    truncated          [T, L]       the episode was cut off here; its final observation is required
    final_observation  [K, ...]     of the steps where `has_final` is set, ordered by step, then lane
    has_final          [T, L]       None: where `truncated` is set; or, if there are as many final observations as
                                    ended episodes, where either flag is set
    extra              {name: [T, L, ...]}, one for each extra field of the schema
    agent, round, policy_version, epsilon: where the steps came from, numbers or arrays that broadcast to [T, L]

    `valid_for` is the schema that the steps were validated against, set by `validate`: then all fields are arrays of
    the stored dtypes, provenance is [T, L], and observations are dicts by field name.
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
    valid_for: Schema | None = field(default=None, kw_only=True, repr=False)

    def columns(self) -> dict[str, Array]:
        """Return everything of validated steps but observations and flags, by the name of its column in a record."""
        assert self.valid_for is not None
        provenance = {name: getattr(self, name) for name in PROVENANCE}
        return {"reward": self.reward, self.valid_for.action.name: self.action, **provenance, **self.extra}


def validate(steps: Steps, schema: Schema, lanes: int) -> Steps:
    """Return the steps as arrays of the schema's shapes and dtypes; errors name the field, its shape and the right one.

    Steps that were validated against this schema before are returned unchanged.
    """
    if steps.valid_for == schema and steps.reward.shape[1] == lanes:
        return steps
    reward = np.asarray(steps.reward)
    if reward.ndim != 2 or reward.shape[1] != lanes or reward.shape[0] < 1:
        raise LakeError(f"reward has shape {reward.shape}; expected [T, {lanes}] with T of at least 1")
    shape = reward.shape
    terminated, truncated = _flags("terminated", steps.terminated, shape), _flags("truncated", steps.truncated, shape)
    finals = {} if steps.final_observation is None else schema.observations(steps.final_observation)
    first = next(iter(finals.values())) if finals else np.empty(0)
    has_final = _has_final(steps, len(first) if first.ndim else 0, terminated, truncated)
    provenance = {name: _provenance(name, getattr(steps, name), shape, schema) for name in PROVENANCE}
    action = _cast(schema.action, np.asarray(steps.action), shape)
    if set(steps.extra) != {extra.name for extra in schema.extra}:
        raise LakeError(f"extra has {sorted(steps.extra)}; the schema has {[extra.name for extra in schema.extra]}")
    extras = {extra.name: _cast(extra, np.asarray(steps.extra[extra.name]), shape) for extra in schema.extra}
    observation = schema.observations(steps.observation)
    count = int(np.count_nonzero(has_final))
    for each in schema.observation:
        observation[each.name] = _cast(each, observation[each.name], shape)
        finals[each.name] = (
            _cast(each, finals[each.name], (count,)) if count else np.empty((0, *each.shape), each.stored_dtype)
        )
    return Steps(
        observation,
        action,
        reward.astype(np.float32),
        terminated,
        truncated,
        finals,
        has_final,
        extras,
        **provenance,
        valid_for=schema,
    )


def join_lanes(parts: Sequence[Steps]) -> Steps:
    """Return validated steps [T, L] of several streams as one [T, sum of L]."""
    schema = parts[0].valid_for
    assert schema is not None
    assert all(part.valid_for == schema for part in parts)

    def joined(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts], axis=1)

    # Final observations are ordered by step, then lane, within each part; the same order is needed over all parts.
    order = np.argsort(np.concatenate([np.nonzero(part.has_final)[0] for part in parts]), kind="stable")
    names = [each.name for each in schema.observation]
    return Steps(
        observation={name: np.concatenate([part.observation[name] for part in parts], axis=1) for name in names},
        action=joined("action"),
        reward=joined("reward"),
        terminated=joined("terminated"),
        truncated=joined("truncated"),
        final_observation={name: np.concatenate([p.final_observation[name] for p in parts])[order] for name in names},
        has_final=joined("has_final"),
        extra={each.name: np.concatenate([p.extra[each.name] for p in parts], axis=1) for each in schema.extra},
        **{name: joined(name) for name in PROVENANCE},
        valid_for=schema,
    )


def _has_final(steps: Steps, entries: int, terminated: Array, truncated: Array) -> Array:
    """Return the steps [T, L] that the final observations belong to: every one is used, and none is missing."""
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
            f"step that ends an episode, or set has_final [T, L] for the steps that they belong to"
        )
    return has_final


def _flags(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    array = np.asarray(value)
    if array.shape != shape:
        raise LakeError(f"{name} has shape {array.shape}; expected {shape}, like reward")
    return array.astype(bool)


def _provenance(name: str, value: Any, shape: tuple[int, ...], schema: Schema) -> Array:
    array, dtype = np.asarray(value), schema.record[name]
    if dtype.kind == "u" and array.size:
        least, most = (int(array), int(array)) if array.ndim == 0 else (array.min(), array.max())
        if least < 0 or most > np.iinfo(dtype).max:
            raise LakeError(f"{name}={least}..{most} must be between 0 and {np.iinfo(dtype).max:,}")
    out = np.empty(shape, dtype)
    try:
        out[:] = array
    except ValueError:
        raise LakeError(f"{name} has shape {array.shape}; expected one that broadcasts to {shape}") from None
    return out


def _cast(spec: Field, array: Array, lead: tuple[int, ...]) -> Array:
    """Return a field's array in its stored dtype; refuse a cast that could change a value."""
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
class LaneState:
    """The current episode of each lane [L]. `open`: the next step continues it."""

    episode: Array
    episode_step: Array
    open: Array
    next_episode: int

    @staticmethod
    def fresh(lanes: int, next_episode: int = 0) -> LaneState:
        zeros = np.zeros(lanes, np.int64)
        return LaneState(zeros, zeros.copy(), np.zeros(lanes, bool), next_episode)


def number_episodes(steps: Steps, lanes: LaneState) -> tuple[Array, Array, Array, LaneState]:
    """Return episode number, step within the episode and is-first-step, [T, L] each; and the lanes after these steps."""
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
    after = LaneState(episode[-1], episode_step[-1] + 1, ~ended[-1], lanes.next_episode + len(starts_at))
    return episode, episode_step, first, after

"""Steps as they are handed over: `[T, L]`, T steps of each of L lanes, with the final observations of episodes.

# T steps  L lanes  K final observations
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millpond.replay.faults import LakeError
from millpond.replay.schema import Field, Schema

Array = np.ndarray[Any, Any]


@dataclass
class Steps:
    """What happened in T steps of L lanes.

    observation        [T, L, ...]  what the agent saw before it acted; a dict where the schema has several fields
    action             [T, L, ...]
    reward             [T, L]
    terminated         [T, L]       the episode came to its own end with this step
    truncated          [T, L]       it was cut off; its final observation must be given
    final_observation  [K, ...]     of the places where `has_final` is set, step by step, lane by lane
    has_final          [T, L]       None: exactly where `truncated` is set
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
    has_final = truncated.copy() if steps.has_final is None else _flags("has_final", steps.has_final, shape)
    if steps.has_final is None and steps.final_observation is None:
        has_final &= ~terminated
    if np.any(has_final & ~(terminated | truncated)):
        raise LakeError("has_final is set where no episode ended; only ended episodes have a final observation")
    missing = int(np.count_nonzero(truncated & ~terminated & ~has_final))
    count = int(np.count_nonzero(has_final))
    if missing or (count and steps.final_observation is None):
        raise LakeError(
            f"{missing or count} truncated steps have no final observation; a truncated episode bootstraps from it, "
            "so give final_observation [K, ...] with one entry for each"
        )
    columns: dict[str, Array] = {"reward": reward.astype(np.float32)}
    for name in ("agent", "round", "policy_version", "epsilon"):
        columns[name] = _provenance(name, getattr(steps, name), shape, schema)
    columns[schema.action.name] = _cast(schema.action, np.asarray(steps.action), shape)
    if set(steps.extra) != {extra.name for extra in schema.extra}:
        raise LakeError(f"extra has {sorted(steps.extra)}; the schema has {[extra.name for extra in schema.extra]}")
    for extra in schema.extra:
        columns[extra.name] = _cast(extra, np.asarray(steps.extra[extra.name]), shape)
    observation = schema.observations(steps.observation)
    finals: dict[str, Array] = {}
    if count:
        finals = schema.observations(steps.final_observation)
    for each in schema.observation:
        observation[each.name] = _cast(each, observation[each.name], shape)
        finals[each.name] = (
            _cast(each, finals[each.name], (count,)) if count else np.empty((0, *each.shape), each.stored_dtype)
        )
    return CheckedSteps(observation, finals, columns, terminated, truncated, has_final, shape[0])


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

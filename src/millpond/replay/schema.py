"""The schema of a record: fields, flags and sizes in bytes; and the errors of ponds and lakes.

A record has the fields of an observation, the action, extra numbers, and provenance: where it came from.

A field is stored in one of two ways. `fixed`: inside the record (numbers). `lz4`: in the frames file, each array
compressed separately (images and other large arrays of bytes). All records have the same width, so that record r
begins at byte r * width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError

Storage = Literal["fixed", "lz4"]

# Smaller arrays of bytes are not worth compressing.
COMPRESS_FROM_BYTES = 256

# The first columns of every record; the first four bytes are the checksum of all that follow.
HEADER: list[tuple[str, str]] = [
    ("checksum", "<u4"),
    ("flags", "u1"),
    ("reserved", "u1"),
    ("lane", "<u2"),
    ("episode", "<u4"),
    ("episode_step", "<u4"),
    ("agent", "<u4"),
    ("round", "<u4"),
    ("policy_version", "<u4"),
    ("epsilon", "<f4"),
    ("time", "<f8"),
    ("frame_end", "<u4"),
    ("reward", "<f4"),
]

# Flags of a record.
FIRST = 1  # the first step of an episode
TERMINATED = 2
TRUNCATED = 4
FINAL = 8  # not a step: the final observation of an episode, directly after its last step
HAS_FINAL = 16  # an episode's last step whose final observation is stored after it
CONTEXT = 32  # in ponds only: a step stored for the stacks and returns of others, and never drawn itself
DAMAGED = 128  # in memory only: the record does not match its checksum
ENDED = TERMINATED | TRUNCATED
STORED_FLAGS = FIRST | TERMINATED | TRUNCATED | FINAL | HAS_FINAL  # all that a record on disk may have

# Before every frame in a lake: its length and its checksum.
FRAME_HEADER_BYTES = 8

MAX_RECORD_BYTES = 1 << 30

# The field of an observation that holds the mask of the actions allowed there.
ACTION_MASK = "action_mask"

# The extra field with the state [S, H] of an agent's memory before the step.
STATE = "state"

# Columns of a pond besides the fields of the schema.
COLUMNS = {"reward": "float32", "agent": "int64", "round": "int64", "policy_version": "int64", "epsilon": "float32"}


class LakeError(MillpondError):
    """Invalid input, or a request that a lake or pond cannot fulfil."""


class LakeFull(LakeError):
    """No space for an append. Nothing of it was stored, and nothing acknowledged was touched."""

    exit_code = 1


class LakeBusy(LakeError):
    """Another writer holds the stream."""


class LakeDamaged(LakeError):
    """Bytes on disk do not match their checksum. They are never returned as data."""

    exit_code = 1


class PondFull(MillpondError):
    """A pond would overwrite records that are not poured yet."""


@dataclass(frozen=True)
class Field:
    """One array of every record: its name, shape, dtype, and storage."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    storage: Storage = "fixed"

    @cached_property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Little-endian on every machine."""
        return np.dtype(self.dtype).newbyteorder("<")

    @staticmethod
    def of(name: str, shape: tuple[int, ...], dtype: str) -> Field:
        """Return a field with the storage that fits it: large arrays of bytes compressed, everything else fixed."""
        field = Field(name, tuple(int(side) for side in shape), np.dtype(dtype).name)
        large = field.nbytes >= COMPRESS_FROM_BYTES and np.dtype(dtype).itemsize == 1
        return Field(field.name, field.shape, field.dtype, "lz4" if large else "fixed")


@dataclass(frozen=True)
class Schema:
    """All fields of a record. An observation of one field named `observation` is a plain array, others are dicts."""

    observation: tuple[Field, ...]
    action: Field
    extra: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        taken = {name for name, _ in HEADER}
        for field in (*self.observation, self.action, *self.extra):
            if field.storage == "lz4" and field not in self.observation:
                raise LakeError(f"field {field.name!r}: only observations can be stored as lz4; make it fixed")
            if np.dtype(field.dtype).kind not in "biufc":
                raise LakeError(f"field {field.name!r} has dtype {field.dtype}; a lake stores numbers only")
            column = self.column(field)
            if column in taken:
                raise LakeError(f"two fields are called {column!r}; rename one")
            taken.add(column)
        if not self.observation:
            raise LakeError("a schema needs at least one field of observation")
        nbytes = sum(field.nbytes for field in (*self.observation, self.action, *self.extra))
        if nbytes > MAX_RECORD_BYTES:
            raise LakeError(f"a record would have {nbytes:,} bytes; it may have {MAX_RECORD_BYTES:,}")

    def column(self, field: Field) -> str:
        """Return the name of a field's column in a record; observations have a prefix, so that names never collide."""
        return f"observation/{field.name}" if field in self.observation else field.name

    @property
    def single(self) -> bool:
        """True if an observation is one plain array."""
        return len(self.observation) == 1 and self.observation[0].name == "observation"

    @cached_property
    def compressed(self) -> tuple[Field, ...]:
        return tuple(field for field in self.observation if field.storage == "lz4")

    @cached_property
    def record(self) -> np.dtype[Any]:
        """The dtype of a record, without gaps, so that its checksum covers every byte."""
        fixed = [field for field in self.observation if field.storage == "fixed"]
        columns = [(self.column(f), f.stored_dtype, f.shape) for f in (self.action, *self.extra, *fixed)]
        return np.dtype([*HEADER, *columns])

    @property
    def frame_bytes(self) -> int:
        """Bytes of all compressed fields of a record, uncompressed."""
        return sum(field.nbytes for field in self.compressed)

    @property
    def raw_record_bytes(self) -> int:
        """Bytes of a record with uncompressed frames: the reference for compression ratios."""
        return self.record.itemsize + self.frame_bytes

    def observations(self, value: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return arrays by field name, from a plain array or a mapping."""
        if isinstance(value, Mapping):
            arrays = {name: np.asarray(array) for name, array in value.items()}
        elif self.single:
            arrays = {"observation": np.asarray(value)}
        else:
            raise LakeError(f"the observation is an array; the schema has {[f.name for f in self.observation]}")
        names = {field.name for field in self.observation}
        if set(arrays) != names:
            raise LakeError(f"the observation has {sorted(arrays)}; the schema has {sorted(names)}")
        return arrays

    def to_json(self) -> dict[str, Any]:
        return {
            "observation": [asdict(field) for field in self.observation],
            "action": asdict(self.action),
            "extra": [asdict(field) for field in self.extra],
        }

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> Schema:
        """Return the schema of a manifest, which a stranger may have written."""

        def field(entry: Mapping[str, Any]) -> Field:
            name, shape, dtype, storage = (entry[key] for key in ("name", "shape", "dtype", "storage"))
            if not isinstance(name, str) or not name.isprintable() or len(name) > 200:
                raise ValueError(f"field {name!r:.60}: a name has at most 200 printable characters")
            if (
                not isinstance(shape, list | tuple)
                or len(shape) > 16
                or any(type(n) is not int or n < 0 for n in shape)
            ):
                raise ValueError(f"field {name!r}: shape={shape!r:.60} is not a list of sizes")
            if math.prod(max(n, 1) for n in shape) > MAX_RECORD_BYTES:
                raise ValueError(f"field {name!r}: shape={shape!r:.60} is larger than a record may be")
            if not isinstance(dtype, str) or not re.fullmatch("[a-z]+[0-9]*", dtype):
                raise ValueError(f"field {name!r}: dtype={dtype!r:.60} is not the name of a number's type")
            if storage not in ("fixed", "lz4"):
                raise ValueError(f"field {name!r}: storage={storage!r:.60} is neither 'fixed' nor 'lz4'")
            return Field(name, tuple(shape), dtype, storage)

        return Schema(
            tuple(field(entry) for entry in tree["observation"]),
            field(tree["action"]),
            tuple(field(entry) for entry in tree["extra"]),
        )

    @staticmethod
    def from_spec(
        spec: EnvSpec, *, frame_shape: tuple[int, ...] | None = None, state_shape: tuple[int, int] | None = None
    ) -> Schema:
        """Return the schema of an environment; `frame_shape` if its observation is a stack and single frames are stored.

        Action masks are a field of the observation, so that those of next and final observations are stored, too.
        `state_shape` [S, H] if the agents have memory.
        """
        shape = spec.observation.shape if frame_shape is None else frame_shape
        observation = Field.of("observation", shape, spec.observation.dtype)
        masks = (Field.of(ACTION_MASK, (spec.action.mask_size,), "bool"),) if spec.action_masks else ()
        extra = () if state_shape is None else (Field(STATE, state_shape, "float32"),)
        return Schema((observation, *masks), Field("action", spec.action.shape, spec.action.dtype), extra)

    @staticmethod
    def from_spaces(observation_space: Any, action_space: Any) -> Schema:
        """Return the schema of a Gymnasium env: Box, Discrete, MultiDiscrete, MultiBinary, and Dicts and Tuples of these."""
        parts = dict(_leaves("", observation_space))
        actions = dict(_leaves("", action_space))
        if set(actions) != {""}:
            raise LakeError(f"action space {action_space}: only one array of actions can be stored; flatten it first")
        observation = tuple(Field.of(name or "observation", *shape_dtype) for name, shape_dtype in parts.items())
        return Schema(observation, Field("action", *actions[""]))


def _leaves(name: str, space: Any) -> list[tuple[str, tuple[tuple[int, ...], str]]]:
    """Return shapes and dtypes of a space's arrays; the parts of a Dict or Tuple are named by their path."""
    children = getattr(space, "spaces", None)
    if children is not None:
        named = children.items() if isinstance(children, Mapping) else enumerate(children)
        prefix = f"{name}." if name else ""
        return [leaf for key, child in named for leaf in _leaves(f"{prefix}{key}", child)]
    if getattr(space, "shape", None) is None or getattr(space, "dtype", None) is None:
        raise LakeError(f"space {space} has no fixed shape; a lake stores arrays of one shape and dtype")
    return [(name, (tuple(space.shape), np.dtype(space.dtype).name))]


def pond_record_bytes(schema: Schema) -> int:
    """Return the bytes of one record of a pond: the observation once, the other fields, and one byte of flags."""
    fields = (*schema.observation, schema.action, *schema.extra)
    return sum(field.nbytes for field in fields) + sum(np.dtype(d).itemsize for d in COLUMNS.values()) + 1


def lake_record_bytes(schema: Schema, frame_bytes: float) -> float:
    """Return the bytes of one record of a lake with its frames, compressed to `frame_bytes` in all."""
    frames = frame_bytes + FRAME_HEADER_BYTES * len(schema.compressed) if schema.compressed else 0
    return schema.record.itemsize + frames

"""Which fields of the observations are used, and which columns of their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.data.errors import DataError
from millpond.data.source import Array, Field, Source

VECTOR_AT_MOST = 1 << 16  # numbers in a vector; beyond this something is an image that is not stored as bytes


@dataclass(frozen=True)
class Choice:
    """The chosen fields in order; of each vector the columns that are kept; and the names of all those columns."""

    fields: tuple[Field, ...]
    vectors: tuple[tuple[Field, Array | slice], ...]
    columns: tuple[str, ...]


def choose(sources: Sequence[Source], *, keys: Sequence[str], images: bool, drop_columns: Sequence[str]) -> Choice:
    """Choose, and check that every file has what is chosen in the same shape.

    Without keys: all vectors that a file uses by itself, and with `images` its images too, in the file's order.
    """
    first = sources[0]
    names = list(keys) or [name for name in first.default_keys if images or not first.fields[name].is_image]
    if len(set(names)) != len(names):
        raise DataError(f"data.observation_keys={names} names a field twice; name each once")
    for name in names:
        if name not in first.fields:
            there = ",".join(sorted(first.fields))
            raise DataError(
                f"{first.path}: no field {name!r} in its observations; there are {there}. Name some of them, such as "
                f"data.observation_keys=[{there}], or none for all vectors: data.observation_keys=[]"
            )
        if first.fields[name].is_image and not images:
            raise DataError(
                f"data.observation_keys has {name!r}, which is an image {first.fields[name]}; set data.images=true, or "
                f"leave it out"
            )
    if not names:
        there = ", ".join(f"{field.name} {field}" for field in first.fields.values())
        raise DataError(
            f"{first.path} has no vectors to use ({there}); set data.images=true (--images) or data.observation_keys"
        )
    fields = tuple(first.fields[name] for name in names)
    for source in sources[1:]:
        require_same(first, source, fields)
    return _without(first.path, fields, drop_columns)


def require_same(first: Source, other: Source, fields: Sequence[Field]) -> None:
    """Refuse to join files whose actions or chosen fields differ in shape."""
    for field in fields:
        there = other.fields.get(field.name)
        if there is None or there.shape != field.shape or there.dtype != field.dtype:
            raise DataError(
                f"{other.path} has {field.name} {there if there else 'missing'} and {first.path} {field}; name fields "
                f"that all files share in data.observation_keys, or read them apart"
            )
    one, two = first.action, other.action
    if one is not None and two is not None and (two.shape != one.shape or two.dtype.kind != one.dtype.kind):
        raise DataError(f"{other.path} has actions {two} and {first.path} {one}; read them apart")


def _without(path: str, fields: Sequence[Field], drop_columns: Sequence[str]) -> Choice:
    """Take the dropped columns, named as FIELD:COLUMN, out of the vectors."""
    vectors = [field for field in fields if not field.is_image]
    width = {field.name: field.width for field in vectors}
    keep: dict[str, np.ndarray[Any, Any]] = {field.name: np.ones(field.width, bool) for field in vectors}
    for column in drop_columns:
        name, _, number = column.rpartition(":")
        if name not in width or not number.isdecimal() or int(number) >= width[name]:
            there = ", ".join(f"{known}:0 to {known}:{count - 1}" for known, count in width.items()) or "none"
            raise DataError(f"data.drop_columns has {column!r}, which is not a column of {path}; there are {there}")
        keep[name][int(number)] = False
    kept = [(field, np.flatnonzero(keep[field.name])) for field in vectors]
    columns = tuple(f"{field.name}:{number}" for field, numbers in kept for number in numbers.tolist())
    if len(columns) > VECTOR_AT_MOST:
        widest = max(vectors, key=lambda field: field.width)
        raise DataError(
            f"{path}: {len(columns):,} numbers in a vector, most of them in {widest.name} {widest}; name fewer fields "
            f"in data.observation_keys (images are stored as uint8)"
        )
    if not columns and len(vectors) == len(fields):
        raise DataError(f"data.drop_columns={list(drop_columns)} leaves nothing of {path}; drop fewer")
    return Choice(
        tuple(fields),
        tuple(
            (field, slice(None) if len(numbers) == field.width else numbers) for field, numbers in kept if len(numbers)
        ),
        columns,
    )

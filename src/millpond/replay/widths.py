"""Bytes of a row, in a lake and in a pond: plain arithmetic on a schema, so that a plan counts what is then stored."""

from __future__ import annotations

import numpy as np

from millpond.replay.schema import Schema

# Before every frame in a lake: its length and its checksum.
FRAME_HEADER_BYTES = 8

# What a pond keeps of each row besides the fields of the schema, and one byte of flags.
COLUMNS = {"reward": "float32", "agent": "int64", "round": "int64", "policy_version": "int64", "epsilon": "float32"}


def row_bytes(schema: Schema) -> int:
    """Bytes of one row of a pond: the observation once, and everything else of the step."""
    fields = (*schema.observation, schema.action, *schema.extra)
    return sum(field.nbytes for field in fields) + sum(np.dtype(d).itemsize for d in COLUMNS.values()) + 1


def lake_row_bytes(schema: Schema, frame_bytes: float) -> float:
    """Bytes of one row of a lake: its record, and its frames where they are compressed, to `frame_bytes` in all."""
    frames = frame_bytes + FRAME_HEADER_BYTES * len(schema.compressed) if schema.compressed else 0
    return schema.record.itemsize + frames

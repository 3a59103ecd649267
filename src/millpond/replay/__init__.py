"""Replay that outlives memory, crashes and full disks: ponds on the training device, one lake on disk."""

from millpond.replay.batch import Batch, Episode, Sequences
from millpond.replay.faults import LakeBusy, LakeDamaged, LakeError, LakeFull, PondFull
from millpond.replay.lake import Lake
from millpond.replay.schema import Field, Schema
from millpond.replay.steps import Steps
from millpond.replay.writer import Ack, Writer

__all__ = [
    "Ack",
    "Batch",
    "Episode",
    "Field",
    "Lake",
    "LakeBusy",
    "LakeDamaged",
    "LakeError",
    "LakeFull",
    "PondFull",
    "Schema",
    "Sequences",
    "Steps",
    "Writer",
]

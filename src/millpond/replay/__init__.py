"""Replay that outlives memory, crashes and full disks: ponds on the training device, one lake on disk.

Names are imported when they are first used: a plan needs the schema alone, and neither compiled code nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.replay.batch import Batch, Episode, Sequences
    from millpond.replay.faults import LakeBusy, LakeDamaged, LakeError, LakeFull, PondFull
    from millpond.replay.lake import Lake
    from millpond.replay.pond import Pond
    from millpond.replay.pour import fill, pour
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
    "Pond",
    "PondFull",
    "Schema",
    "Sequences",
    "Steps",
    "Writer",
    "fill",
    "pour",
]

_HOME = {
    **dict.fromkeys(("Batch", "Episode", "Sequences"), "batch"),
    **dict.fromkeys(("LakeBusy", "LakeDamaged", "LakeError", "LakeFull", "PondFull"), "faults"),
    **dict.fromkeys(("fill", "pour"), "pour"),
    **dict.fromkeys(("Field", "Schema"), "schema"),
    **dict.fromkeys(("Ack", "Writer"), "writer"),
    "Lake": "lake",
    "Pond": "pond",
    "Steps": "steps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)

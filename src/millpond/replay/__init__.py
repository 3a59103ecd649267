"""Replay that survives crashes, full disks and small memories: ponds on the training device, one lake on disk.

    schema       the fields of a record and their sizes in bytes; errors
    steps        `Steps` [T, L]: what is added to a pond or appended to a lake, validated once
    pond         a ring of records on the training device
    lake/        an append-only store on disk
    transfer     pond to lake (`pour`) and lake to pond (`fill`, `restore_rings`)
    transitions  valid transitions, sequences and episodes, and uniform sampling: the same code for ponds and lakes
    blocks       the steps of a pond or a lake in stretches of consecutive ones, for returns over many steps
    tools        info, verify and compact: tools on a whole lake
    datasets     both as datasets of torch.utils.data
    export       complete episodes of a lake to a Minari dataset or an npz file

Names are imported on first use: `millpond plan` needs the schema, but neither compiled code nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.replay.datasets import ReplayDataset, ReplayStream
    from millpond.replay.lake.lake import Lake
    from millpond.replay.lake.priority import Priorities
    from millpond.replay.lake.sample import LakeBatch, LakeEpisode, Sequences
    from millpond.replay.lake.write import Ack, Writer
    from millpond.replay.pond import Pond
    from millpond.replay.schema import Field, LakeBusy, LakeDamaged, LakeError, LakeFull, PondFull, Schema
    from millpond.replay.steps import Steps
    from millpond.replay.transfer import fill, pour

__all__ = [
    "Ack",
    "Field",
    "Lake",
    "LakeBatch",
    "LakeBusy",
    "LakeDamaged",
    "LakeEpisode",
    "LakeError",
    "LakeFull",
    "Pond",
    "PondFull",
    "Priorities",
    "ReplayDataset",
    "ReplayStream",
    "Schema",
    "Sequences",
    "Steps",
    "Writer",
    "fill",
    "pour",
]

_MODULE_OF = {
    **dict.fromkeys(("LakeBatch", "LakeEpisode", "Sequences"), "lake.sample"),
    **dict.fromkeys(("Ack", "Writer"), "lake.write"),
    **dict.fromkeys(
        ("Field", "LakeBusy", "LakeDamaged", "LakeError", "LakeFull", "PondFull", "Schema"),
        "schema",
    ),
    **dict.fromkeys(("ReplayDataset", "ReplayStream"), "datasets"),
    **dict.fromkeys(("fill", "pour"), "transfer"),
    "Lake": "lake.lake",
    "Pond": "pond",
    "Priorities": "lake.priority",
    "Steps": "steps",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)

"""Storage of all trainers: run folders, atomic checkpoints, and the state of random generators.

May import `loop` and `record`; neither imports this package. torch is imported when it is first needed.
"""

from millpond.store.checkpoint import (
    Checkpoint,
    CheckpointError,
    DamagedCheckpointError,
    DiskFullError,
    NothingToPlayError,
    ResumeError,
    RunError,
    UnsafeCheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from millpond.store.checkpoints import Checkpoints
from millpond.store.folder import find_run
from millpond.store.host import host_facts
from millpond.store.listing import RunRow, list_runs, read_warnings, show_runs
from millpond.store.parts import Parts, Stateful, load_weights
from millpond.store.query import choose_runs, sort_runs
from millpond.store.random_state import RandomState, seed_global_generators
from millpond.store.run import Run, check_changes, training
from millpond.store.status import RunStatus, read_status

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "DamagedCheckpointError",
    "DiskFullError",
    "NothingToPlayError",
    "Parts",
    "RandomState",
    "ResumeError",
    "Run",
    "RunError",
    "RunRow",
    "RunStatus",
    "Stateful",
    "UnsafeCheckpointError",
    "check_changes",
    "choose_runs",
    "find_run",
    "host_facts",
    "list_runs",
    "load_weights",
    "read_checkpoint",
    "read_status",
    "read_warnings",
    "seed_global_generators",
    "show_runs",
    "sort_runs",
    "training",
    "write_checkpoint",
]

"""The checkpoints of a run as a list to look at: without their weights, and without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millpond.store.checkpoint import read_manifest
from millpond.store.checkpoints import Checkpoints
from millpond.store.errors import CheckpointError


@dataclass(frozen=True)
class Saved:
    """A checkpoint at a glance. `score` is that of its evaluation, if it had one."""

    updates: int
    path: Path
    score: float | None
    nbytes: int
    saved_at: float
    best: bool


def saved_checkpoints(folder: Path) -> tuple[list[Saved], list[str]]:
    """All checkpoints whose manifests are whole, oldest first, and a sentence about each of the others."""
    checkpoints, found, problems = Checkpoints(folder), [], []
    best = checkpoints.best_score()
    for updates in checkpoints.updates():
        path = checkpoints.path(updates)
        try:
            manifest, saved_at = read_manifest(path), path.stat().st_mtime
        except (CheckpointError, OSError) as error:
            if path.exists():  # a run that goes on may have deleted it just now
                problems.append(f"checkpoint {updates:,} is damaged: {error}")
            continue
        nbytes = sum(int(file["bytes"]) for file in manifest["files"].values())
        is_best = best is not None and best[0] == updates
        found.append(Saved(updates, path, manifest["score"], nbytes, saved_at, is_best))
    return found, problems

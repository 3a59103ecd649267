"""The checkpoints of a run: which are kept, which is used, and a list of them."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from millpond.store.checkpoint import (
    DIGITS,
    REPLACED,
    Checkpoint,
    CheckpointError,
    DamagedCheckpointError,
    delete_checkpoint,
    read_checkpoint,
    read_manifest,
    recover,
    write_checkpoint,
)
from millpond.store.parts import Parts
from millpond.store.status import record_checkpoint, recorded_checkpoint


class NewestCheckpoint(NamedTuple):
    """The newest undamaged checkpoint, and the damaged ones that are newer."""

    checkpoint: Checkpoint | None
    damaged: list[Path]


class Checkpoints:
    """A folder of checkpoints, named by the number of updates at which the run was saved.

    The newest `keep_last` are kept, the first at or after each multiple of `keep_every` updates, and the best.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_last: int = 3,
        keep_every: int | None = None,
        better: Literal["higher", "lower"] = "higher",
    ) -> None:
        if keep_last < 1 or (keep_every is not None and keep_every < 1):
            raise CheckpointError(f"keep_last={keep_last} and keep_every={keep_every} must be at least 1")
        self.folder = folder
        self._keep_last, self._keep_every, self._better = keep_last, keep_every, better
        self._best: tuple[int, float] | None = None

    def updates(self) -> list[int]:
        """Return the updates of all checkpoints, oldest first. Damage is detected when they are read."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if re.fullmatch(rf"\d{{{DIGITS}}}", path.name))

    def path(self, updates: int) -> Path:
        return self.folder / f"{updates:0{DIGITS}d}"

    def save(self, updates: int, parts: Parts, score: float | None = None) -> Path:
        """Write a checkpoint, then delete those that are not kept. `score` makes it a candidate for the best."""
        if self._best is None and self.updates():
            self._best = self._best_on_disk()
        best = self._best
        if score is not None and (best is None or self._beats(score, best[1])):
            best = (updates, score)
        write_checkpoint(self.path(updates), parts.collect(updates, score, best))
        self._best = best
        record_checkpoint(self.folder.parent, updates)
        for old in set(self.updates()) - self._updates_to_keep():
            delete_checkpoint(self.path(old))
        return self.path(updates)

    def any_written(self) -> bool:
        """Return True if there is a checkpoint to resume from; refuse a run whose checkpoints were written and are gone."""
        if self.updates() or any(self.folder.glob(REPLACED + "*")):
            return True
        lost = recorded_checkpoint(self.folder.parent)
        if lost is not None:
            raise CheckpointError(
                f"run {self.folder.parent.name!r} has lost its checkpoints: {self.path(lost).name} was written, and there is "
                f"none in {self.folder}. Restore it from a copy and resume again, or start a new run: --run NAME"
            )
        return False

    def find(self) -> NewestCheckpoint:
        """Read the newest undamaged checkpoint. Damaged ones are skipped with a warning that names them."""
        damaged: list[Path] = []
        for updates in reversed(self.updates()):
            try:
                return NewestCheckpoint(self.load(updates), damaged)
            except DamagedCheckpointError as error:
                damaged.append(self.path(updates))
                warnings.warn(f"checkpoint {self.path(updates).name} is damaged and not used: {error}", stacklevel=2)
        return NewestCheckpoint(None, damaged)

    def load(self, updates: int) -> Checkpoint:
        checkpoint = read_checkpoint(self.path(updates))
        if checkpoint.updates != updates:  # a copy under another name: later ones would be deleted before it
            raise DamagedCheckpointError(f"{self.path(updates)} holds the checkpoint of {checkpoint.updates:,} updates")
        return checkpoint

    def best_score(self) -> tuple[int, float] | None:
        """Return updates and score of the best checkpoint so far, if any has a score."""
        return self._best or self._best_on_disk()

    def best(self) -> Checkpoint | None:
        """Read the best checkpoint so far, if any has a score."""
        best = self.best_score()
        return None if best is None else self.load(best[0])

    def restore(self, parts: Parts) -> bool:
        """Restore the newest undamaged checkpoint; return False if there is none, so that the run starts from scratch.

        Newer damaged ones are renamed to NAME.damaged. If all checkpoints are damaged, that is an error: restarting is for
        the user to decide.
        """
        recover(self.folder)
        newest = self.find()
        if newest.checkpoint is None and newest.damaged:
            raise CheckpointError(
                f"every checkpoint in {self.folder} is damaged ({', '.join(path.name for path in newest.damaged)}); "
                f"start again with --overwrite or under another name"
            )
        if newest.checkpoint is not None:
            self._warn_if_lost(newest)
            parts.restore(newest.checkpoint)
            self._best = newest.checkpoint.best
        for path in newest.damaged:
            os.rename(path, _free_name(path))
        return newest.checkpoint is not None

    def _warn_if_lost(self, newest: NewestCheckpoint) -> None:
        """Warn if a newer checkpoint was written and is gone; damaged ones are warned about when they are found."""
        written, found = recorded_checkpoint(self.folder.parent), newest.checkpoint
        if written is None or found is None or written <= found.updates or self.path(written) in newest.damaged:
            return
        gone, used = self.path(written).name, self.path(found.updates).name
        warnings.warn(f"checkpoint {gone} was written and is gone: the run goes on from {used}", stacklevel=3)

    def _updates_to_keep(self) -> set[int]:
        present = self.updates()
        keep = set(present[-self._keep_last :])
        if self._keep_every is not None:
            firsts: dict[int, int] = {}
            for updates in present:
                firsts.setdefault(updates // self._keep_every, updates)
            firsts.pop(0, None)
            keep |= set(firsts.values())
        if self._best is not None:
            keep.add(self._best[0])
        return keep

    def _beats(self, score: float, other: float) -> bool:
        return score > other if self._better == "higher" else score < other

    def _best_on_disk(self) -> tuple[int, float] | None:
        for updates in reversed(self.updates()):
            try:
                best = read_manifest(self.path(updates))["best"]
            except CheckpointError:
                continue
            return (best[0], best[1]) if best else None
        return None


def _free_name(path: Path) -> Path:
    name, number = path.with_name(f"{path.name}.damaged"), 1
    while name.exists():
        number += 1
        name = path.with_name(f"{path.name}.damaged{number}")
    return name


@dataclass(frozen=True)
class CheckpointInfo:
    """Facts about a checkpoint, without its weights. `score` is that of its evaluation, if it had one."""

    updates: int
    path: Path
    score: float | None
    nbytes: int
    saved_at: float
    best: bool


def list_checkpoints(folder: Path) -> tuple[list[CheckpointInfo], list[str]]:
    """Return all checkpoints with valid manifests, oldest first, and a sentence about each of the others.

    Does not read weights or import torch.
    """
    checkpoints, infos, problems = Checkpoints(folder), [], []
    best = checkpoints.best_score()
    for updates in checkpoints.updates():
        path = checkpoints.path(updates)
        try:
            manifest, saved_at = read_manifest(path), path.stat().st_mtime
        except (CheckpointError, OSError) as error:
            if path.exists():  # a run that is training may have deleted it in the meantime
                problems.append(f"checkpoint {updates:,} is damaged: {error}")
            continue
        nbytes = sum(int(file["bytes"]) for file in manifest["files"].values())
        is_best = best is not None and best[0] == updates
        infos.append(CheckpointInfo(updates, path, manifest["score"], nbytes, saved_at, is_best))
    return infos, problems

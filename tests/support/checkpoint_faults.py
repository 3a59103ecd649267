"""Sessions that save checkpoints, on disks that fail, in processes that die, and on machines that lose power.

clean = clean_saves(folder)
saves_with_fault(clean, folder, "EIO", 17)    # each of these raises AssertionError if the checkpoints are not as they must be
saves_after_exit(clean, folder, 17)
saves_after_power_cut(clean, disk, point, folder, rng, names=0.5, data=0.5)
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from millpond.errors import MillpondError
from millpond.store import Checkpoint, Checkpoints, Parts
from millpond.store.status import write_status
from tests.support.disk_calls import DiskCalls
from tests.support.faulty_disk import DiskFaults, Killed
from tests.support.lake_crashes import in_child
from tests.support.power_loss import DiskTrace, SimulatedDisk, files_below

# (updates, score): 20 and 40 are saved twice, 30 is the best, and old ones are deleted.
SAVES = ((10, None), (20, None), (20, None), (30, 2.0), (40, None), (40, 1.0), (50, None), (60, None))
KEEP_LAST = 2
RUN = "run"


@dataclass
class Part:
    """An object whose state is a function of its name and a version; that of a new one is -1."""

    name: str
    version: int
    loaded: Any = None

    def state_dict(self) -> dict[str, Any]:
        rng = np.random.default_rng([self.version + 1, len(self.name)])
        if self.name == "policy":
            return {key: torch.from_numpy(rng.normal(size=(30, 20))) for key in ("weight", "bias")}
        if self.name == "optimizer":
            return {"moments": torch.from_numpy(rng.normal(size=200)), "order": rng.integers(0, 99, 150)}
        return {"version": self.version}

    def load_state_dict(self, state: Any) -> None:
        self.loaded = state


def parts_of(version: int) -> Parts:
    policy, optimizer, counters = (Part(name, version) for name in ("policy", "optimizer", "counters"))
    return Parts({"policy": policy}, {"optimizer": optimizer}, {"counters": counters})


def version_of(checkpoint: Checkpoint) -> int:
    """Return the version of a checkpoint, whose every part must be of it, bit for bit."""
    version = int(checkpoint.values["counters"]["version"])
    expected = parts_of(version).collect(checkpoint.updates)
    for loaded, saved in ((checkpoint.weights["policy"], expected.weights["policy"]),):
        assert loaded.keys() == saved.keys()
        assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    loaded, saved = checkpoint.state["optimizer"], expected.state["optimizer"]
    assert torch.equal(loaded["moments"], saved["moments"])
    assert np.array_equal(loaded["order"], saved["order"])
    return version


@dataclass(frozen=True)
class SavesModel:
    """Versions of the acknowledged checkpoints by updates, the best of them, and the one that is being saved."""

    versions: dict[int, int] = field(default_factory=dict)
    best: int | None = None
    saving: tuple[int, int, float | None] | None = None
    possible: frozenset[tuple[int, int]] = frozenset()  # all that were ever saved or begun

    def begin(self, updates: int, version: int, score: float | None) -> SavesModel:
        return replace(self, saving=(updates, version, score), possible=self.possible | {(updates, version)})

    def acknowledge(self) -> SavesModel:
        """Return the model after a complete save: those that are not kept are gone."""
        assert self.saving is not None
        updates, version, score = self.saving
        best = updates if score is not None and (self.best is None or score > dict(SAVES)[self.best]) else self.best
        versions = {**self.versions, updates: version}
        kept = {*sorted(versions)[-KEEP_LAST:], best}
        return replace(self, versions={k: v for k, v in versions.items() if k in kept}, best=best, saving=None)

    def certain(self) -> set[int]:
        """Return the updates of the checkpoints that must be there, whether the one in flight was completed or not."""
        return set(self.versions) & set(self.acknowledge().versions if self.saving else self.versions)


@dataclass
class SavesSession:
    """Saves all checkpoints of `SAVES`; a save may fail where the disk does, and the next one must work."""

    folder: Path
    on_change: Callable[[SavesModel], None] = lambda model: None
    stop_at_first_error: bool = False
    errors: list[str] = field(default_factory=list)
    model: SavesModel = field(default_factory=SavesModel)

    def run(self) -> None:
        checkpoints = Checkpoints(self.folder / "checkpoints", keep_last=KEEP_LAST)
        for version, (updates, score) in enumerate(SAVES):
            self.model = self.model.begin(updates, version, score)
            self.on_change(self.model)
            try:
                checkpoints.save(updates, parts_of(version), score)
            except (OSError, MillpondError) as error:
                self.errors.append(repr(error))
                if self.stop_at_first_error:
                    return
                self.model = self._after_failure()
            else:
                self.model = self.model.acknowledge()
            self.on_change(self.model)

    def _after_failure(self) -> SavesModel:
        """Return the model with what a failed save left: the new checkpoint, complete, or the one before."""
        newest = newest_checkpoint(self.folder, self.model)
        if newest == self.model.saving[:2]:
            return self.model.acknowledge()
        return replace(self.model, saving=None)


def newest_checkpoint(folder: Path, model: SavesModel) -> tuple[int, int] | None:
    """Return updates and version of the newest checkpoint, which must be the newest saved one, or the one in flight."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged ones, which are compared below
        found = Checkpoints(folder / "checkpoints").find().checkpoint
    if found is None:
        assert not model.versions, "no checkpoint was found"
        return None
    newest = found.updates, version_of(found)
    allowed = [(updates, model.versions[updates]) for updates in sorted(model.versions)[-1:]]
    if model.saving is not None:
        allowed.append(model.saving[:2])
    assert newest in allowed, f"the newest is {newest}, not one of {allowed}"
    return newest


def check_resumed(folder: Path, model: SavesModel, *, power_cut: bool = False) -> None:
    """Resume: the newest checkpoint is found, and every one that is kept is as it was saved; then save once more."""
    checkpoints = Checkpoints(folder / "checkpoints", keep_last=KEEP_LAST)
    if model.versions:
        assert checkpoints.any_written()
    policy, optimizer, counters = Part("policy", -1), Part("optimizer", -1), Part("counters", -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resumed = checkpoints.restore(Parts({"policy": policy}, {"optimizer": optimizer}, {"counters": counters}))
    newest = newest_checkpoint(folder, model)
    assert resumed == (newest is not None)
    if newest is not None:
        assert counters.loaded == {"version": newest[1]}
        expected = Part("policy", newest[1]).state_dict()
        assert all(torch.equal(policy.loaded[name], tensor) for name, tensor in expected.items())
    left_behind = [path.name for path in (folder / "checkpoints").iterdir() if path.name.startswith(".")]
    assert not left_behind
    certain = model.certain()
    for updates in set(checkpoints.updates()) | certain:
        kept = updates in certain
        if kept or not power_cut:  # a checkpoint that was being deleted may be damaged by a power cut
            loaded = updates, version_of(checkpoints.load(updates))
            assert loaded in model.possible, f"{loaded} was never saved"
            replacing = model.saving is not None and model.saving[:2] == loaded
            assert not kept or model.versions[updates] == loaded[1] or replacing
    if model.best is not None:
        best = checkpoints.best()
        assert best is not None
        assert best.updates in (model.best, model.saving[0] if model.saving else model.best)
    checkpoints.save(90, parts_of(90))
    found = Checkpoints(folder / "checkpoints").find().checkpoint
    assert found is not None
    assert (found.updates, version_of(found)) == (90, 90)


# -- with faults


@dataclass
class CleanSaves:
    """A session without faults: its calls, its changes of the disk, and the model after each of both."""

    faults: DiskFaults
    trace: DiskTrace
    models: list[SavesModel]
    points: list[int]

    def model_at(self, point: int) -> SavesModel:
        return self.models[max(k for k, changes in enumerate(self.points) if changes <= point)]


def new_run(folder: Path) -> Path:
    """Make the folder of a run, without checkpoints."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / RUN / "checkpoints").mkdir(parents=True)
    write_status(folder / RUN, "running")
    return folder / RUN


def clean_saves(folder: Path) -> CleanSaves:
    """Save without faults, and check that no change of the disk escaped the interception."""
    root = folder / "clean"
    run = new_run(root)
    trace, faults = DiskTrace(root), DiskFaults()
    models, points = [SavesModel()], [0]

    def note(model: SavesModel) -> None:
        models.append(model)
        points.append(len(trace.events))

    session = SavesSession(run, note)
    with DiskCalls(root, faults=faults, trace=trace):
        session.run()
    assert not session.errors
    trace.disk(len(trace.events)).cut_power(folder / "copy", random.Random(0), names=1, data=1)
    assert files_below(folder / "copy") == files_below(root), "a change of the disk did not go through `os`"
    check_resumed(run, session.model)
    return CleanSaves(faults, trace, models, points)


def saves_with_fault(folder: Path, kind: str, at: int) -> SavesSession:
    """Save with one fault, resume, and compare with the model."""
    session = SavesSession(new_run(folder), stop_at_first_error=kind == "EIO onwards")
    faults = DiskFaults(kind, at)
    with DiskCalls(folder, faults=faults) as calls:
        with contextlib.suppress(Killed):
            session.run()
        calls.close_all()
    assert faults.injected, f"call {at} did not happen"
    assert faults.dead == ("kill" in kind)
    check_resumed(session.folder, session.model)
    return session


def saves_after_exit(clean: CleanSaves, folder: Path, at: int, kind: str = "kill") -> None:
    """Save in a separate process, which ends at call `at`; resume, and compare with the model."""
    run = new_run(folder)

    def work(pipe: int) -> None:
        session = SavesSession(run, lambda _: os.write(pipe, b".") and None)
        with DiskCalls(folder, faults=DiskFaults(kind, at, process=True)):
            session.run()

    child, pipe = in_child(work)
    reported = 0
    while data := os.read(pipe, 1 << 16):
        reported += len(data)
    os.close(pipe)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, f"call {at} did not happen"
    check_resumed(run, clean.models[reported])


def saves_after_power_cut(
    clean: CleanSaves, disk: SimulatedDisk, point: int, folder: Path, rng: random.Random, names: float, data: float
) -> None:
    """Write one of the states that a power cut at `point` may leave, resume, and compare with the model."""
    shutil.rmtree(folder, ignore_errors=True)
    disk.cut_power(folder, rng, names=names, data=data)
    check_resumed(folder / RUN, clean.model_at(point), power_cut=True)

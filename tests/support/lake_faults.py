"""Sessions with a lake on disks that fail, processes that die, and machines that lose power.

clean = clean_session("plain", folder)        # calls, changes and expected states of a session without faults
lake_with_fault(clean, folder, "EIO", 17)     # each of these raises AssertionError if the lake is not as it must be
lake_after_exit(clean, folder, 17)
lake_after_power_cut(clean, folder, point, rng, names=0.5, data=0.5)
"""

from __future__ import annotations

import gc
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.disk_calls import DiskCalls
from tests.support.faulty_disk import DiskFaults, Killed
from tests.support.lake_crashes import in_child
from tests.support.lake_model import LakeModel, check_reopened
from tests.support.lake_session import LANES, SCRIPTS, LakeSession
from tests.support.power_loss import SPECIAL_SHARES, DiskTrace, SimulatedDisk, after_reboot, files_below

ANY_NUMBER = dict.fromkeys(LANES, 10**9)
INSIDE = Path("runs", "lake")  # of the folder that is there before the session: the lake's own is created by it


@dataclass
class CleanSession:
    """A session without faults: its calls, its changes of the disk, and the model after each of both."""

    script: str
    faults: DiskFaults
    trace: DiskTrace
    models: list[LakeModel]  # whenever it changed
    points: list[int]  # number of changes of the disk until then
    max_first: dict[str, int]

    def model_at(self, point: int) -> LakeModel:
        """Return what must be on the disk after `point` changes."""
        number = max(k for k, changes in enumerate(self.points) if changes <= point)
        model, following = self.models[number], self.models[min(number + 1, len(self.models) - 1)]
        max_first = {name: state.first for name, state in following.streams.items()}
        snapshot = model.snapshot()
        snapshot.max_first = {name: max(first, self._dropped_by(number, name)) for name, first in max_first.items()}
        return snapshot

    def _dropped_by(self, number: int, name: str) -> int:
        """Return how many appends of a stream were dropped once the operation in flight has returned."""
        later = [model.streams[name].first for model in self.models[number : number + 3] if name in model.streams]
        return max(later, default=0)


def clean_session(script: str, folder: Path) -> CleanSession:
    """Run a script without faults, and check that no change of the disk escaped the interception."""
    root = folder / "clean"
    root.mkdir(parents=True)
    trace, faults = DiskTrace(root), DiskFaults()
    models: list[LakeModel] = []
    points: list[int] = []

    def note(model: LakeModel) -> None:
        models.append(model.snapshot())
        points.append(len(trace.events))

    max_first = ANY_NUMBER if SCRIPTS[script].max_bytes else {}
    session = LakeSession(root / INSIDE, SCRIPTS[script], on_change=note, max_first=max_first)
    note(session.model)
    with DiskCalls(root, faults=faults, trace=trace):
        session.run()
    assert not session.errors
    trace.disk(len(trace.events)).cut_power(folder / "copy", random.Random(0), names=1, data=1)
    assert files_below(folder / "copy") == files_below(root), "a change of the disk did not go through `os`"
    check_reopened(session.folder, session.model)
    return CleanSession(script, faults, trace, models, points, max_first)


def lake_with_fault(
    clean: CleanSession, folder: Path, kind: str, at: int, *, power_cut: random.Random | None = None
) -> LakeSession:
    """Run the session with one fault, reopen the lake, and compare it with the model.

    `power_cut`: first the power fails at the end of the session, and leaves a random one of the possible states.
    """
    shutil.rmtree(folder, ignore_errors=True)
    root, folder = folder, folder / "before"
    folder.mkdir(parents=True)
    faults = DiskFaults(kind, at)
    trace = DiskTrace(folder) if power_cut else None
    session = LakeSession(
        folder / INSIDE, SCRIPTS[clean.script], max_first=clean.max_first, stop_at_first_error=kind == "EIO onwards"
    )
    with DiskCalls(folder, faults=faults, trace=trace) as calls:
        try:
            session.run()
        except Killed:
            session.close()
        gc.collect(0)
        calls.close_all()
    assert faults.injected, f"call {at} did not happen"
    assert faults.dead == ("kill" in kind)
    if power_cut is None or trace is None:
        check_reopened(session.folder, session.model)
        return session
    names, data = power_cut.choice(SPECIAL_SHARES), power_cut.choice(SPECIAL_SHARES)
    trace.disk(len(trace.events)).cut_power(root / "after", power_cut, names=names[0], data=data[1])
    with after_reboot():
        check_reopened(root / "after" / INSIDE, session.model_after_power_cut(), reappear=True)
    return session


def lake_after_exit(clean: CleanSession, folder: Path, at: int, kind: str = "kill") -> LakeModel:
    """Run the session in a separate process, which ends at call `at`; reopen the lake, and compare it with the model."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def work(pipe: int) -> None:
        session = LakeSession(
            folder / INSIDE, SCRIPTS[clean.script], on_change=lambda _: os.write(pipe, b".") and None,
            max_first=clean.max_first,
        )  # fmt: skip
        with DiskCalls(folder, faults=DiskFaults(kind, at, process=True)):
            session.run()

    child, pipe = in_child(work)
    reported = 0
    while data := os.read(pipe, 1 << 16):
        reported += len(data)
    os.close(pipe)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 9, f"call {at} did not happen"
    model = clean.models[reported].snapshot()  # the first one is of before the session
    model.max_first = clean.max_first
    check_reopened(folder / INSIDE, model)
    return model


def lake_after_power_cut(
    clean: CleanSession, disk: SimulatedDisk, point: int, folder: Path, rng: random.Random, names: float, data: float
) -> None:
    """Write one of the states that a power cut at `point` may leave, reopen the lake, and compare it with the model."""
    shutil.rmtree(folder, ignore_errors=True)
    disk.cut_power(folder, rng, names=names, data=data)
    with after_reboot():
        check_reopened(folder / INSIDE, clean.model_at(point), reappear=True)

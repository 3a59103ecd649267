"""Many trainings, a process each, as many at a time as there are cores, and only those that are not finished yet."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from millpond.errors import MillpondError
from millpond.store import read_status
from millpond.store.run import is_run

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_SAVE = 120.0
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


class JobFailed(MillpondError):
    """Some of the trainings ended with an error."""

    exit_code = 1


@dataclass(frozen=True)
class TrainingJob:
    """A run's name, its recipe, and how it differs from that."""

    name: str
    recipe: str
    overrides: tuple[str, ...]


def run_jobs(
    jobs: Sequence[TrainingJob], folder: Path, *, at_once: int, say: Callable[[str], None] = lambda line: None
) -> None:
    """Run each job to its end, in `folder`/runs/NAME; what an earlier call finished or began is taken up from there.

    When this process is interrupted, the trainings save and stop; so they do when it dies.
    """
    waiting = [job for job in jobs if not finished(folder, job)]
    if len(waiting) < len(jobs):
        say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are finished already")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job.name] = _start(job, folder)
                say(f"{job.name} begins")
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    done = process.returncode == 0 and read_status(folder / "runs" / name).state == "finished"
                    failed += [] if done else [name]
                    say(f"{name} {'is finished' if done else 'FAILED'}; {len(waiting) + len(running)} to go")
    finally:
        _stop(list(running.values()))
    if failed:
        logs = ", ".join(str(folder / "logs" / f"{name}.log") for name in failed)
        raise JobFailed(f"{len(failed)} of {len(jobs)} runs failed; see {logs}. The same command goes on with them")


def finished(folder: Path, job: TrainingJob) -> bool:
    path = folder / "runs" / job.name
    return is_run(path) and read_status(path).state == "finished"


def _start(job: TrainingJob, folder: Path) -> subprocess.Popen[bytes]:
    """Begin the run, or go on with it. One thread each: the runs are what is parallel."""
    path = folder / "runs" / job.name
    words = ["train", "--resume", str(path)]
    if not is_run(path):
        words = ["train", job.recipe, *job.overrides, f"run_dir={folder / 'runs'}", "--run", job.name]
    with (folder / "logs" / f"{job.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "millpond", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _die_with_parent() -> None:
    """Have the kernel send SIGTERM, which saves and stops a run, when the process that started this one is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let them save; who takes too long is ended."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(SECONDS_TO_SAVE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

"""Trainings in parallel, one process each; finished ones are skipped and interrupted ones resumed."""

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

POLL_SECONDS = 0.2
SAVE_TIMEOUT_SECONDS = 120.0
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


class JobFailed(MillpondError):
    """Some trainings ended with an error."""

    exit_code = 1


@dataclass(frozen=True)
class TrainingJob:
    """Name of a run, its recipe, and overrides."""

    name: str
    recipe: str
    overrides: tuple[str, ...]


def run_jobs(
    jobs: Sequence[TrainingJob], folder: Path, *, at_once: int, say: Callable[[str], None] = lambda line: None
) -> None:
    """Run each job to its end, in `folder`/runs/NAME, `at_once` in parallel; earlier runs are skipped or resumed.

    If this process is interrupted or dies, the trainings save and stop.
    """
    waiting = [job for job in jobs if not is_finished(folder, job)]
    if len(waiting) < len(jobs):
        say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are already finished")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job.name] = _start(job, folder)
                say(f"{job.name} started")
            time.sleep(POLL_SECONDS)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    done = process.returncode == 0 and read_status(folder / "runs" / name).state == "finished"
                    failed += [] if done else [name]
                    say(f"{name} {'finished' if done else 'FAILED'}; {len(waiting) + len(running)} left")
    finally:
        _stop(list(running.values()))
    if failed:
        logs = ", ".join(str(folder / "logs" / f"{name}.log") for name in failed)
        raise JobFailed(
            f"{len(failed)} of {len(jobs)} runs failed; see {logs}. Run the same command again to resume them"
        )


def is_finished(folder: Path, job: TrainingJob) -> bool:
    path = folder / "runs" / job.name
    return is_run(path) and read_status(path).state == "finished"


def _start(job: TrainingJob, folder: Path) -> subprocess.Popen[bytes]:
    """Start or resume a run, with one thread: the runs themselves are parallel."""
    path = folder / "runs" / job.name
    arguments = ["train", "--resume", str(path)]
    if not is_run(path):
        arguments = ["train", job.recipe, *job.overrides, f"run_dir={folder / 'runs'}", "--run", job.name]
    with (folder / "logs" / f"{job.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "millpond", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _die_with_parent() -> None:
    """Make the kernel send SIGTERM, which saves and stops a run, when the parent process dies."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let the processes save and stop; kill those that take too long."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(SAVE_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

"""Trainings in processes of their own, several in parallel; finished ones are skipped and interrupted ones resumed."""

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
from millpond.store.folder import is_run

POLL_SECONDS = 0.2
SAVE_TIMEOUT_SECONDS = 120.0
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # the processes themselves are parallel


@dataclass(frozen=True)
class TrainingJob:
    """Name of a run, its recipe, and overrides."""

    name: str
    recipe: str
    overrides: tuple[str, ...]


class JobFailed(MillpondError):
    """Some trainings ended with an error."""

    exit_code = 1


def run_jobs(
    jobs: Sequence[TrainingJob],
    folder: Path,
    *,
    at_once: int,
    say: Callable[[str], None] = lambda line: None,
    trust_recipe: bool = False,
    trust_runs: bool = False,
    is_done: Callable[[TrainingJob], bool] | None = None,
) -> None:
    """Run each job to its end, in `folder`/runs/NAME, `at_once` in parallel; earlier runs are skipped or resumed.

    If this process is interrupted or dies, the trainings save and stop. `trust_recipe` and `trust_runs`: code that the
    recipe, or a run that is resumed, names is trusted; the trainings have no terminal to ask on. `is_done` is True for
    jobs that need no run, by default those with a finished one.
    """
    done = is_done or (lambda job: is_finished(folder, job.name))
    waiting = [job for job in jobs if not done(job)]
    if len(waiting) < len(jobs):
        say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are already finished")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job.name] = _start(job, folder, trust_recipe=trust_recipe, trust_runs=trust_runs)
                say(f"{job.name} started")
            time.sleep(POLL_SECONDS)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    finished = process.returncode == 0 and read_status(folder / "runs" / name).state == "finished"
                    failed += [] if finished else [name]
                    say(f"{name} {'finished' if finished else 'FAILED'}; {len(waiting) + len(running)} left")
    finally:
        stop_processes(list(running.values()))
    if failed:
        logs = ", ".join(str(folder / "logs" / f"{name}.log") for name in failed)
        raise JobFailed(
            f"{len(failed)} of {len(jobs)} runs failed; see {logs}. Run the same command again to resume them"
        )


def is_finished(folder: Path, run: str) -> bool:
    """Return True if a run in `folder`/runs has reached its end."""
    path = folder / "runs" / run
    return is_run(path) and read_status(path).state == "finished"


def _start(job: TrainingJob, folder: Path, *, trust_recipe: bool, trust_runs: bool) -> subprocess.Popen[bytes]:
    """Start or resume a run, with one thread: the runs themselves are parallel."""
    path = folder / "runs" / job.name
    resumes = is_run(path)
    arguments = ["train", "--resume", str(path)]
    if not resumes:
        arguments = ["train", job.recipe, *job.overrides, f"run_dir={folder / 'runs'}", "--run", job.name]
    if trust_runs if resumes else trust_recipe:
        arguments.append("--trust")
    return start_process(["-m", "millpond", *arguments], folder / "logs" / f"{job.name}.log")


def start_process(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a Python process with one thread, whose output is appended to a file; it stops if this process dies."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ONE_THREAD},
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _die_with_parent() -> None:
    """Make the kernel send SIGTERM, which saves and stops a run, when the parent process dies."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def stop_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let the processes save and stop; kill those that take too long."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(SAVE_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

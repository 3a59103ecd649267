"""From sizes and an environment to a vector that is ready for `reset`."""

from __future__ import annotations

from typing import Literal

from millpond.cores import usable_cores
from millpond.envs.spec import EnvSpec
from millpond.sizes import trainer_envs
from millpond.vector import processes
from millpond.vector.choose import choose
from millpond.vector.crash import VectorError
from millpond.vector.crew import EnvBatchFactory, Job
from millpond.vector.fleet import Fleet, OnCrash
from millpond.vector.inline import InlinePool
from millpond.vector.layout import Layout
from millpond.vector.memory import Arena
from millpond.vector.pool import Pool
from millpond.vector.spawned import SpawnPool
from millpond.vector.threads import ThreadPool
from millpond.vector.trainer_share import TrainerSharePool
from millpond.vector.vector import Vector


def make_vector(
    spec: EnvSpec,
    make_env_batch: EnvBatchFactory,
    *,
    num_envs: int,
    groups: int = 2,
    num_workers: int = 1,
    backend: Literal["auto", "inline", "threads", "processes", "native"] = "auto",
    timeout: float = 60.0,
    on_crash: OnCrash = "stop",
    threads: int | None = None,
    trainer_share: float = 0.0,
    start_seconds: float = 180.0,
) -> Vector:
    """Start the workers and make the environments.

    `num_workers`    processes of the backend `processes`
    `threads`        threads of the backend `threads`; None is one a core
    `trainer_share`  of each group's envs the caller steps so many itself, beside workers of the backend `processes`
    `timeout`        seconds that a step may take, past which a worker counts as hung
    `start_seconds`  seconds that loading, making and resetting environments may take
    `on_crash`       "stop" raises `WorkerError`; "restart" starts the lost envs anew and says so in the batch
    """
    if timeout <= 0:
        raise VectorError(f"vector.timeout={timeout:g} must be more than 0 seconds")
    if on_crash not in ("stop", "restart"):
        raise VectorError(f"vector.on_crash={on_crash!r} is not one of stop, restart")
    if not 0 <= trainer_share < 1:
        raise VectorError(f"vector.trainer_share={trainer_share:g} must be at least 0 and less than 1")
    if trainer_share and backend not in ("auto", "processes"):
        raise VectorError(
            f"vector.trainer_share={trainer_share:g} is for vector.backend=processes, and it is {backend}; leave it out"
        )
    whole = Layout.of(num_envs, groups, 1)
    choice = choose(
        spec,
        backend=backend,
        envs_per_group=num_envs // groups,
        num_workers=num_workers,
        threads=threads,
        cores=usable_cores(),
        why_not_processes=_why_not_processes(Job(spec, whole, make_env_batch)) if backend == "auto" else "",
    )
    own = trainer_envs(trainer_share, num_envs // groups) if choice.backend == "processes" else 0
    layout = Layout.of(num_envs, groups, choice.num_workers, own)
    job = Job(spec, layout, make_env_batch)
    start_seconds = max(start_seconds, timeout)
    pool: Pool
    if choice.backend == "processes":
        arena, pool = _processes(job, timeout, start_seconds)
        if own:
            pool = TrainerSharePool(pool, InlinePool(job, arena), layout.num_workers)
    else:
        arena = Arena.local(spec, layout)
        in_threads = choice.backend == "threads" or (choice.backend == "native" and spec.releases_gil)
        pool = ThreadPool(job, arena) if in_threads else InlinePool(job, arena)
    try:
        fleet = Fleet(spec, layout, arena, pool, timeout=timeout, start_seconds=start_seconds, on_crash=on_crash)
    except BaseException:
        arena.close()
        pool.close()
        raise
    beside = f"; the trainer steps {own:,} of the {num_envs // groups:,} envs of a group itself" if own else ""
    if trainer_share and not own:
        beside = "; vector.trainer_share does nothing here"
    return Vector(fleet, choice.backend, choice.reason + beside)


def _processes(job: Job, timeout: float, start_seconds: float) -> tuple[Arena, Pool]:
    """Start worker processes, in the way that this system has."""
    linux = processes.available()
    arena = (Arena.shared if linux else Arena.in_named_file)(job.spec, job.layout)
    try:
        if linux:
            return arena, processes.ProcessPool(job, arena, timeout=timeout, start_seconds=start_seconds)
        return arena, SpawnPool(job, arena, start_seconds=start_seconds)
    except BaseException:
        arena.close()
        raise


def _why_not_processes(job: Job) -> str:
    try:
        processes.pickle_job(job)
    except VectorError as error:
        return str(error)
    return ""

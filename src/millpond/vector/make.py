"""`make_vector`: choose the backend that suits an environment on this machine, start the workers, make the envs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millpond.cpu import usable_cores
from millpond.envs.families import family_of
from millpond.envs.spec import EnvSpec
from millpond.formatting import plural
from millpond.sizes import trainer_envs
from millpond.vector.backends import processes
from millpond.vector.backends.pool import InlinePool, Pool, ThreadPool, TrainerSharePool, pickle_job
from millpond.vector.backends.spawned import SpawnPool
from millpond.vector.fleet import Fleet, OnCrash
from millpond.vector.layout import Layout, VectorError
from millpond.vector.shared_memory import Arena
from millpond.vector.vector import Vector
from millpond.vector.worker import MakeEnvBatch, WorkerJob

Backend = Literal["inline", "threads", "processes", "native"]
NOT_CAUGHT = "a crash of an env in a thread (such as a segmentation fault) cannot be caught and ends the run"


def make_vector(
    spec: EnvSpec,
    make_env_batch: MakeEnvBatch,
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
    choice: BackendChoice | None = None,
) -> Vector:
    """Start the workers and make the envs.

    `backend`        `auto` chooses by a rule, without measuring; see `measure_backend`
    `num_workers`    processes of the backend `processes`
    `threads`        threads of the backend `threads`; None is one per core
    `trainer_share`  fraction of each group's envs that the caller steps itself, with the backend `processes`
    `timeout`        seconds that a step may take, after which a worker counts as hung
    `start_seconds`  seconds that loading, making and resetting envs may take
    `on_crash`       "stop" raises `WorkerError`; "restart" restarts the lost envs and reports them in the batch
    `choice`         the backend and its workers, if they are already chosen; `backend` and `num_workers` are then ignored
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
    one_worker = Layout.of(num_envs, groups, 1)
    if choice is None:
        impossible = why_not_processes(WorkerJob(spec, one_worker, make_env_batch)) if backend == "auto" else ""
        choice = choose_backend(
            spec,
            backend=backend,
            envs_per_group=num_envs // groups,
            num_workers=num_workers,
            threads=threads,
            cores=usable_cores(),
            why_not_processes=impossible,
        )
    own_envs = 0
    if choice.backend == "processes":
        own_envs = (
            choice.trainer_envs if choice.trainer_envs is not None else trainer_envs(trainer_share, num_envs // groups)
        )
    layout = Layout.of(num_envs, groups, choice.num_workers, own_envs)
    job = WorkerJob(spec, layout, make_env_batch)
    start_seconds = max(start_seconds, timeout)
    pool: Pool
    if choice.backend == "processes":
        arena, pool = _start_processes(job, timeout, start_seconds)
        if own_envs:
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
    reason = choice.reason
    if choice.trainer_envs is not None:
        pass  # it says so itself
    elif own_envs:
        reason += f"; the trainer steps {own_envs:,} of the {num_envs // groups:,} envs of a group itself"
    elif trainer_share:
        reason += "; vector.trainer_share has no effect"
    return Vector(fleet, choice.backend, reason)


@dataclass(frozen=True)
class BackendChoice:
    """The backend of a vector, and why it was chosen."""

    backend: Backend
    num_workers: int  # threads or processes that step at the same time
    reason: str
    trainer_envs: int | None = None  # of each group, next to processes; None: as `trainer_share` says


def choose_backend(
    spec: EnvSpec,
    *,
    backend: str,
    envs_per_group: int,
    num_workers: int,
    threads: int | None,
    cores: int,
    why_not_processes: str = "",
) -> BackendChoice:
    """Return the configured backend; for `auto`, one that suits the environment, without measuring.

    A crash in a thread ends the trainer's process, so `auto` uses threads for Millpond's own environments only.
    `why_not_processes` is the reason why worker processes cannot be used, if there is one.
    """
    max_workers = min(cores, envs_per_group)
    if threads is not None and threads < 1:
        raise VectorError(f"vector.threads={threads} must be at least 1, or left out for one per core")
    if backend == "inline":
        return BackendChoice("inline", 1, "as configured: envs step in the trainer's own thread")
    if backend == "threads":
        count = threads or max_workers
        serial = "" if spec.releases_gil else f"; {spec.id} holds the GIL, so they cannot step at the same time"
        return BackendChoice("threads", count, f"as configured: {plural(count, 'thread')}{serial}; {NOT_CAUGHT}")
    if backend == "processes":
        return BackendChoice("processes", num_workers, f"as configured: {plural(num_workers, 'worker process')}")
    if backend == "native":
        if not spec.native_vector:
            raise VectorError(
                f"vector.backend=native needs an environment that steps many envs in one call, and {spec.id} does not "
                f"(spec.native_vector is false); use inline, threads or processes"
            )
        return BackendChoice("native", 1, f"as configured: {_describe_native(spec)}")
    if backend != "auto":
        raise VectorError(f"vector.backend={backend!r} is not one of auto, inline, threads, processes, native")

    if spec.native_vector and not spec.partial_step:
        return BackendChoice("native", 1, f"{spec.id} steps all its envs in one call; {_describe_native(spec)}")
    if cores == 1:
        return BackendChoice("inline", 1, "there is one core, so envs cannot step while the policy acts")
    if spec.releases_gil and is_own(spec):
        count = threads or max_workers
        return BackendChoice("threads", count, f"{spec.id} releases the GIL; {plural(count, 'thread')}")
    why_not_threads = f"{spec.id} " + (
        "is not part of Millpond, and a crash in a thread cannot be caught" if spec.releases_gil else "holds the GIL"
    )
    count = min(num_workers, max_workers)
    if why_not_processes:
        return BackendChoice("inline", 1, f"{why_not_threads}, and processes are not possible: {why_not_processes}")
    if count == 1:
        only = "one worker was requested" if num_workers == 1 else "a group has one env"
        return BackendChoice("inline", 1, f"{why_not_threads} and {only}, so a process would only add overhead")
    fewer = f" of the {num_workers} requested, as there are {cores} cores" if count < num_workers else ""
    return BackendChoice("processes", count, f"{why_not_threads}; {plural(count, 'worker process')}{fewer}")


def _describe_native(spec: EnvSpec) -> str:
    if spec.releases_gil:
        return "one env batch per group, in a thread next to the policy"
    return "one env batch per group, in the trainer's own thread, as it holds the GIL"


def _start_processes(job: WorkerJob, timeout: float, start_seconds: float) -> tuple[Arena, Pool]:
    """Start worker processes: forked ones on Linux, spawned ones elsewhere."""
    can_fork = processes.available()
    arena = (Arena.shared if can_fork else Arena.in_named_file)(job.spec, job.layout)
    try:
        if can_fork:
            return arena, processes.ProcessPool(job, arena, timeout=timeout, start_seconds=start_seconds)
        return arena, SpawnPool(job, arena, start_seconds=start_seconds)
    except BaseException:
        arena.close()
        raise


def is_own(spec: EnvSpec) -> bool:
    """Return True for the code of Millpond itself, which may run in threads: a crash there cannot be caught."""
    family = family_of(spec.id)
    return family is not None and family.built_in


def why_not_processes(job: WorkerJob) -> str:
    """Return the reason why worker processes cannot make an environment; empty if nothing is known against it."""
    try:
        pickle_job(job)
    except VectorError as error:
        return str(error)
    return ""

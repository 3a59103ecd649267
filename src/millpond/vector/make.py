"""Which backend suits an environment on this machine, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millpond.cores import usable_cores
from millpond.envs.spec import EnvSpec
from millpond.plurals import plural
from millpond.sizes import trainer_envs
from millpond.vector.backends import processes
from millpond.vector.backends.inline import InlinePool, TrainerSharePool
from millpond.vector.backends.pool import Pool
from millpond.vector.backends.spawned import SpawnPool
from millpond.vector.backends.threads import ThreadPool
from millpond.vector.failures import VectorError
from millpond.vector.fleet import Fleet, OnCrash
from millpond.vector.layout import Layout
from millpond.vector.shared_memory import Arena
from millpond.vector.vector import Vector
from millpond.vector.worker import EnvBatchFactory, Job

Backend = Literal["inline", "threads", "processes", "native"]


@dataclass(frozen=True)
class Choice:
    backend: Backend
    num_workers: int  # that step at the same time: threads or processes
    reason: str


def choose(
    spec: EnvSpec,
    *,
    backend: str,
    envs_per_group: int,
    num_workers: int,
    threads: int | None,
    cores: int,
    why_not_processes: str = "",
) -> Choice:
    """Take what was asked for, and for `auto` what should be fastest.

    `why_not_processes` is the reason why they cannot be used, where there is one.
    """
    most = min(cores, envs_per_group)
    if threads is not None and threads < 1:
        raise VectorError(f"vector.threads={threads} must be at least 1, or left out for one a core")
    if backend == "inline":
        return Choice("inline", 1, "as configured: environments step in the trainer's own thread")
    if backend == "threads":
        count = threads or most
        held = "" if spec.releases_gil else f"; {spec.id} holds Python's lock, so they cannot step at the same time"
        return Choice("threads", count, f"as configured: {plural(count, 'thread')}{held}")
    if backend == "processes":
        return Choice("processes", num_workers, f"as configured: {plural(num_workers, 'worker process')}")
    if backend == "native":
        if not spec.native_vector:
            raise VectorError(
                f"vector.backend=native needs an environment that steps many envs in one call, and {spec.id} does not "
                f"(spec.native_vector is false); use inline, threads or processes"
            )
        return Choice("native", 1, f"as configured: {_native(spec)}")
    if backend != "auto":
        raise VectorError(f"vector.backend={backend!r} is not one of auto, inline, threads, processes, native")

    if spec.native_vector and not spec.partial_step:
        return Choice("native", 1, f"{spec.id} steps all its envs in one call of its own; {_native(spec)}")
    if cores == 1:
        return Choice("inline", 1, "there is one core, so nothing can step beside the policy")
    if spec.releases_gil:
        count = threads or most
        return Choice("threads", count, f"{spec.id} steps without Python's lock; {plural(count, 'thread')}")
    count = min(num_workers, most)
    if why_not_processes:
        return Choice(
            "inline", 1, f"{spec.id} holds Python's lock, and processes are not possible: {why_not_processes}"
        )
    if count == 1:
        only = "one worker was asked for" if num_workers == 1 else "a group has one env"
        return Choice("inline", 1, f"{spec.id} holds Python's lock and {only}, so a process would only add its cost")
    fewer = f" of the {num_workers} asked for, as there are {cores} cores" if count < num_workers else ""
    return Choice("processes", count, f"{spec.id} holds Python's lock; {plural(count, 'worker process')}{fewer}")


def _native(spec: EnvSpec) -> str:
    if spec.releases_gil:
        return "one environment a group, in a thread beside the policy"
    return "one environment a group, in the trainer's own thread, as it holds Python's lock"


# -- From sizes and an environment to a vector that is ready for `reset`.


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

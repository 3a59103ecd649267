"""Which backend suits an environment on this machine, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millpond.envs.spec import EnvSpec
from millpond.plurals import plural
from millpond.vector.crash import VectorError

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

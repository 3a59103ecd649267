"""Measure an environment before a run, and choose the backend of its vector by it.

The measured envs are separate instances with seeds of their own, and are closed before the run makes its envs. Those of other
packages step in a worker process, as a crash or a hang there does no harm; Millpond's own step in a thread. Nothing that is
learned depends on the choice: trajectories are the same with every backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from millpond.envs.random_play import sample_action
from millpond.envs.spec import EnvSpec
from millpond.sizes import trainer_envs
from millpond.vector.choose import Costs, Sizes, choose, explain
from millpond.vector.layout import Batch, Layout, VectorError
from millpond.vector.make import BackendChoice, choose_backend, is_own, make_vector, why_not_processes
from millpond.vector.scheduler import RoundRobin
from millpond.vector.vector import Vector
from millpond.vector.worker import MakeEnvBatch, WorkerError, WorkerJob

MEASURED_ENVS = {"processes": 16, "threads": 256}  # Millpond's own envs are made fast, and step fast
MEASURED_STEPS = 256  # of all envs, and again of a single env
WARM_UP_STEPS = 4
SECONDS = 0.3  # after which a warm-up or a measurement ends
SLOW = 0.1  # seconds for a step of all measured envs, next to which the overhead does not matter
STEP_LIMIT = 5.0  # seconds for a step of all measured envs; longer is slow enough to be sure
SEED = 20_260_101
DIFFERENT_ACTIONS = 8
MAX_OVERHEAD = 500e-6
DEFAULT_OVERHEAD = 50e-6  # seconds, where it is not measured

TimeActing = Callable[[int | None], float]  # number of threads, None for all -> seconds to act for a group


def measure_backend(
    spec: EnvSpec,
    make_env_batch: MakeEnvBatch,
    *,
    num_envs: int,
    groups: int,
    num_workers: int,
    threads: int | None,
    trainer_share: float | None,
    cores: int,
    time_acting: TimeActing,
    vectors: int = 1,
) -> BackendChoice:
    """Choose the backend for `vector.backend=auto` by measuring the environment and the policy.

    `num_workers` above 1 is the maximum of worker processes; 1 sets no limit but cores and envs. `trainer_share` is chosen
    too if it is None. `vectors` of this size share the cores, one per agent; their trainer steps no envs. The environment is
    not measured if only one backend is possible.
    """
    # With a vector per agent, the envs of the others step while the policy acts for one, as groups do.
    envs_per_group, turns = num_envs // groups, groups * vectors
    if spec.native_vector and not spec.partial_step:
        return choose_backend(
            spec, backend="auto", envs_per_group=envs_per_group, num_workers=1, threads=threads, cores=cores
        )
    if cores == 1:
        return BackendChoice("inline", 1, "there is one core, so envs cannot step while the policy acts")
    backend: Literal["threads", "processes"] = "threads" if spec.releases_gil and is_own(spec) else "processes"
    limit = min(cores, envs_per_group)
    if backend == "processes":
        impossible = why_not_processes(WorkerJob(spec, Layout.of(num_envs, groups, 1), make_env_batch))
        if impossible:
            return BackendChoice("inline", 1, f"processes are not possible: {impossible}")
        limit = limit if num_workers == 1 else min(limit, num_workers)
        limit = limit if vectors == 1 else min(limit, (cores - 1) // vectors)  # processes that poll need a core each
        if not limit:
            why = f"{spec.id} holds the GIL, and {vectors} vectors with worker processes need more than {cores} cores"
            return BackendChoice("inline", 1, why)
    own_envs = None if trainer_share is None else trainer_envs(trainer_share, envs_per_group)
    if backend == "processes":
        limit = min(limit, envs_per_group - (own_envs or 0))
    if backend == "threads" and threads is not None:
        limit = threads
    try:
        step, overhead = measure_steps(spec, make_env_batch, backend, min(envs_per_group, MEASURED_ENVS[backend]))
    except VectorError as error:  # a worker process cannot load the environment
        return BackendChoice("inline", 1, f"processes are not possible: {error}")
    except WorkerError as error:
        if error.doing != "step":
            raise  # it cannot be used at all
        why = f"the environment {error.kind} in a step while it was measured, and a process can be replaced"
        return BackendChoice("processes", limit, why, own_envs or 0)
    sizes = Sizes(envs_per_group, turns, cores, 0 if vectors > 1 else own_envs)
    costs = Costs(step, overhead, time_acting(None), time_acting(1))
    chosen = choose(backend, limit, sizes, costs)
    reason = explain(chosen, backend, limit, sizes, costs)
    return BackendChoice(chosen.backend, chosen.num_workers, reason, chosen.trainer_envs)


def measure_steps(
    spec: EnvSpec, make_env_batch: MakeEnvBatch, backend: Literal["threads", "processes"], num_envs: int
) -> tuple[float, float]:
    """Return the seconds of one step of one env, without resets, and the overhead of a command to a worker.

    One worker steps n envs, then a single one. A step of n takes n c + o seconds, which gives c and o. A step longer than
    `STEP_LIMIT` raises `WorkerError`, like a crash.
    """
    with make_vector(
        spec,
        make_env_batch,
        num_envs=num_envs,
        groups=1,
        num_workers=1,
        threads=1,
        backend=backend,
        timeout=STEP_LIMIT,
    ) as vector:
        vector.reset(SEED)
        random = np.random.default_rng(SEED)
        of_all = _seconds_per_step(vector, spec, random)
        if num_envs == 1 or not spec.partial_step or of_all > SLOW:
            overhead = min(DEFAULT_OVERHEAD, of_all)
            return (of_all - overhead) / num_envs, overhead
        vector.end_round()
        of_one = _seconds_per_step(vector.slice(0, 1), spec, random)
    return solve(of_all, of_one, num_envs)


def solve(of_all: float, of_one: float, num_envs: int) -> tuple[float, float]:
    """Return c and o of `of_all = num_envs c + o` and `of_one = c + o`, at least 0.

    An overhead above `MAX_OVERHEAD` is the time of other programs on a busy machine: it counts as that of the steps.
    """
    step = max(0.0, of_all - of_one) / (num_envs - 1)
    overhead = min(max(0.0, of_one - step), MAX_OVERHEAD, of_all)
    return (of_all - overhead) / num_envs, overhead


def _seconds_per_step(turns: Vector | RoundRobin, spec: EnvSpec, random: np.random.Generator) -> float:
    """Return the time from sending actions to receiving results: the lower quartile over some steps.

    Steps in which another program had the core are slower, and so are those with a reset, which become rarer or more frequent
    as the policy learns.
    """
    batch = turns.recv()
    # Drawn before, so that the worker waits no longer for a command than in a collection; masks change with every step.
    drawn = [] if spec.action_masks else [_random_actions(spec, batch, random) for _ in range(DIFFERENT_ACTIONS)]

    def step() -> float:
        nonlocal batch
        batch.action[...] = drawn[random.integers(len(drawn))] if drawn else _random_actions(spec, batch, random)
        start = time.perf_counter()
        turns.send()
        batch = turns.recv()
        return time.perf_counter() - start

    _repeat(step, WARM_UP_STEPS)  # the first step may load or compile something
    return float(np.quantile(_repeat(step, MEASURED_STEPS), 0.25))


def _repeat(step: Callable[[], float], most: int) -> list[float]:
    """Return the seconds of up to `most` steps, at least one, until `SECONDS` have passed."""
    seconds = [step()]
    ends = time.perf_counter() - seconds[0] + SECONDS
    while len(seconds) < most and time.perf_counter() < ends:
        seconds.append(step())
    return seconds


def _random_actions(spec: EnvSpec, batch: Batch, random: np.random.Generator) -> npt.NDArray[Any]:
    """Return actions [envs, agents, ...] that the masks allow."""
    masks = batch.action_mask
    rows = [[sample_action(spec.action, mask, random) for mask in env_masks] for env_masks in masks]
    return np.array(rows).reshape(batch.action.shape)

"""`vector.backend=auto` of a run: choose how envs are stepped, store the choice with the run, and reuse it on resume."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn

from millpond.config.env_options import env_options
from millpond.config.recipe import Recipe, VectorConfig
from millpond.devices import make_generator
from millpond.distributed import Ranks
from millpond.durable import replace_json
from millpond.envs.registry import EnvBatchFactory, prepare
from millpond.envs.spec import EnvSpec
from millpond.planner.remembered import (
    RememberedBackend,
    can_be_remembered,
    recall_backend,
    remembered_path,
    with_remembered,
)
from millpond.rollout.collector import Actor
from millpond.rollout.rows import TORCH
from millpond.store import RandomState, Run, RunError
from millpond.threads import torch_threads
from millpond.vector import BackendChoice, measure_backend

ACTING_SECONDS = 0.05
ACTING_CALLS = 32


@dataclass(frozen=True)
class VectorSizes:
    """Sizes of a vector. Several `vectors` of this size, one per agent, may be in one process and share its cores."""

    num_envs: int
    groups: int = 1
    num_workers: int = 1  # the most worker processes; 1 sets no limit
    vectors: int = 1


def choose_vector(
    recipe: Recipe,
    spec: EnvSpec,
    sizes: VectorSizes,
    run: Run,
    ranks: Ranks,
    time_acting: Callable[[int | None], float],
) -> BackendChoice | None:
    """Return the choice of `vector.backend=auto`; None if the config sets the backend.

    A resumed run keeps its choice, since the saved state of its envs is divided among as many workers. A new one uses what
    was measured before on this machine for the same sizes and versions, or measures. Rank 0 decides for all ranks.

    `recipe` and `sizes` are the share of this rank; `time_acting` is as in `measure_backend`.
    """
    if recipe.vector.backend != "auto":
        return None
    if run.resumed:
        stored = run.read_vector()
        if stored is None:
            return None  # of an earlier version, which chose by a rule
        return _as_choice(_checked(stored, run), "as chosen when the run started, ")

    def decide() -> dict[str, Any]:
        chosen = recall_backend(recipe, ranks.count)
        if chosen is None:
            chosen = _measure(recipe, spec, sizes, ranks, time_acting)
            _remember(recipe, chosen, ranks)
        replace_json(run.vector_path, asdict(chosen))
        return asdict(chosen)

    return _as_choice(RememberedBackend.of(ranks.run_on_first(decide)))


def time_actor(
    actor: Actor,
    initial_state: torch.Tensor,
    spec: EnvSpec,
    num_envs: int,
    context: Callable[[], AbstractContextManager[Any]],
) -> Callable[[int | None], float]:
    """Return a function that measures the seconds in which an actor acts for so many envs, with a number of threads.

    `initial_state` [agents, S, H]; `context` is the precision.
    """
    agents = num_envs * spec.num_agents
    observation = np.zeros((agents, *spec.observation.shape), spec.observation.dtype)
    mask = np.ones((agents, spec.action.mask_size), np.bool_) if spec.action_masks else None
    generator = make_generator(initial_state.device, 0)
    state = initial_state.clone()

    def measure(threads: int | None) -> float:
        with context():
            actor.freeze_weights()
            return time_calls(lambda: actor.act(observation, state, mask, generator), threads)

    return measure


def time_calls(call: Callable[[], object], threads: int | None) -> float:
    """Return the median seconds of a call, with a number of threads of torch, None for all; random generators are kept."""
    seconds: list[float] = []
    with keeping_random_state(), torch_threads(threads or torch.get_num_threads()):
        call()  # it may compile something
        ends = time.perf_counter() + ACTING_SECONDS
        while not seconds or (len(seconds) < ACTING_CALLS and time.perf_counter() < ends):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def time_network(
    network: nn.Module, spec: EnvSpec, num_envs: int, device: torch.device
) -> Callable[[int | None], float]:
    """Return a function that measures the seconds of a network for the observations of so many envs; see `time_actor`."""
    observation = torch.zeros((num_envs, *spec.observation.shape), dtype=TORCH[spec.observation.dtype], device=device)

    def act() -> None:
        with torch.inference_mode():
            network(observation)

    return lambda threads: time_calls(act, threads)


@contextmanager
def keeping_random_state() -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch afterwards."""
    generators = RandomState()
    before = generators.state_dict()
    try:
        yield
    finally:
        generators.load_state_dict(before)


def _measure(
    recipe: Recipe, spec: EnvSpec, sizes: VectorSizes, ranks: Ranks, time_acting: Callable[[int | None], float]
) -> RememberedBackend:
    env_id, options = env_options(recipe.env, stacked=True)
    with keeping_random_state():
        prepare(env_id, options)
        choice = measure_backend(
            spec,
            EnvBatchFactory(env_id, options),
            num_envs=sizes.num_envs,
            groups=sizes.groups,
            num_workers=sizes.num_workers,
            threads=recipe.vector.threads,
            trainer_share=_trainer_share(recipe.vector),
            vectors=sizes.vectors,
            cores=ranks.place.cores,
            time_acting=time_acting,
        )
    return RememberedBackend(choice.backend, choice.num_workers, choice.reason, choice.trainer_envs)


def _trainer_share(vector: VectorConfig) -> float | None:
    """Return the configured share; None to choose it. Envs that are to be restarted after a crash step in workers only."""
    return 0.0 if vector.trainer_share is None and vector.on_crash == "restart" else vector.trainer_share


def _remember(recipe: Recipe, chosen: RememberedBackend, ranks: Ranks) -> None:
    """Remember a choice for later runs. A cache that cannot be written only costs a measurement next time."""
    if not can_be_remembered(recipe) or not chosen.reason.startswith("measured"):
        return
    path = remembered_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, with_remembered(recipe, chosen, ranks.count))
    except OSError as error:
        warnings.warn(f"{path} cannot be written ({error.strerror}): envs are measured again next time", stacklevel=2)


def _checked(stored: dict[str, Any], run: Run) -> RememberedBackend:
    try:
        return RememberedBackend.of(stored)
    except ValueError as error:
        raise RunError(
            f"{run.vector_path} does not hold the vector of a run ({error}); restore it from a copy"
        ) from error


def _as_choice(chosen: RememberedBackend, prefix: str = "") -> BackendChoice:
    backend = cast(Literal["inline", "threads", "processes", "native"], chosen.backend)
    return BackendChoice(backend, chosen.num_workers, prefix + chosen.reason, chosen.trainer_envs)

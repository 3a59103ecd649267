"""The environment of a config: its spec, its vector of envs, their state in a checkpoint, and the share of each rank."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from millpond.config.env_options import env_options
from millpond.config.recipe import EnvConfig, VectorConfig
from millpond.distributed import Place, Ranks
from millpond.envs.env_batch import Buffers, EnvBatch, EpisodeStats
from millpond.envs.registry import EnvBatchFactory, describe, prepare
from millpond.envs.render import options_for_drawing
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.rollout.collector import Collected
from millpond.store import Run, load_weights
from millpond.vector import BackendChoice, Vector, make_vector

INLINE = {"backend": "inline", "trainer_share": 0.0}


def make_spec(env: EnvConfig, *, stacked: bool) -> EnvSpec:
    """Return the spec of the config's environment. `stacked`: observations are whole frame stacks."""
    env_id, options = env_options(env, stacked=stacked)
    return describe(env_id, options)


def build_vector(
    env: EnvConfig,
    vector: VectorConfig,
    *,
    num_envs: int,
    groups: int,
    num_workers: int,
    stacked: bool,
    env_batches: list[EnvBatch] | None = None,
    choice: BackendChoice | None = None,
) -> Vector:
    """Build a vector of the config's environment; compiled code is compiled once, before workers start.

    Each EnvBatch is appended to `env_batches`, for rendering; only with backends that create them in this process.
    `choice` is what `vector.backend=auto` chose.
    """
    env_id, options = env_options(env, stacked=stacked)
    if env_batches is not None:
        options = options_for_drawing(env_id, options)
    prepare(env_id, options)
    factory = EnvBatchFactory(env_id, options)

    def make_and_append(num_envs: int, buffers: Buffers, first_env: int) -> EnvBatch:
        env_batch = factory(num_envs, buffers, first_env)
        assert env_batches is not None
        env_batches.append(env_batch)
        return env_batch

    return make_vector(
        describe(env_id, options),
        factory if env_batches is None else make_and_append,
        num_envs=num_envs,
        groups=groups,
        num_workers=num_workers,
        backend=vector.backend,
        timeout=vector.timeout,
        on_crash=vector.on_crash,
        threads=vector.threads,
        trainer_share=vector.trainer_share or 0.0,
        choice=choice,
    )


def evaluation_vector(
    env: EnvConfig, vector: VectorConfig, episodes: int, env_batches: list[EnvBatch] | None = None
) -> Vector:
    """Build a vector with one env per episode, in this process, each at the start of its episode."""
    whole, inline = env.model_copy(update={"stagger": False}), vector.model_copy(update=INLINE)
    return build_vector(
        whole, inline, num_envs=episodes, groups=1, num_workers=1, stacked=True, env_batches=env_batches
    )


class VectorState:
    """State of all envs in a checkpoint. Envs that cannot save their state start new episodes on resume, and warn."""

    def __init__(self, vector: Vector, seed: int) -> None:
        self._vector = vector
        self._seed = seed
        self._resumes = 0

    def state_dict(self) -> dict[str, Any]:
        envs = self._vector.save_state() if self._vector.spec.savable else None
        return {"resumes": self._resumes, "envs": envs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resumes = int(state["resumes"]) + 1
        if state["envs"] is not None:
            self._vector.load_state(state["envs"])
            return
        warnings.warn(
            f"{self._vector.spec.id} cannot save its state: all episodes restart, so this resume is not bit for bit",
            stacklevel=2,
        )
        fresh = np.random.SeedSequence([self._seed, self._resumes]).generate_state(1)
        self._vector.reset(int(fresh[0]))


def rank_seeds(seed: int, rank: int) -> list[int]:
    """Return the seeds of a rank: for Python, torch, the sampler, the actions, the envs and NumPy.

    The seeds of rank 0 equal those of a run with one rank.
    """
    return [int(s) for s in np.random.SeedSequence(seed, spawn_key=(rank,) if rank else ()).generate_state(6)]


def rank_device(device: str, place: Place) -> torch.device:
    """Return the device of the config; with several ranks, each uses the GPU of its local rank."""
    if device != "cuda" or place.count == 1:
        return torch.device(device)
    if place.local_rank >= torch.cuda.device_count():
        raise MillpondError(
            f"device=cuda with {place.local_count} ranks on this machine needs as many GPUs, but there are "
            f"{torch.cuda.device_count()}; start torchrun with --nproc-per-node={max(1, torch.cuda.device_count())}"
        )
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


def rank_vector(vector: VectorConfig, place: Place) -> VectorConfig:
    """Return the vector config of a rank; unless the config sets the number of threads, it is the rank's share of cores."""
    if place.count == 1 or vector.threads is not None:
        return vector
    return vector.model_copy(update={"threads": place.cores})


def begin_with_weights(ranks: Ranks, modules: Mapping[str, nn.Module], weights_from: Run | None) -> None:
    """Copy the weights of rank 0 to all ranks: its random ones, or those of another run, which only rank 0 reads."""

    def read() -> None:
        if weights_from is not None:
            saved = weights_from.checkpoint()
            load_weights(modules, saved.weights, f"run {weights_from.name!r}, checkpoint {saved.path}")

    ranks.run_on_first(read)
    for module in modules.values():
        ranks.broadcast_tensors(module.state_dict().values())


def collected_by_all(ranks: Ranks, own: Collected, num_envs: int) -> Collected:
    """Return the sum of the collections of all ranks, with their episodes in rank order."""
    if ranks.alone:
        return own
    total = Collected()
    for rank, collected in enumerate(ranks.all_gather(asdict(own))):
        total.env_steps += collected["env_steps"]
        total.agent_steps += collected["agent_steps"]
        total.dropped_agent_steps += collected["dropped_agent_steps"]
        for episode in collected["episodes"]:
            env = rank * num_envs + episode["env"]
            total.episodes.append(EpisodeStats(env, tuple(episode["returns"]), episode["length"], episode["info"]))
    return total

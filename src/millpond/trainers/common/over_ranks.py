"""Seeds, devices and threads of each rank, and weights and collections of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import torch
from torch import nn

from millpond.config.recipe import VectorConfig
from millpond.distributed import Place, Ranks
from millpond.envs.env_batch import EpisodeStats
from millpond.errors import MillpondError
from millpond.rollout.collector import Collected
from millpond.store import Run, load_weights


def rank_seeds(seed: int, rank: int) -> list[int]:
    """Return the seeds of a rank: for Python, torch, the sampler, the actions and the envs.

    The seeds of rank 0 equal those of a run with one rank.
    """
    return [int(s) for s in np.random.SeedSequence(seed, spawn_key=(rank,) if rank else ()).generate_state(5)]


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
            load_weights(modules, weights_from.weights(), f"run {weights_from.name!r}")

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

"""What of a trainer differs between ranks, and what they tell each other of a collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import torch
from torch import nn

from millpond.config.env import VectorConfig
from millpond.distributed import Place, Ranks
from millpond.envs.env_batch import EpisodeStats
from millpond.errors import MillpondError
from millpond.rollout.collect import Collected
from millpond.store import Run, load_weights


def rank_seeds(seed: int, rank: int) -> list[int]:
    """Seeds of a rank's generators and envs: of Python, torch, the sampler, the actions and the envs.

    Those of rank 0 are those of a run of one rank.
    """
    return [int(s) for s in np.random.SeedSequence(seed, spawn_key=(rank,) if rank else ()).generate_state(5)]


def rank_device(device: str, place: Place) -> torch.device:
    """The device of the config; of several ranks each takes the GPU of its own number."""
    if device != "cuda" or place.count == 1:
        return torch.device(device)
    if place.local_rank >= torch.cuda.device_count():
        raise MillpondError(
            f"device=cuda with {place.local_count} ranks on this machine needs as many GPUs, and it has "
            f"{torch.cuda.device_count()}; start torchrun with --nproc-per-node={max(1, torch.cuda.device_count())}"
        )
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


def rank_vector(vector: VectorConfig, place: Place) -> VectorConfig:
    """Where the config leaves the number of threads open, those of a rank use its share of the cores."""
    if place.count == 1 or vector.threads is not None:
        return vector
    return vector.model_copy(update={"threads": place.cores})


def begin_with_weights(ranks: Ranks, modules: Mapping[str, nn.Module], weights_from: Run | None) -> None:
    """Give all ranks the weights of rank 0: those it has drawn, or those of another run, which it alone reads."""

    def read() -> None:
        if weights_from is not None:
            load_weights(modules, weights_from.weights(), f"run {weights_from.name!r}")

    ranks.run_on_first(read)
    for module in modules.values():
        ranks.broadcast_tensors(module.state_dict().values())


def collected_by_all(ranks: Ranks, own: Collected, num_envs: int) -> Collected:
    """The sum of what the ranks collected, with the episodes of all, in the order of ranks."""
    if ranks.alone:
        return own
    total = Collected()
    for rank, found in enumerate(ranks.all_gather(asdict(own))):
        total.env_steps += found["env_steps"]
        total.agent_steps += found["agent_steps"]
        total.dropped_agent_steps += found["dropped_agent_steps"]
        for episode in found["episodes"]:
            env = rank * num_envs + episode["env"]
            total.episodes.append(EpisodeStats(env, tuple(episode["returns"]), episode["length"], episode["info"]))
    return total

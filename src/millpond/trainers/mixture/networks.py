"""The Q-networks of a mixture, and the seeds of all its random generators."""

from __future__ import annotations

import numpy as np
import torch

from millpond.config import MixtureRecipe
from millpond.envs.spec import EnvSpec
from millpond.formatting import plural
from millpond.learners import QNetwork, build_q_network
from millpond.store import Checkpoint
from millpond.trainers.common.kinds import Player

# Purposes of seeds: each purpose and agent has an independent generator.
NETWORK, EXPLORATION, ENVS, SAMPLER = range(4)


def seed_for(seed: int, purpose: int, number: int = 0) -> int:
    """Derive the seed of a purpose and an agent from the run's seed."""
    return int(np.random.SeedSequence([seed, purpose, number]).generate_state(1)[0])


def make_network(recipe: MixtureRecipe, spec: EnvSpec, number: int = 0) -> QNetwork:
    """Build the Q-network of agent `number`."""
    return build_q_network(
        spec.observation,
        spec.action,
        encoder=recipe.policy.encoder,
        hidden_size=recipe.policy.hidden_size,
        normalize_observations=recipe.policy.normalize_observations,
        generator=torch.Generator().manual_seed(seed_for(recipe.seed, NETWORK, number)),
    )


def mixture_player(recipe: MixtureRecipe, spec: EnvSpec, checkpoint: Checkpoint) -> Player:
    """The BigAgent of a run, or its one agent if it has no BigAgent."""
    network = make_network(recipe, spec)
    if "big" not in checkpoint.weights:
        return Player(network, weights="agent0", greedy=True)
    updates = plural(checkpoint.state["big"]["dqn"]["updates"], "update")
    return Player(network, weights="big", greedy=True, description=f"the BigAgent after {updates} of its own")

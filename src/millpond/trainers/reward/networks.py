"""The networks of reward learning: the one that judges steps, and the one that an agent plays with."""

from __future__ import annotations

import torch

from millpond.config import RewardRecipe
from millpond.envs.spec import EnvSpec
from millpond.learners import QNetwork, build_q_network
from millpond.learners.sac import Actor
from millpond.rewards.network import Inputs, RewardNetwork, reset_parameters
from millpond.trainers.reward.data import Recorded

PLAYER_HIDDEN = 256  # width of the agent's layers


def make_network(recipe: RewardRecipe, inputs: Inputs, seed: int) -> RewardNetwork:
    """The reward network of a config, from one seed."""
    reward = recipe.reward
    network = RewardNetwork(
        reward.objective, inputs, reward.hidden_size, normalize=reward.normalize, clip=reward.normalize_clip
    )
    reset_parameters(network, torch.Generator().manual_seed(seed))
    return network


def fit_network(network: RewardNetwork, recorded: Recorded) -> None:
    """Exact statistics of the training episodes for the normaliser, and the scale of their returns."""
    data, episodes = recorded.data, recorded.training
    if network.normalizer is not None:
        network.normalizer.set_moments(*data.moments(episodes), count=int(data.lengths[episodes].sum()))
    if data.returns is not None and network.of_transitions:
        network.set_scale(data.returns[episodes] / data.lengths[episodes])


def make_player(spec: EnvSpec, generator: torch.Generator | None = None) -> Actor | QNetwork:
    """What the agent of full mode plays with: SAC's actor for continuous actions, DQN's network for discrete ones."""
    if spec.action.kind == "discrete":
        return build_q_network(spec.observation, spec.action, hidden_size=PLAYER_HIDDEN, generator=generator)
    return Actor(spec.observation, spec.action, PLAYER_HIDDEN)

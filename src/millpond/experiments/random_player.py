"""A player that knows nothing: the zero of every scale."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from millpond.config.recipe import MixtureRecipe
from millpond.trainers.common.envs import evaluation_vector
from millpond.trainers.common.evaluate import Evaluation, evaluate


class RandomPlayer:
    """Every action as likely as any other."""

    def __init__(self, actions: int) -> None:
        self.actions = actions

    def initial_state(self, batch: int, device: torch.device) -> Tensor:
        return torch.zeros(batch, 0, 0, device=device)

    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        return torch.zeros(len(observation), device=observation.device)

    def act(
        self,
        observation: Tensor,
        state: Tensor,
        *,
        action_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Any:
        action = torch.randint(self.actions, (len(observation),), generator=generator, device=observation.device)
        return SimpleNamespace(action=action.int(), state=state)


def play_at_random(recipe: MixtureRecipe, *, episodes: int, seed: int) -> Evaluation:
    """Episodes of the recipe's environment, played at random."""
    with evaluation_vector(recipe.env, recipe.vector, episodes) as vector:
        player = RandomPlayer(vector.spec.action.sizes[0])
        return evaluate(player, vector, episodes=episodes, seed=seed, device=torch.device("cpu"))

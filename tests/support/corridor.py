"""A corridor of nine cells: the right end gives 1, the left end 0.2; both terminate, and `limit` steps truncate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from millpond.config.mixture import PQNConfig
from millpond.config.recipe import EnvConfig, VectorConfig
from millpond.learners import AgentGroup, QNetwork, build_q_network
from millpond.trainers.common.envs import build_vector
from millpond.vector import Vector

CELLS = 9


class Corridor(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.MultiBinary(CELLS)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def _show(self) -> Any:
        return (np.arange(CELLS) == self.cell).astype(np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.steps = CELLS // 2 - 1, 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.cell += 1 if action == 1 else -1
        self.steps += 1
        reward = {0: 0.2, CELLS - 1: 1.0}.get(self.cell, 0.0)
        return self._show(), reward, self.cell in (0, CELLS - 1), self.steps >= self.limit, {}


def make_env(limit: int = 30) -> Corridor:
    return Corridor(limit)


def allowed_in(cell: int) -> list[bool]:
    """Return the mask of `Doors`: left, right, never, and to stay in odd cells only."""
    return [True, True, False, cell % 2 == 1]


class Doors(Corridor):
    """The corridor with four actions, of which a mask forbids some; `image`: it shows 4 planes of 10 x 10 bytes."""

    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, limit: int, image: bool) -> None:
        super().__init__(limit)
        self.image = image
        if image:
            self.observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 4), np.uint8)

    def _show(self) -> Any:
        if not self.image:
            return super()._show()
        shown = np.zeros((10, 10, 4), np.uint8)
        shown[:, self.cell] = 255
        return shown

    def action_masks(self) -> list[bool]:
        return allowed_in(self.cell)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert allowed_in(self.cell)[action], (self.cell, action)
        if action < 2:
            return super().step(action)
        self.steps += 1
        return self._show(), 0.0, False, self.steps >= self.limit, {}


def make_doors(limit: int = 30, image: bool = False) -> Doors:
    return Doors(limit, image)


DOORS = EnvConfig(id="tests.support.corridor:make_doors", options={"limit": 7})
CORRIDOR = EnvConfig(id="tests.support.corridor:make_env")
SMALL = PQNConfig(
    num_envs=8, num_steps=16, num_minibatches=4, update_epochs=2, gamma=0.9, learning_rate=2e-3, epsilon_end=0.1
)


def make(env: EnvConfig, num_envs: int, seed: int = 1, groups: int = 1) -> Vector:
    inline = VectorConfig(backend="inline")
    vector = build_vector(env, inline, num_envs=num_envs, groups=groups, num_workers=1, stacked=True)
    vector.reset(seed)
    return vector


def network_for(vector: Vector, seed: int, hidden_size: int = 32) -> QNetwork:
    spec, generator = vector.spec, torch.Generator().manual_seed(seed)
    return build_q_network(spec.observation, spec.action, hidden_size=hidden_size, generator=generator)


def make_group(
    env: EnvConfig,
    config: PQNConfig = SMALL,
    seeds: Sequence[int] = (1,),
    total_collections: int = 20,
    batched: bool | None = None,
    groups: int = 1,
) -> AgentGroup:
    vectors = [make(env, config.num_envs, seed, groups) for seed in seeds]
    networks = [network_for(vector, seed) for vector, seed in zip(vectors, seeds, strict=True)]
    return AgentGroup(
        networks, vectors, config, seeds=list(seeds), total_collections=total_collections, batched=batched
    )

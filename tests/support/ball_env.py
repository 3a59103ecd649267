"""A tiny Gymnasium env, a network for it, and sizes that train it in a second."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from torch import Tensor, nn

from millpond.envs.env_batch import Buffers, EnvBatch
from millpond.envs.grid.envs import GridEnvs

TINY = {
    "trainer.num_envs": 4,
    "trainer.num_workers": 1,
    "trainer.bptt_horizon": 8,
    "trainer.batch_size": 64,
    "trainer.minibatch_size": 32,
    "trainer.update_epochs": 1,
    "trainer.total_iterations": 3,
    "policy.hidden_size": 8,
    "eval.episodes": 2,
    "eval.interval": None,
    "checkpoint.interval": 1,
    "log.tensorboard": False,
}
SMALL_GRID = {"width": 8, "height": 8, "walls": 2, "mines": 3, "generators": 2, "altars": 2}


class Ball(gymnasium.Env):
    """Keep a ball in the middle: every action pushes it."""

    observation_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, steps: int = 8) -> None:
        self.steps = steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.left = self.np_random.uniform(-2, 2), self.steps
        return np.array([self.place], np.float32), {}

    def step(self, action: Any) -> Any:
        self.place, self.left = np.clip(self.place + 0.2 * (2 * action - 1), -2, 2), self.left - 1
        return np.array([self.place], np.float32), 1 - abs(self.place), False, self.left == 0, {}


class Net(nn.Module):
    """Features of an observation."""

    def __init__(self, observation: Any, width: int = 6) -> None:
        super().__init__()
        self.layer = nn.Linear(observation.shape[0], width)

    def forward(self, observation: Tensor) -> Tensor:
        return self.layer(observation.float()).tanh()


def grid_maker() -> Any:
    """Return a function that no other process can import, and that makes a batch of envs with a state to save."""

    def make_grid(num_envs: int, buffers: Buffers | None) -> EnvBatch:
        return GridEnvs(num_envs, {"num_agents": 1, "obs_size": 5, "max_steps": 11, **SMALL_GRID}, buffers)

    return make_grid

"""An own environment, for the other examples: keep a ball in the middle."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Observation = npt.NDArray[np.float32]


class Ball(gymnasium.Env[Observation, np.int64]):
    """Every action pushes the ball to the left or to the right, and so does the wind. An episode has 32 steps."""

    observation_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.uniform(-2, 2), 0
        return np.array([self.place], np.float32), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        push, wind = 0.2 * (2 * action - 1), self.np_random.normal(0, 0.1)
        self.place = float(np.clip(self.place + push + wind, -2, 2))
        self.steps += 1
        return np.array([self.place], np.float32), 1 - abs(self.place), False, self.steps == 32, {}

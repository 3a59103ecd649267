"""An env that raises on its fifth step if its seed is even."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class RaisingEnv(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.raises = 0, seed is not None and seed % 2 == 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.raises and self.steps == 5:
            raise RuntimeError("this env is tired")
        return np.zeros(1, np.float32), 0.0, False, False, {}


def make_env() -> RaisingEnv:
    return RaisingEnv()

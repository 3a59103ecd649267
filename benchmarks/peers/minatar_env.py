"""A MinAtar game as a Gymnasium env, for trainers that need one: planes first, bytes of 0 and 1, minimal actions."""

from __future__ import annotations

import gymnasium
import numpy as np
from minatar import Environment


class MinAtar(gymnasium.Env):
    """One game with MinAtar's defaults: sticky actions with probability 0.1, games get faster."""

    def __init__(self, game):
        self.game = Environment(game)
        self.actions = self.game.minimal_action_set()
        height, width, planes = self.game.state_shape()
        self.observation_space = gymnasium.spaces.Box(0, 1, (planes, height, width), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self.actions))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.game.seed(seed)
        self.game.reset()
        return self._observation(), {}

    def step(self, action):
        reward, terminated = self.game.act(self.actions[action])
        return self._observation(), float(reward), bool(terminated), False, {}

    def _observation(self):
        return self.game.state().transpose(2, 0, 1).astype(np.uint8)

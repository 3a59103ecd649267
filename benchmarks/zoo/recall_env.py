"""Millpond's `recall` as a Gymnasium env, for trainers that need one: the rules of src/millpond/envs/probes.py."""

from __future__ import annotations

import gymnasium
import numpy as np

CUES, MIN_DELAY, MAX_DELAY = 4, 8, 32


class Recall(gymnasium.Env):
    """A cue is shown once, and asked for 8 to 32 steps later. The reward is 1 if the action is then the cue."""

    observation_space = gymnasium.spaces.Box(0, 1, (CUES + 1,), np.uint8)
    action_space = gymnasium.spaces.Discrete(CUES)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.start(
            int(self.np_random.integers(CUES)), int(self.np_random.integers(MIN_DELAY, MAX_DELAY + 1))
        ), {}

    def start(self, cue, delay):
        """Start an episode with this cue, which is asked for after `delay` steps; return the first observation."""
        self.cue, self.left = cue, delay
        return self._observation(cue)

    def step(self, action):
        at_question = self.left == 0
        reward = float(at_question and int(action) == self.cue)
        self.left -= 1
        return self._observation(CUES if self.left == 0 else None), reward, at_question, False, {}

    def _observation(self, shown):
        observation = np.zeros(CUES + 1, np.uint8)
        if shown is not None:
            observation[shown] = 1
        return observation

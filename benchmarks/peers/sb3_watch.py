"""Times and returns of a training with Stable-Baselines3, by iterations of a fixed number of env steps; printed as JSON."""

from __future__ import annotations

import json
import time
from importlib.metadata import version

from stable_baselines3.common.callbacks import BaseCallback

NAMES = ("stable-baselines3", "torch", "gymnasium", "numpy")


class Watch(BaseCallback):
    """Record seconds of collecting and of training, and the mean return of the episodes that ended, for each iteration."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.collect, self.train, self.level = [], [], []
        self.env_steps, self.episodes = [], []  # at the end of each iteration; ended within it
        self.spent = {"collect": 0.0, "train": 0.0}
        self.returns, self.moment = [], None

    def _on_rollout_start(self):
        self._add("train")
        if self.num_timesteps >= (len(self.collect) + 1) * self.steps:
            self._end_iteration()

    def _on_step(self):
        self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_end(self):
        self._add("collect")

    def _on_training_end(self):
        self._add("train")
        self._end_iteration()

    def _add(self, phase):
        now = time.perf_counter()
        if self.moment is not None:
            self.spent[phase] += now - self.moment
        self.moment = now

    def _end_iteration(self):
        self.collect.append(self.spent["collect"])
        self.train.append(self.spent["train"])
        self.level.append(float(sum(self.returns) / len(self.returns)) if self.returns else None)
        self.env_steps.append(self.num_timesteps)
        self.episodes.append(len(self.returns))
        self.spent = {"collect": 0.0, "train": 0.0}
        self.returns = []

    def print(self, party, **settings):
        result = {
            "party": party,
            "versions": {name: version(name) for name in NAMES},
            "settings": {"precision": "float32", **settings},
            "steps": self.steps,
            "collect": self.collect,
            "train": self.train,
            "level": self.level,
        }
        print(json.dumps(result))

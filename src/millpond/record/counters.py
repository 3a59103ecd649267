"""What is counted, each under its own name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

# The axis of curves: agent steps online, updates offline.
Axis = Literal["agent_steps", "updates", "env_steps", "frames"]

COUNTERS = ("updates", "agent_steps", "env_steps", "frames", "episodes", "seconds")


class Counters:
    """The counters that every record carries. There is no bare "step".

    updates      optimiser steps
    agent_steps  actions of agents
    env_steps    steps of environments, of all their agents together
    frames       env steps times the frame skip
    episodes     episodes ended
    seconds      time spent in this run, over all its portions
    """

    def __init__(self) -> None:
        self.updates = 0
        self.agent_steps = 0
        self.env_steps = 0
        self.frames = 0
        self.episodes = 0
        self._seconds_before = 0.0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._began

    def as_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in COUNTERS}

    def state_dict(self) -> dict[str, float]:
        return self.as_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        for name in COUNTERS[:-1]:
            setattr(self, name, int(state[name]))
        self._seconds_before, self._began = float(state["seconds"]), time.monotonic()

"""Train several agents in one environment: a PettingZoo ParallelEnv (pip install 'millpond[pettingzoo]').

All agents share one policy. Each has its own observation, reward and memory; metrics name them.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, Space
from pettingzoo import ParallelEnv

import millpond

Observations = dict[str, npt.NDArray[np.float32]]


class Meeting(ParallelEnv[str, npt.NDArray[np.float32], int]):
    """Two agents on a line meet: each is rewarded for being near the other."""

    metadata = {"name": "meeting"}  # noqa: RUF012
    possible_agents = ["left", "right"]  # noqa: RUF012

    @functools.cache  # noqa: B019
    def observation_space(self, agent: str) -> Space[Any]:
        return Box(-2, 2, (2,), np.float32)

    @functools.cache  # noqa: B019
    def action_space(self, agent: str) -> Space[Any]:
        return Discrete(3)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        rng = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        self.places = {"left": rng.uniform(-2, 0), "right": rng.uniform(0, 2)}
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.steps += 1
        for agent, action in actions.items():
            self.places[agent] = float(np.clip(self.places[agent] + 0.2 * (action - 1), -2, 2))
        apart = abs(self.places["left"] - self.places["right"])
        everyone = list(self.agents)
        over = self.steps == 25
        self.agents = [] if over else everyone
        rewards, never = dict.fromkeys(everyone, 1 - apart), dict.fromkeys(everyone, False)
        return self._observe(), rewards, never, dict.fromkeys(everyone, over), {agent: {} for agent in everyone}

    def _observe(self) -> Observations:
        left, right = self.places["left"], self.places["right"]
        return {"left": np.array([left, right], np.float32), "right": np.array([right, left], np.float32)}


def main(steps: int = 100_000) -> None:
    run = millpond.train(env=Meeting, run="meeting", overwrite=True, overrides=[f"trainer.total_timesteps={steps}"])
    print(f"return {millpond.evaluate(run, episodes=20).mean:.1f} of 25 per agent")

    policy, env = millpond.load(run), Meeting()
    observations, _ = env.reset(seed=1)
    state = None
    while env.agents:
        actions, state = policy.predict(observations, state)  # dicts by agent in and out
        observations, *_ = env.step(actions)
    print({agent: round(place, 1) for agent, place in env.places.items()})


if __name__ == "__main__":
    main()

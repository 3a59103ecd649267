"""What the envs of PQN agents did in one collection: preallocated on the device, written in place.

A agents   T steps   E envs of one agent
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.envs.env_batch import EpisodeStats
from millpond.envs.spec import EnvSpec

Final = tuple[int, int, np.ndarray[Any, Any]]  # t, env, observation


@dataclass
class Collection:
    """One agent's share; views that are valid until the next collection begins.

    `value` and `final_value` are the largest Q of each observation and, where truncated, of the final one.
    `lost`: the env crashed and was started anew, so that this step was never taken.
    """

    observation: Tensor  # [T, E, *observation]
    action: Tensor  # [T, E] int32
    reward: Tensor  # [T, E]
    terminated: Tensor  # [T, E]
    truncated: Tensor  # [T, E]
    lost: Tensor  # [T, E]
    value: Tensor  # [T, E]
    final_value: Tensor  # [T, E]
    next_value: Tensor  # [E]
    epsilon: float
    final_observation: np.ndarray[Any, Any]  # [K, *observation], of the places in `has_final`, in their order
    has_final: np.ndarray[Any, np.dtype[np.bool_]]  # [T, E]
    episodes: list[EpisodeStats] = field(default_factory=list)

    @property
    def env_steps(self) -> int:
        return self.reward.numel()

    def as_steps(self) -> dict[str, Any]:
        """As a pond takes them: `Steps(**collection.as_steps(), agent=..., round=..., policy_version=...)`.

        A lost step is cut off where it stood, so that nothing leads from it into the next episode.
        """
        names = ("observation", "action", "reward", "terminated", "truncated")
        steps: dict[str, Any] = {name: getattr(self, name).cpu().numpy().copy() for name in names}
        steps["truncated"] |= self.lost.cpu().numpy()
        steps["final_observation"] = self.final_observation
        steps["has_final"] = self.has_final
        steps["epsilon"] = self.epsilon
        return steps


class Storage:
    """The arrays of all agents' collections."""

    NAMES = ("observation", "action", "reward", "terminated", "truncated", "lost", "value", "final_value")

    def __init__(self, spec: EnvSpec, agents: int, steps: int, envs: int, device: torch.device) -> None:
        self.agents, self.steps, self.envs, self.device = agents, steps, envs, device
        lead = (agents, steps, envs)

        def numbers(dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(lead, dtype=dtype, device=device)

        self.observation_dtype = np.dtype(spec.observation.dtype)
        stored = torch.from_numpy(np.empty(0, self.observation_dtype)).dtype
        self.observation = torch.zeros((*lead, *spec.observation.shape), dtype=stored, device=device)
        self.action, self.reward = numbers(torch.int32), numbers()
        self.terminated, self.truncated, self.lost = numbers(torch.bool), numbers(torch.bool), numbers(torch.bool)
        self.value, self.final_value = numbers(), numbers()
        self.next_value = torch.zeros((agents, envs), device=device)

    def view(self, agent: int, epsilon: float, finals: list[Final], episodes: list[EpisodeStats]) -> Collection:
        """One agent's collection. `finals` are ordered by t, then env."""
        has_final = np.zeros((self.steps, self.envs), np.bool_)
        for t, env, _ in finals:
            has_final[t, env] = True
        nothing = np.empty((0, *self.observation.shape[3:]), self.observation_dtype)
        stacked = np.stack([final for _, _, final in finals]) if finals else nothing
        return Collection(
            **{name: getattr(self, name)[agent] for name in self.NAMES},
            next_value=self.next_value[agent],
            epsilon=epsilon,
            final_observation=stacked,
            has_final=has_final,
            episodes=episodes,
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in (*self.NAMES, "next_value")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in (*self.NAMES, "next_value"):
            getattr(self, name).copy_(state[name])

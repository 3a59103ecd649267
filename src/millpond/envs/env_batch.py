"""The one protocol that every environment speaks: a batch of envs that step in place, in buffers that the caller owns.

    N envs in the batch    A agents an env

Autoreset, one rule for all: the step that ends an episode resets the env at once. Its `observation` is then the
first of the next episode, and `final_observation` holds the true last one; `reward`, `terminated` and `truncated`
belong to the step that was taken. Where an episode did not end, `final_observation` is not meaningful.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from millpond.envs.spec import EnvSpec


@dataclass
class Buffers:
    """Arrays of one batch of envs. All are C-contiguous, first axis envs, so that a slice of envs is a view."""

    action: npt.NDArray[Any]  # [N, A, *action]       written by the caller
    observation: npt.NDArray[Any]  # [N, A, *observation]
    final_observation: npt.NDArray[Any]  # [N, A, *observation]
    reward: npt.NDArray[np.float32]  # [N, A]
    terminated: npt.NDArray[np.bool_]  # [N, A]
    truncated: npt.NDArray[np.bool_]  # [N, A]
    alive: npt.NDArray[np.bool_]  # [N, A]   the agent acts at the current observation
    action_mask: npt.NDArray[np.bool_]  # [N, A, sum of sizes]; an axis of 0 where the environment has no masks

    @staticmethod
    def layout(spec: EnvSpec, num_envs: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each array."""
        agents = (num_envs, spec.num_agents)
        observation = (agents + spec.observation.shape, np.dtype(spec.observation.dtype))
        flags = (agents, np.dtype(np.bool_))
        return {
            "action": (agents + spec.action.shape, np.dtype(spec.action.dtype)),
            "observation": observation,
            "final_observation": observation,
            "reward": (agents, np.dtype(np.float32)),
            "terminated": flags,
            "truncated": flags,
            "alive": flags,
            "action_mask": ((*agents, sum(spec.action.sizes) if spec.action_masks else 0), np.dtype(np.bool_)),
        }

    @staticmethod
    def allocate(spec: EnvSpec, num_envs: int) -> Buffers:
        return Buffers(
            **{name: np.zeros(shape, dtype) for name, (shape, dtype) in Buffers.layout(spec, num_envs).items()}
        )

    def envs(self, first: int, last: int) -> Buffers:
        """A view of the envs first..last-1."""
        return Buffers(**{f.name: getattr(self, f.name)[first:last] for f in fields(self)})


@dataclass(frozen=True)
class Episode:
    """What is known of an episode when it ends."""

    env: int  # index in the batch
    returns: tuple[float, ...]  # undiscounted, one per agent
    length: int  # env steps
    info: dict[str, float] = field(default_factory=dict)  # numbers the environment reported


class EnvBatch(Protocol):
    """A batch of envs of one kind."""

    spec: EnvSpec
    num_envs: int
    buffers: Buffers

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        """Start every env afresh from its own seed [N] and write the first observations."""

    def step(self, first: int, last: int) -> None:
        """Step the envs first..last-1 with `buffers.action`, and write everything else in place."""

    def episodes(self) -> list[Episode]:
        """Episodes that ended since the last call."""

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state, where `spec.savable`; stepping on from it repeats bit for bit."""

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Take up a state of `save_state`, observations included."""

    def close(self) -> None:
        """Free what the environment holds."""

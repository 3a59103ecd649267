"""`EnvBatch`, the protocol that every environment implements: N envs that step in place, in buffers of the caller.

    N envs in the batch    A agents per env

Autoreset, one rule for all: the step that ends an episode resets the env at once. `observation` is then the first
observation of the next episode, and `final_observation` holds the last one of the old episode; `reward`, `terminated`
and `truncated` belong to the step that was taken. `final_observation` is meaningful only where an episode ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError

# The buffers that a saved state holds. Actions are not among them: the caller writes them before every step.
SAVED_BUFFERS = ("observation", "final_observation", "reward", "terminated", "truncated", "alive", "action_mask")


class EnvError(MillpondError):
    """An environment cannot be made or used as requested; the message says why and what to do."""


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
    action_mask: npt.NDArray[np.bool_]  # [N, A, sum of sizes]; size 0 if the environment has no masks

    @staticmethod
    def layout(spec: EnvSpec, num_envs: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shape and dtype of each array."""
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
        """Return a view of the envs first..last-1."""
        return Buffers(**{f.name: getattr(self, f.name)[first:last] for f in fields(self)})


@dataclass(frozen=True)
class EpisodeStats:
    """Return, length and infos of an episode that ended."""

    env: int  # index in the batch
    returns: tuple[float, ...]  # undiscounted, one per agent
    length: int  # env steps
    info: dict[str, float] = field(default_factory=dict)  # numbers the environment reported


class EnvBatch(Protocol):
    """A batch of N envs of one kind."""

    spec: EnvSpec
    num_envs: int
    buffers: Buffers

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        """Start every env from its own seed [N] and write the first observations."""

    def step(self, first: int, last: int) -> None:
        """Step the envs first..last-1 with `buffers.action`, and write everything else in place."""

    def episodes(self) -> list[EpisodeStats]:
        """Return the episodes that ended since the last call."""

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state, if `spec.savable`; stepping from it repeats bit for bit."""

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Restore a state of `save_state`, observations included."""

    def close(self) -> None:
        """Free all resources."""


def unsavable(env_id: str, verb: str) -> EnvError:
    """Return the error of an environment whose state cannot be `saved` or `restored`."""
    return EnvError(f"the state of env {env_id!r} cannot be {verb}; see spec.savable")


def save_arrays(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Copy arrays under the keys `prefix.NAME`."""
    return {f"{prefix}.{name}": array.copy() for name, array in arrays.items()}


def load_arrays(
    prefix: str, arrays: Mapping[str, npt.NDArray[Any]], state: Mapping[str, npt.NDArray[Any]], *, env_id: str
) -> None:
    """Copy saved arrays into an environment's own; refuse missing keys and other shapes or dtypes."""
    for name, array in arrays.items():
        key = f"{prefix}.{name}"
        if key not in state:
            raise EnvError(f"the saved state has no {key!r}: it is not a state of env {env_id!r}; start a new run")
        saved = np.asarray(state[key])
        if saved.shape != array.shape or saved.dtype != array.dtype:
            raise EnvError(
                f"the saved state of env {env_id!r} has {key} of {saved.dtype} {saved.shape}, but the environment as "
                f"configured needs {array.dtype} {array.shape}; resume with the run's own env options and env count"
            )
        array[...] = saved


def buffer_arrays(buffers: Buffers) -> dict[str, npt.NDArray[Any]]:
    """Return the buffers that belong to a saved state, by name."""
    return {name: getattr(buffers, name) for name in SAVED_BUFFERS}

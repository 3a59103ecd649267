"""Episodes that an agent finished itself: a bounded store of them, and their steps as inputs of a reward network.

# N steps   L steps of an episode   B episodes per batch   K sampled steps per episode
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.errors import MillpondError
from millpond.rewards.network import RewardInputs, StepBatch

Array = npt.NDArray[Any]
Integers = np.ndarray[Any, np.dtype[np.int64]]


def env_inputs(spec: EnvSpec) -> RewardInputs:
    """Inputs of a reward network for an environment: its observation as a flat vector."""
    action = spec.action
    if action.kind in ("multidiscrete", "mixed"):
        raise MillpondError(
            f"{spec.id} has several actions per step; a reward network takes one choice, or continuous actions"
        )
    if spec.action_masks:
        raise MillpondError(f"{spec.id} masks actions; a reward network takes only environments without action masks")
    numbers = int(np.prod(spec.observation.shape, dtype=np.int64))
    width = action.sizes[0] if action.kind == "discrete" else int(np.prod(action.shape, dtype=np.int64))
    return RewardInputs(numbers, width)


def env_step_batch(observation: Tensor, action: Tensor, next_observation: Tensor, inputs: RewardInputs) -> StepBatch:
    """Steps of an environment [N, ...] as inputs of a reward network. Discrete actions become one-hot."""
    if not action.is_floating_point():
        action = torch.nn.functional.one_hot(action.long().flatten(), inputs.action)
    return StepBatch(
        observation.flatten(1).float(), action.flatten(1).float(), next_observation.flatten(1).float(), {}, {}
    )


class EpisodeStore:
    """The newest whole episodes with their returns; the oldest make room.

    An episode of L steps takes L + 1 consecutive records: the last holds the observation after the last step.
    """

    def __init__(self, records: int, observation: ObservationSpec, action: ActionSpec) -> None:
        self.records = records
        self.observation = np.zeros((records, *observation.shape), observation.dtype)
        self.action = np.zeros((records, *action.shape), action.dtype)
        self._episodes: deque[tuple[int, int, float]] = deque()  # first record, steps, return; the oldest first
        self._next = 0  # record at which the next episode starts, if it fits before the end

    def __len__(self) -> int:
        return len(self._episodes)

    @property
    def nbytes(self) -> int:
        return self.observation.nbytes + self.action.nbytes

    def add(self, observation: Array, action: Array, total: float) -> None:
        """Add an episode: observations [L + 1, ...], actions [L, ...], and its return."""
        steps = len(action)
        if steps + 1 > self.records:
            raise MillpondError(
                f"an episode of {steps:,} steps does not fit into reward_model.records={self.records:,}; set "
                f"reward_model.records={10 * (steps + 1):,}"
            )
        if self._next + steps + 1 > self.records:
            while self._episodes and self._episodes[0][0] >= self._next:
                self._episodes.popleft()
            self._next = 0
        first, last = self._next, self._next + steps + 1
        while self._episodes and first <= self._episodes[0][0] < last:
            self._episodes.popleft()
        self.observation[first:last], self.action[first : last - 1] = observation, action
        self._episodes.append((first, steps, total))
        self._next = last

    def table(self) -> tuple[Integers, Integers, npt.NDArray[np.float64]]:
        """Return of every episode the first record, the number of steps, and its return."""
        first, steps, total = zip(*self._episodes, strict=True) if self._episodes else ((), (), ())
        return np.array(first, np.int64), np.array(steps, np.int64), np.array(total, np.float64)

    def gather(self, first: Integers, steps: Integers) -> tuple[Array, Array, Array]:
        """Observations, actions and next observations [B x K, ...] of steps [B, K] of episodes that start at [B]."""
        at = (first[:, None] + steps).reshape(-1)
        return self.observation[at], self.action[at], self.observation[at + 1]

    def state_dict(self) -> dict[str, Any]:
        first, steps, total = self.table()
        used = int((first + steps).max()) + 1 if len(first) else 0
        return {
            "next": self._next,
            "first": torch.from_numpy(first),
            "steps": torch.from_numpy(steps),
            "total": torch.from_numpy(total),
            "observation": torch.from_numpy(self.observation[:used].copy()),
            "action": torch.from_numpy(self.action[:used].copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = int(state["next"])
        columns = [state[name].tolist() for name in ("first", "steps", "total")]
        self._episodes = deque(zip(*columns, strict=True))
        used = len(state["observation"])
        self.observation[:used], self.action[:used] = state["observation"].numpy(), state["action"].numpy()

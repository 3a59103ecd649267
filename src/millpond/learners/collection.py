"""The steps that PQN agents collect, in memory that is preallocated.

A agents   T steps   E envs per agent   S state vectors   H hidden
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from millpond.devices import saved
from millpond.devices.staging import BlockField, Uploads
from millpond.envs.env_batch import EpisodeStats
from millpond.envs.spec import EnvSpec
from millpond.replay.schema import ACTION_MASK, STATE, Schema
from millpond.replay.steps import Steps, validate


class Final(NamedTuple):
    """The final observation of a step, the mask of the actions that were allowed there, and the agent's state [S, H].

    Mask and state are empty if there are none.
    """

    t: int
    env: int
    observation: np.ndarray[Any, Any]
    mask: np.ndarray[Any, np.dtype[np.bool_]]
    state: Tensor


@dataclass
class Collection:
    """The steps of one agent; views that are valid until the next collection begins.

    `value` and `final_value` are the largest Q of each observation and, where truncated, of the final one.
    `lost`: the env crashed and was restarted, so that this step was never taken. `state` is that of the agent's memory before
    each step, zero where an episode begins. Masks have no columns if the environment has none, and neither has the state of
    an agent without memory.
    """

    observation: Tensor  # [T, E, *observation]
    action: Tensor  # [T, E] int32
    reward: Tensor  # [T, E]
    terminated: Tensor  # [T, E]
    truncated: Tensor  # [T, E]
    lost: Tensor  # [T, E]
    value: Tensor  # [T, E]
    final_value: Tensor  # [T, E]
    action_mask: Tensor  # [T, E, actions]
    state: Tensor  # [T, E, S, H]
    next_value: Tensor  # [E]
    epsilon: float
    final_observation: np.ndarray[Any, Any]  # [K, *observation], of the steps in `has_final`, ordered by step, then env
    final_action_mask: np.ndarray[Any, np.dtype[np.bool_]]  # [K, actions]
    has_final: np.ndarray[Any, np.dtype[np.bool_]]  # [T, E]
    host: dict[str, np.ndarray[Any, Any]]  # what the envs and the agent's actions are made of, in the memory of the CPU
    episodes: list[EpisodeStats] = field(default_factory=list)

    @property
    def env_steps(self) -> int:
        return self.reward.numel()

    def as_steps(self, schema: Schema, *, agent: int = 0, round_number: int = 0, policy_version: int = 0) -> Steps:
        """Return a copy as validated steps, for a pond or a lake of this schema.

        If the schema stores single frames, the newest one of each stack [..., stack * planes, height, width] is taken.
        A lost step counts as truncated, so that nothing leads from it into the next episode.
        """
        host, final_observation = self.host, self.final_observation
        observation, frame = host["observation"], schema.observation[0].shape
        if frame != observation.shape[2:]:
            observation, final_observation = (each[..., -frame[0] :, :, :] for each in (observation, final_observation))
        shown: Any = observation.copy()
        final: Any = final_observation
        if self.action_mask.shape[-1]:
            shown = {"observation": shown, ACTION_MASK: host["action_mask"].copy()}
            final = {"observation": final, ACTION_MASK: self.final_action_mask}
        steps = Steps(
            observation=shown,
            action=host["action"].copy(),
            reward=host["reward"].copy(),
            terminated=host["terminated"].copy(),
            truncated=host["truncated"] | host["lost"],
            final_observation=final,
            has_final=self.has_final,
            extra={each.name: self.state.cpu().numpy().copy() for each in schema.extra if each.name == STATE},
            agent=agent,
            round=round_number,
            policy_version=policy_version,
            epsilon=self.epsilon,
        )
        return validate(steps, schema, observation.shape[1])


class CollectionStorage:
    """The arrays of all agents' collections.

    `host` has those that come from the envs, and the actions, as arrays. On the CPU they share the tensors' memory. For a
    device they are separate: observations are sent to it as they are collected, rewards and flags (`OUTCOMES`) once, by
    `send_outcomes`, and nothing is read back.
    """

    NAMES = (
        "observation",
        "action",
        "reward",
        "terminated",
        "truncated",
        "lost",
        "value",
        "final_value",
        "action_mask",
        "state",
    )
    OUTCOMES = ("reward", "terminated", "truncated", "lost")

    def __init__(
        self,
        spec: EnvSpec,
        agents: int,
        steps: int,
        envs: int,
        device: torch.device,
        state_shape: Sequence[int] = (0, 0),
    ) -> None:
        self.agents, self.steps, self.envs, self.device = agents, steps, envs, device
        lead = (agents, steps, envs)

        def zeros(dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(lead, dtype=dtype, device=device)

        self.observation_dtype = np.dtype(spec.observation.dtype)
        dtype = torch.from_numpy(np.empty(0, self.observation_dtype)).dtype
        self.observation = torch.zeros((*lead, *spec.observation.shape), dtype=dtype, device=device)
        self.action, self.reward = zeros(torch.int32), zeros()
        self.terminated, self.truncated, self.lost = zeros(torch.bool), zeros(torch.bool), zeros(torch.bool)
        self.value, self.final_value = zeros(), zeros()
        self.next_value = torch.zeros((agents, envs), device=device)
        actions = spec.action.mask_size if spec.action_masks else 0
        self.action_mask = torch.zeros((*lead, actions), dtype=torch.bool, device=device)
        self.state = torch.zeros((*lead, *state_shape), device=device)
        self.host: dict[str, np.ndarray[Any, Any]] = {}
        self._uploads: Uploads | None = None
        names = [name for name in self.NAMES if name not in ("value", "final_value", "state")]
        if device.type == "cpu":
            self.host = {name: getattr(self, name).numpy() for name in names}
            return
        self._uploads = Uploads(
            {name: BlockField(lead, numpy_dtype(getattr(self, name))) for name in self.OUTCOMES}, device
        )
        for name in names:
            if name in self.OUTCOMES:
                setattr(self, name, self._uploads.tensors[name])
                self.host[name] = self._uploads.arrays[name]
            else:
                tensor: Tensor = getattr(self, name)
                self.host[name] = np.zeros(tensor.shape, numpy_dtype(tensor))

    def begin(self) -> None:
        """Let the arrays be overwritten: what learns from the last collection is queued."""
        if self._uploads is not None:
            self._uploads.release()
            self._uploads.open()

    def send_outcomes(self) -> None:
        """Send rewards and flags of a whole collection to the device."""
        if self._uploads is not None:
            self._uploads.send()

    def view(self, agent: int, epsilon: float, finals: list[Final], episodes: list[EpisodeStats]) -> Collection:
        """Return one agent's collection. `finals` are ordered by t, then env."""
        has_final = np.zeros((self.steps, self.envs), np.bool_)
        for final in finals:
            has_final[final.t, final.env] = True
        none = np.empty((0, *self.observation.shape[3:]), self.observation_dtype)
        no_mask = np.empty((0, self.action_mask.shape[-1]), np.bool_)
        return Collection(
            **{name: getattr(self, name)[agent] for name in self.NAMES},
            next_value=self.next_value[agent],
            epsilon=epsilon,
            final_observation=np.stack([final.observation for final in finals]) if finals else none,
            final_action_mask=np.stack([final.mask for final in finals]) if finals else no_mask,
            has_final=has_final,
            host={name: array[agent] for name, array in self.host.items()},
            episodes=episodes,
        )

    def of_agent(self, agent: int) -> dict[str, Tensor]:
        """Return the arrays of one agent [T, E, ...] by name."""
        return {name: getattr(self, name)[agent] for name in (*self.NAMES, "next_value")}

    def state_dict(self) -> dict[str, Tensor]:
        return {name: saved(getattr(self, name)) for name in (*self.NAMES, "next_value")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.begin()
        for name in (*self.NAMES, "next_value"):
            if name in state or name not in ("action_mask", "state"):  # states of earlier versions lack them
                getattr(self, name).copy_(state[name])
                if name in self.host and self._uploads is not None:
                    self.host[name][...] = state[name].cpu().numpy()
        self.send_outcomes()


def numpy_dtype(tensor: Tensor) -> np.dtype[Any]:
    """Return NumPy's dtype for that of a tensor on any device."""
    dtype: np.dtype[Any] = torch.empty(0, dtype=tensor.dtype).numpy().dtype
    return dtype

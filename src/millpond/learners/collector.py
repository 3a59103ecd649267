"""Epsilon-greedy exploration, and collecting steps of PQN agents into memory that is preallocated on the device.

A agents   T steps   E envs per agent   a agents evaluated together   S state vectors   H hidden
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from millpond.envs.env_batch import EpisodeStats
from millpond.envs.spec import EnvSpec
from millpond.learners.q_network import StackedQNetworks, with_mask
from millpond.replay.schema import ACTION_MASK, STATE, Schema
from millpond.replay.steps import Steps, validate
from millpond.schedules import linear
from millpond.vector import Batch, FiniteCheck, Vector
from millpond.vector.finite import is_finite


class Final(NamedTuple):
    """The final observation of a step, the mask of the actions that were allowed there, and the agent's state [S, H].

    Mask and state are empty if there are none.
    """

    t: int
    env: int
    observation: np.ndarray[Any, Any]
    mask: np.ndarray[Any, np.dtype[np.bool_]]
    state: Tensor


class Epsilon:
    """The schedule linear(reset_to, end, over)(since_reset), over a counter that a reset sets to 0.

    The owner chooses the unit of `over` and `advance`.
    """

    def __init__(self, start: float, end: float, *, over: float) -> None:
        self.reset_to, self.end, self.over = start, end, over
        self.since_reset = 0

    @property
    def value(self) -> float:
        return linear(self.reset_to, self.end, over=self.over)(self.since_reset)

    def advance(self, count: int) -> None:
        self.since_reset += count

    def reset(self, to: float | None = None) -> None:
        """Restart the decay, from `to`, or from the value of the last start."""
        self.reset_to = self.reset_to if to is None else to
        self.since_reset = 0

    def state_dict(self) -> dict[str, Any]:
        return {"reset_to": self.reset_to, "end": self.end, "over": self.over, "since_reset": self.since_reset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reset_to, self.end, self.over = float(state["reset_to"]), float(state["end"]), float(state["over"])
        self.since_reset = int(state["since_reset"])


def epsilon_greedy(q: Tensor, epsilon: float, generator: torch.Generator, mask: Tensor | None = None) -> Tensor:
    """Return actions [N] int64: the best of Q [N, actions], or, with probability epsilon, a random one.

    `mask` [N, actions] is true for allowed actions; neither the best nor a random one is ever another.
    """
    count, actions = q.shape
    explore = torch.rand(count, generator=generator, device=q.device) < epsilon
    if mask is None:
        drawn = torch.randint(actions, (count,), generator=generator, device=q.device)
    else:
        drawn = allowed_action(torch.rand(count, generator=generator, device=q.device), mask)
    return torch.where(explore, drawn, with_mask(q, mask).argmax(-1))


def allowed_action(draw: Tensor, mask: Tensor) -> Tensor:
    """Return a uniform allowed action [...] int64, from numbers [...] in [0, 1) and masks [..., actions].

    It is the k-th allowed one with k = floor(draw * number of allowed ones). A mask that allows nothing allows all.
    """
    allowed = mask | ~mask.any(-1, keepdim=True)
    so_far = allowed.cumsum(-1)
    count = so_far[..., -1]
    place = torch.minimum((draw * count).long(), count - 1)
    return (so_far <= place.unsqueeze(-1)).sum(-1)


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
    episodes: list[EpisodeStats] = field(default_factory=list)

    @property
    def env_steps(self) -> int:
        return self.reward.numel()

    def as_steps(self, schema: Schema, *, agent: int = 0, round_number: int = 0, policy_version: int = 0) -> Steps:
        """Return a copy as validated steps, for a pond or a lake of this schema.

        If the schema stores single frames, the newest one of each stack [..., stack * planes, height, width] is taken.
        A lost step counts as truncated, so that nothing leads from it into the next episode.
        """
        observation, final_observation = self.observation.cpu().numpy(), self.final_observation
        frame = schema.observation[0].shape
        if frame != observation.shape[2:]:
            observation, final_observation = (each[..., -frame[0] :, :, :] for each in (observation, final_observation))
        shown: Any = observation.copy()
        final: Any = final_observation
        if self.action_mask.shape[-1]:
            shown = {"observation": shown, ACTION_MASK: self.action_mask.cpu().numpy().copy()}
            final = {"observation": final, ACTION_MASK: self.final_action_mask}
        steps = Steps(
            observation=shown,
            action=self.action.cpu().numpy().copy(),
            reward=self.reward.cpu().numpy().copy(),
            terminated=self.terminated.cpu().numpy().copy(),
            truncated=self.truncated.cpu().numpy() | self.lost.cpu().numpy(),
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
    """The arrays of all agents' collections."""

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

    def write(self, name: str, where: Any, values: np.ndarray[Any, Any] | Tensor) -> None:
        """Write one field at `where`: an index of agents, steps and envs."""
        target: Tensor = getattr(self, name)
        if self.device.type == "cpu":  # with a few envs numpy takes a tenth of torch's time
            target.numpy()[where] = values.numpy() if isinstance(values, Tensor) else values
        else:
            target[where] = torch.as_tensor(values).to(self.device)

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
            episodes=episodes,
        )

    def of_agent(self, agent: int) -> dict[str, Tensor]:
        """Return the arrays of one agent [T, E, ...] by name."""
        return {name: getattr(self, name)[agent] for name in (*self.NAMES, "next_value")}

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in (*self.NAMES, "next_value")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in (*self.NAMES, "next_value"):
            if name in state or name not in ("action_mask", "state"):  # states of earlier versions lack them
                getattr(self, name).copy_(state[name])


class QCollector:
    """Fills a storage from the agents' vectors. If agents act one after the other, the envs of the others, if they have
    workers, step meanwhile."""

    def __init__(
        self,
        q: StackedQNetworks,
        vectors: Sequence[Vector],
        storage: CollectionStorage,
        names: Sequence[str] | None = None,
        q_values: Callable[[slice, Tensor], Tensor] | None = None,
    ) -> None:
        self.q, self.vectors, self.storage = q, list(vectors), storage
        self._q_values = q if q_values is None else q_values
        self.agents = range(len(self.vectors))
        self.masks = storage.action_mask.shape[-1] > 0
        self.state = torch.zeros_like(storage.state[:, 0])  # [A, E, S, H] of every env, before its next step
        self._finite = [FiniteCheck(v, name) for v, name in zip(vectors, names or [""] * len(vectors), strict=True)]

    def collect(self, epsilons: Sequence[Epsilon], generators: Sequence[torch.Generator]) -> list[Collection]:
        """Return one collection of each agent.

        Raises `NonFiniteEnvError` if an env returned a number that is NaN or infinite.
        """
        for check in self._finite:
            check.begin()
        explore, random_action = self._draw_exploration(epsilons, generators)
        finals: list[list[Final]] = [[] for _ in self.agents]
        episodes: list[list[EpisodeStats]] = [[] for _ in self.agents]
        try:
            self._fill(explore, random_action, finals, episodes)
        except Exception:
            self._raise_bad_numbers(episodes)  # an error that follows from one hides it
            raise
        if any(check.found for check in self._finite) or not self._storage_is_finite():
            self._raise_bad_numbers(episodes)
        return [
            self.storage.view(agent, epsilon.value, finals[agent], episodes[agent])
            for agent, epsilon in enumerate(epsilons)
        ]

    def _fill(
        self,
        explore: np.ndarray[Any, Any],
        random_action: np.ndarray[Any, Any],
        finals: list[list[Final]],
        episodes: list[list[EpisodeStats]],
    ) -> None:
        with torch.inference_mode():
            for t in range(self.storage.steps + 1):
                for together in self.q.slices:
                    for _ in range(len(self.vectors[0])):
                        batches = [vector.recv() for vector in self.vectors[together]]
                        for agent, batch in zip(self.agents[together], batches, strict=True):
                            if t > 0:
                                finals[agent] += self._store_outcome(agent, t - 1, batch)
                                episodes[agent] += batch.episodes
                        self._act(together, t, batches, explore, random_action)
            for agent, vector in enumerate(self.vectors):
                vector.end_round()
                self._value_finals(agent, finals[agent])

    def _storage_is_finite(self) -> bool:
        """Return True if all observations and rewards of the collections are finite; one pass over each."""
        reward, observation, check = self.storage.reward, self.storage.observation, self._finite[0]
        if self.storage.device.type == "cpu":
            finite = not check.sees_observations or check.finite_observations(observation.numpy())
            return is_finite(reward.numpy()) and finite
        if observation.is_floating_point():
            return bool(torch.isfinite(reward).all() & torch.isfinite(observation).all())
        finite = not check.sees_observations or check.finite_observations(observation.cpu().numpy())
        return bool(torch.isfinite(reward).all()) and finite

    def _raise_bad_numbers(self, episodes: list[list[EpisodeStats]]) -> None:
        """Look at every number of the collections, and raise for the first agent with one that is not finite."""
        envs = np.arange(self.storage.envs)
        for agent, check in enumerate(self._finite):
            check.steps("reward", self.storage.reward[agent].cpu().numpy().T[:, :, None], envs)
            check.steps("observation", self.storage.observation[agent].cpu().numpy().swapaxes(0, 1)[:, :, None], envs)
            for name in ("action", "terminated", "truncated"):
                check.keep(name, getattr(self.storage, name)[agent].cpu().numpy().T[:, :, None], envs)
            check.raise_found(episodes[agent])

    def _draw_exploration(
        self, epsilons: Sequence[Epsilon], generators: Sequence[torch.Generator]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Draw where each agent explores, and with which action: [A, T, E] each; with masks a number for `allowed_action`."""
        storage, actions = self.storage, self.q.networks[0].actions
        shape, explore, action = (storage.steps, storage.envs), [], []
        for generator, epsilon in zip(generators, epsilons, strict=True):
            explore.append(torch.rand(shape, generator=generator, device=storage.device) < epsilon.value)
            if self.masks:
                action.append(torch.rand(shape, generator=generator, device=storage.device))
            else:
                action.append(torch.randint(actions, shape, generator=generator, device=storage.device))
        return torch.stack(explore).cpu().numpy(), torch.stack(action).cpu().numpy()

    def _act(
        self,
        together: slice,
        t: int,
        batches: list[Batch],
        explore: np.ndarray[Any, Any],
        random_action: np.ndarray[Any, Any],
    ) -> None:
        """Choose the actions of some agents and send them; after the last step, only compute values."""
        storage, envs = self.storage, slice(batches[0].first, batches[0].last)
        observation = torch.from_numpy(np.stack([batch.observation[:, 0] for batch in batches])).to(storage.device)
        before, mask = self.state[together, envs], None
        if before.shape[2]:  # with memory, agents act one after the other
            q, after = self.q.networks[together.start].step(observation[0], before[0])
            q = q.unsqueeze(0)
        else:
            q, after = self._q_values(together, observation), before
        if self.masks:
            mask = torch.from_numpy(np.stack([batch.action_mask[:, 0] for batch in batches])).to(storage.device)
        value, best = best_actions(with_mask(q, mask))
        if t == storage.steps:
            storage.write("next_value", (together, envs), value)
            for check, batch in zip(self._finite[together], batches, strict=True):
                check.current(batch)
            return
        where = together, t, envs
        random = random_action[where]
        if mask is not None:
            random = allowed_action(torch.from_numpy(random).to(storage.device), mask).cpu().numpy()
            storage.write("action_mask", where, mask)
        action = np.where(explore[where], random, best).astype(np.int32)
        storage.write("observation", where, observation)
        storage.write("value", where, value)
        storage.write("action", where, action)
        if before.shape[2]:
            storage.state[where] = before
            self.state[together, envs] = after
        for batch, vector, actions in zip(batches, self.vectors[together], action, strict=True):
            batch.action[:, 0] = actions
            vector.send()

    def _store_outcome(self, agent: int, t: int, batch: Batch) -> list[Final]:
        """Store rewards and flags of step t; return the final observations of truncated and lost steps.

        The final observation of a lost step is its own observation, the last one that is known.
        """
        envs, storage = slice(batch.first, batch.last), self.storage
        truncated = batch.truncated[:, 0] & ~batch.terminated[:, 0]
        columns = {
            "reward": batch.reward[:, 0],
            "terminated": batch.terminated[:, 0],
            "truncated": truncated,
            "lost": batch.restarted,
        }
        for name, values in columns.items():
            storage.write(name, (agent, t, envs), values)
        ended = _where(truncated)
        state = self.state[agent, envs]
        finals = [
            Final(
                t,
                batch.first + env,
                batch.final_observation[env, 0].copy(),
                batch.final_action_mask[env, 0].copy(),
                state[env].clone(),
            )
            for env in ended
        ]
        if ended:
            self._finite[agent].final(
                batch.final_observation[ended, 0], batch.first + np.array(ended), np.zeros(len(ended), np.int64)
            )
        for env in _where(batch.restarted):
            seen, mask = (
                array[agent, t, batch.first + env].cpu().numpy().copy()
                for array in (storage.observation, storage.action_mask)
            )
            finals.append(Final(t, batch.first + env, seen, mask, state[env].clone()))
        if state.shape[1]:
            begins = batch.terminated[:, 0] | batch.truncated[:, 0] | batch.restarted
            state[torch.from_numpy(begins).to(storage.device)] = 0
        return finals

    def _value_finals(self, agent: int, finals: list[Final]) -> None:
        """Compute the values that truncated steps bootstrap from."""
        finals.sort(key=lambda final: final[:2])
        if finals:
            steps, envs, seen, masks, states = zip(*finals, strict=True)
            observation = torch.from_numpy(np.stack(seen)).to(self.storage.device)
            q, _ = self.q.networks[agent].step(observation, torch.stack(states))
            mask = torch.from_numpy(np.stack(masks)).to(self.storage.device) if self.masks else None
            self.storage.final_value[agent, list(steps), list(envs)] = with_mask(q, mask).amax(-1)


def best_actions(q: Tensor) -> tuple[np.ndarray[Any, Any] | Tensor, np.ndarray[Any, Any]]:
    """Return the largest Q [...] of Q [..., actions], where it is, and its action, an array; the first of equal ones."""
    if q.device.type == "cpu":  # with a few envs numpy takes a tenth of torch's time
        values = q.numpy()
        return values.max(-1), values.argmax(-1)
    value, best = q.max(-1)
    return value, best.cpu().numpy()


def _where(flags: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[int]:
    indices: list[int] = np.flatnonzero(flags).tolist()
    return indices

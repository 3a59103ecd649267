"""Epsilon-greedy exploration, and collecting steps of PQN agents.

A agents   T steps   E envs per agent   a agents evaluated together   S state vectors   H hidden
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.devices.sending import Sender
from millpond.devices.staging import BlockField, Downloads, Uploads
from millpond.envs.env_batch import EpisodeStats
from millpond.learners.collection import Collection, CollectionStorage, Final
from millpond.learners.q_network import QNetwork, StackedQNetworks, with_mask
from millpond.schedules import linear
from millpond.vector import Batch, FiniteCheck, Vector
from millpond.vector.finite import is_finite


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
        self.on_cpu = storage.device.type == "cpu"
        self._transfers: dict[tuple[int, int], tuple[Uploads, Downloads]] = {}  # by first agent and first env
        self._send = Sender(storage.device)
        self._finite = [FiniteCheck(v, name) for v, name in zip(vectors, names or [""] * len(vectors), strict=True)]

    def collect(self, epsilons: Sequence[Epsilon], generators: Sequence[torch.Generator]) -> list[Collection]:
        """Return one collection of each agent.

        Raises `NonFiniteEnvError` if an env returned a number that is NaN or infinite.
        """
        for check in self._finite:
            check.begin()
        self.storage.begin()
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
        self.storage.send_outcomes()
        return [
            self.storage.view(agent, epsilon.value, finals[agent], episodes[agent])
            for agent, epsilon in enumerate(epsilons)
        ]

    def _fill(
        self,
        explore: Any,
        random_action: Any,
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
        host, check = self.storage.host, self._finite[0]
        return is_finite(host["reward"]) and (
            not check.sees_observations or check.finite_observations(host["observation"])
        )

    def _raise_bad_numbers(self, episodes: list[list[EpisodeStats]]) -> None:
        """Look at every number of the collections, and raise for the first agent with one that is not finite."""
        envs, host = np.arange(self.storage.envs), self.storage.host
        for agent, check in enumerate(self._finite):
            check.steps("reward", host["reward"][agent].T[:, :, None], envs)
            check.steps("observation", host["observation"][agent].swapaxes(0, 1)[:, :, None], envs)
            for name in ("action", "terminated", "truncated"):
                check.keep(name, host[name][agent].T[:, :, None], envs)
            check.raise_found(episodes[agent])

    def _draw_exploration(self, epsilons: Sequence[Epsilon], generators: Sequence[torch.Generator]) -> tuple[Any, Any]:
        """Draw where each agent explores, and with which action: [A, T, E] each; with masks a number for `allowed_action`.

        They are arrays on the CPU, and stay on a device.
        """
        storage, actions = self.storage, self.q.networks[0].actions
        shape, explore, action = (storage.steps, storage.envs), [], []
        for generator, epsilon in zip(generators, epsilons, strict=True):
            explore.append(torch.rand(shape, generator=generator, device=storage.device) < epsilon.value)
            if self.masks:
                action.append(torch.rand(shape, generator=generator, device=storage.device))
            else:
                action.append(torch.randint(actions, shape, generator=generator, device=storage.device))
        drawn = torch.stack(explore), torch.stack(action)
        return (drawn[0].numpy(), drawn[1].numpy()) if self.on_cpu else drawn

    def _act(
        self,
        together: slice,
        t: int,
        batches: list[Batch],
        explore: Any,
        random_action: Any,
    ) -> None:
        """Choose the actions of some agents and send them; after the last step, only compute values."""
        envs = slice(batches[0].first, batches[0].last)
        if t == self.storage.steps:
            for check, batch in zip(self._finite[together], batches, strict=True):
                check.current(batch)
        act = self._act_on_cpu if self.on_cpu else self._act_on_device
        action = act((together, t, envs), batches, explore, random_action)
        if action is not None:
            self.storage.host["action"][together, t, envs] = action
            for batch, vector, actions in zip(batches, self.vectors[together], action, strict=True):
                batch.action[:, 0] = actions
                vector.send()

    def _act_on_cpu(
        self, where: tuple[slice, int, slice], batches: list[Batch], explore: Any, random_action: Any
    ) -> np.ndarray[Any, Any] | None:
        """Return actions [a, E] of a step, and store what they are chosen from; None after the last step."""
        storage, (together, t, envs) = self.storage, where
        observation = torch.from_numpy(np.stack([batch.observation[:, 0] for batch in batches]))
        q, mask = self._step(where, observation), None
        if self.masks:
            mask = torch.from_numpy(np.stack([batch.action_mask[:, 0] for batch in batches]))
        # With a few envs numpy takes a tenth of torch's time.
        values = with_mask(q, mask).numpy()
        value, best = values.max(-1), values.argmax(-1)
        if t == storage.steps:
            storage.next_value.numpy()[together, envs] = value
            return None
        random = random_action[where]
        if mask is not None:
            random = allowed_action(torch.from_numpy(random), mask).numpy()
            storage.host["action_mask"][where] = mask.numpy()
        storage.host["observation"][where] = observation.numpy()
        storage.value.numpy()[where] = value
        action: np.ndarray[Any, Any] = np.where(explore[where], random, best).astype(np.int32)
        return action

    def _act_on_device(
        self, where: tuple[slice, int, slice], batches: list[Batch], explore: Any, random_action: Any
    ) -> np.ndarray[Any, Any] | None:
        """Do the same on a device: one copy there, and the actions back."""
        storage, (together, t, envs) = self.storage, where
        uploads, downloads = self._transfers_of(together, envs, batches)
        uploads.open()
        for agent, batch in enumerate(batches):
            uploads.arrays["observation"][agent] = batch.observation[:, 0]
            if self.masks:
                uploads.arrays["action_mask"][agent] = batch.action_mask[:, 0]
        uploads.send()
        observation, mask = uploads.tensors["observation"], uploads.tensors.get("action_mask")
        value, best = with_mask(self._step(where, observation), mask).max(-1)
        if t == storage.steps:
            storage.next_value[together, envs].copy_(value)
            uploads.release()
            return None
        random = random_action[where] if mask is None else allowed_action(random_action[where], mask)
        action = storage.action[where].copy_(torch.where(explore[where], random, best))
        storage.value[where].copy_(value)
        for name, sent in uploads.tensors.items():
            getattr(storage, name)[where].copy_(sent)
            storage.host[name][where] = uploads.arrays[name]
        uploads.release()
        return downloads.fetch({"action": action})["action"]

    def _step(self, where: tuple[slice, int, slice], observation: Tensor) -> Tensor:
        """Return Q [a, E, actions]; agents with memory, which act one after the other, store and advance their states.

        After the last step states stay: the next collection begins with the same observations.
        """
        together, t, envs = where
        if not self.state.shape[2]:
            return self._q_values(together, observation)
        before = self.state[together, envs]
        network: QNetwork = self.q.networks[together.start]
        q, after = network.step(observation[0], before[0])
        if t < self.storage.steps:
            self.storage.state[where] = before
            before[0] = after
        return q.unsqueeze(0)

    def _transfers_of(self, together: slice, envs: slice, batches: list[Batch]) -> tuple[Uploads, Downloads]:
        """Return the pinned memory of some agents' observations and actions in one group of envs."""
        key = (together.start, envs.start)
        if key not in self._transfers:
            lead, device = (len(batches), envs.stop - envs.start), self.storage.device
            names = ("observation", "action_mask") if self.masks else ("observation",)
            hosts = {name: self.storage.host[name] for name in names}
            fields = {name: BlockField((*lead, *array.shape[3:]), array.dtype) for name, array in hosts.items()}
            self._transfers[key] = Uploads(fields, device), Downloads({"action": BlockField(lead, np.int32)}, device)
        return self._transfers[key]

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
            storage.host[name][agent, t, envs] = values
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
                storage.host[name][agent, t, batch.first + env].copy() for name in ("observation", "action_mask")
            )
            finals.append(Final(t, batch.first + env, seen, mask, state[env].clone()))
        if state.shape[1]:
            begins = batch.terminated[:, 0] | batch.truncated[:, 0] | batch.restarted
            state.masked_fill_(self._send({"begins": begins})["begins"].view(-1, 1, 1), 0)
        return finals

    def _value_finals(self, agent: int, finals: list[Final]) -> None:
        """Compute the values that truncated steps bootstrap from."""
        finals.sort(key=lambda final: final[:2])
        if not finals:
            return
        steps, envs, seen, masks, states = zip(*finals, strict=True)
        arrays = {"observation": np.stack(seen), "steps": np.array(steps), "envs": np.array(envs)}
        sent = self._send(arrays | ({"mask": np.stack(masks)} if self.masks else {}))
        q, _ = self.q.networks[agent].step(sent["observation"], torch.stack(states))
        self.storage.final_value[agent, sent["steps"], sent["envs"]] = with_mask(q, sent.get("mask")).amax(-1)


def _where(flags: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[int]:
    indices: list[int] = np.flatnonzero(flags).tolist()
    return indices

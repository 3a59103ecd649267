"""Playing: every env of every agent takes some steps, epsilon-greedy, and what happened is stored.

A agents   T steps   E envs of one agent
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from millpond.envs.env_batch import EpisodeStats
from millpond.learners.collection import Collection, Final, Storage
from millpond.learners.exploration import Epsilon
from millpond.learners.side_by_side import SideBySide
from millpond.vector import Batch, Vector


class Collector:
    """Fills a storage from the agents' vectors. Where agents are asked one after the other, the envs of the others step
    meanwhile, if they have workers."""

    def __init__(self, q: SideBySide, vectors: Sequence[Vector], storage: Storage) -> None:
        self.q, self.vectors, self.storage = q, list(vectors), storage
        self.agents = range(len(self.vectors))

    def collect(self, epsilons: Sequence[Epsilon], generators: Sequence[torch.Generator]) -> list[Collection]:
        """One collection for each agent."""
        explore, drawn = self._explorations(epsilons, generators)
        finals: list[list[Final]] = [[] for _ in self.agents]
        episodes: list[list[EpisodeStats]] = [[] for _ in self.agents]
        with torch.inference_mode():
            for t in range(self.storage.steps + 1):
                for unit in self.q.units:
                    for _ in range(len(self.vectors[0])):
                        batches = [vector.recv() for vector in self.vectors[unit]]
                        for agent, batch in zip(self.agents[unit], batches, strict=True):
                            if t > 0:
                                finals[agent] += self._outcome(agent, t - 1, batch)
                                episodes[agent] += batch.episodes
                        self._act(unit, t, batches, explore, drawn)
            for agent, vector in enumerate(self.vectors):
                vector.rest()
                self._value_finals(agent, finals[agent])
        return [
            self.storage.view(agent, epsilon.value, finals[agent], episodes[agent])
            for agent, epsilon in enumerate(epsilons)
        ]

    def _explorations(
        self, epsilons: Sequence[Epsilon], generators: Sequence[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """Where each agent will explore, and with which action: [A, T, E] each, drawn at once."""
        storage, actions = self.storage, self.q.networks[0].actions
        shape, explore, drawn = (storage.steps, storage.envs), [], []
        for generator, epsilon in zip(generators, epsilons, strict=True):
            explore.append(torch.rand(shape, generator=generator, device=storage.device) < epsilon.value)
            drawn.append(torch.randint(actions, shape, generator=generator, device=storage.device))
        return torch.stack(explore), torch.stack(drawn)

    def _act(self, unit: slice, t: int, batches: list[Batch], explore: Tensor, drawn: Tensor) -> None:
        """Let the agents of a unit act at what their envs show; behind the last step, only value it."""
        storage, envs = self.storage, slice(batches[0].first, batches[0].last)
        seen = torch.from_numpy(np.stack([batch.observation[:, 0] for batch in batches])).to(storage.device)
        value, best = self.q(unit, seen).max(-1)
        if t == storage.steps:
            storage.next_value[unit, envs] = value
            return
        action = torch.where(explore[unit, t, envs], drawn[unit, t, envs], best).int()
        storage.observation[unit, t, envs] = seen
        storage.value[unit, t, envs] = value
        storage.action[unit, t, envs] = action
        for batch, vector, chosen in zip(batches, self.vectors[unit], action.cpu().numpy(), strict=True):
            batch.action[:, 0] = chosen
            vector.send()

    def _outcome(self, agent: int, t: int, batch: Batch) -> list[Final]:
        """Store what came of the actions of step t; returns the final observations of what was cut off there.

        A lost step was cut off where it stood: its own observation is the last that is known.
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
            getattr(storage, name)[agent, t, envs] = torch.from_numpy(values).to(storage.device)
        finals = [(t, batch.first + env, batch.final_observation[env, 0].copy()) for env in _where(truncated)]
        for env in _where(batch.restarted):
            seen = storage.observation[agent, t, batch.first + env].cpu().numpy().copy()
            finals.append((t, batch.first + env, seen))
        return finals

    def _value_finals(self, agent: int, finals: list[Final]) -> None:
        """A truncated step bootstraps from the true final observation."""
        finals.sort(key=lambda final: final[:2])
        if finals:
            seen = torch.from_numpy(np.stack([observation for _, _, observation in finals])).to(self.storage.device)
            steps, envs, _ = zip(*finals, strict=True)
            self.storage.final_value[agent, list(steps), list(envs)] = self.q.networks[agent](seen).amax(-1)


def _where(flags: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[int]:
    found: list[int] = np.flatnonzero(flags).tolist()
    return found

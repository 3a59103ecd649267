"""PQN (Gallici et al., 2024): Q-learning on the newest collection, without replay and without a target network.

    collect   every env takes `num_steps` steps, epsilon-greedy, with the current parameters
    learn     lambda returns once, then shuffled minibatches for `update_epochs` epochs on 0.5 (Q(s, a) - G)^2

One agent or several side by side: each has its own envs, parameters, optimiser, exploration and generator, and learns
what it would learn alone.

With memory, a minibatch is whole collections of some envs, unrolled from the states that they began with.

A agents   T steps   E envs of one agent   B transitions of a minibatch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from millpond.config.mixture import PQNConfig
from millpond.devices import make_generator, saved
from millpond.kernels.lambda_return import lambda_return_numba, lambda_return_torch
from millpond.learners.collection import Collection, CollectionStorage
from millpond.learners.collector import Epsilon, QCollector
from millpond.learners.flat_parameters import FlatParameters, RowOptimizer, clip_rows
from millpond.learners.q_network import LearnerError, QNetwork, StackedQNetworks, check_spec
from millpond.schedules import named
from millpond.vector import Vector

METRICS = ("q_loss", "q_value", "grad_norm")


class PQNUpdates(Protocol):
    """Compiled versions of what a group computes; see `millpond.fast`."""

    def learn(self, goals: Tensor, places: Tensor) -> Tensor:
        """Update agent i on the places [A, U, B] of its collection, with returns goals[i] [T, E]; mean metrics [A, 3]."""

    def values(self, agents: slice, observation: Tensor) -> Tensor:
        """Return Q [a, N, actions] of some agents for observation [a, N, *obs]."""


class AgentGroup:
    """PQN agents. `vectors[i]`, `networks[i]` and `seeds[i]` belong to agent i.

    `total_collections`  of one agent in the whole run: the length of the learning rate's schedule and, times
                         `epsilon_share`, of the exploration's
    `batched`            all agents in one operation per layer; None: if that is faster
    `names`              of the agents, for errors of their envs
    `compiled`           returns a faster version of the updates, or None if there is none for these networks
    """

    def __init__(
        self,
        networks: Sequence[QNetwork],
        vectors: Sequence[Vector],
        config: PQNConfig,
        *,
        seeds: Sequence[int],
        total_collections: int,
        device: torch.device | str = "cpu",
        batched: bool | None = None,
        names: Sequence[str] | None = None,
        compiled: Callable[[AgentGroup], PQNUpdates | None] | None = None,
    ) -> None:
        if not len(networks) == len(vectors) == len(seeds) >= 1:
            raise LearnerError(
                f"{len(networks)} networks, {len(vectors)} vectors and {len(seeds)} seeds; every agent has one of each"
            )
        for vector in vectors:
            check_spec(vector.spec)
            if vector.num_envs != config.num_envs:
                raise LearnerError(
                    f"pqn.num_envs={config.num_envs}, but the vector of an agent has {vector.num_envs} envs"
                )
            if vector.spec != vectors[0].spec or len(vector) != len(vectors[0]):
                raise LearnerError(
                    "agents trained side by side need vectors of the same environment with the same number of groups"
                )
        self.config, self.vectors, self.networks = config, list(vectors), list(networks)
        self.device = torch.device(device)
        self.spec = vectors[0].spec
        self.parameters = FlatParameters([network.to(self.device) for network in networks])
        self.q = StackedQNetworks(self.networks, self.parameters, batched)
        self.optimizer = RowOptimizer(self.parameters.data, self.parameters.grad, rectified=True)
        self.env_steps_per_collection = config.num_envs * config.num_steps
        self.updates_per_collection = config.update_epochs * config.num_minibatches
        self.total_collections = total_collections
        over = config.epsilon_share * total_collections * self.env_steps_per_collection
        self.epsilons = [Epsilon(config.epsilon_start, config.epsilon_end, over=over) for _ in networks]
        self.generators = [make_generator(self.device, int(seed)) for seed in seeds]
        self.updates = [0 for _ in networks]  # of each agent in the whole run
        self.recurrent = networks[0].states > 0
        if self.recurrent and config.num_envs % config.num_minibatches:
            raise LearnerError(
                f"pqn.num_minibatches={config.num_minibatches} does not divide pqn.num_envs={config.num_envs}: with memory, "
                "minibatches are whole envs"
            )
        state_shape = networks[0].initial_state(1).shape[1:]
        self.storage = CollectionStorage(
            self.spec, len(networks), config.num_steps, config.num_envs, self.device, state_shape
        )
        self._compiled = None if compiled is None else compiled(self)
        q_values = self.q if self._compiled is None else self._compiled.values
        self.collector = QCollector(self.q, self.vectors, self.storage, names, q_values)
        self._pending: list[Collection] | None = None  # collected, and not learned from yet

    @property
    def agents(self) -> int:
        return len(self.networks)

    # -- collect and learn

    def collect(self) -> list[Collection]:
        """Take `num_steps` steps in every env of every agent, with the current parameters."""
        self._pending = self.collector.collect(self.epsilons, self.generators)
        for epsilon in self.epsilons:
            epsilon.advance(self.env_steps_per_collection)
        return self._pending

    def learn(self) -> list[dict[str, Tensor]]:
        """Train every agent on its newest collection; return metrics of each, scalars on the device."""
        if self._pending is None:
            raise LearnerError("nothing was collected: call collect() once before each learn()")
        targets = self._targets(self._pending)
        self._pending = None
        if self._compiled is not None:
            places = torch.stack([torch.stack(self._shuffled(), 1) for _ in range(self.config.update_epochs)], 1)
            means = self._compiled.learn(targets, places.flatten(1, 2))
            return [dict(zip(METRICS, values, strict=True)) for values in means]
        sums: dict[str, Tensor] = {}
        for _ in range(self.config.update_epochs):
            for minibatch in self._shuffled():
                for name, values in self._train(minibatch, targets).items():
                    sums[name] = sums[name] + values if name in sums else values
        count = self.updates_per_collection
        return [{name: total[agent] / count for name, total in sums.items()} for agent in range(self.agents)]

    def _targets(self, collections: list[Collection]) -> Tensor:
        """Return the lambda returns [A, T, E] of all agents."""
        names = ("reward", "value", "next_value", "terminated", "truncated", "final_value", "lost")
        gamma, lam = self.config.gamma, self.config.q_lambda
        if self.device.type == "cpu":
            arrays = [{name: getattr(collection, name).numpy() for name in names} for collection in collections]
            return torch.stack([torch.from_numpy(lambda_return_numba(**own, gamma=gamma, lam=lam)) for own in arrays])
        # The envs of all agents side by side: [T, A E], so that the loop over time is the same for one agent and for many.
        stored = {name: getattr(self.storage, name) for name in names}
        joined = {name: array.transpose(0, 1).flatten(1) for name, array in stored.items() if name != "next_value"}
        returns = lambda_return_torch(**joined, next_value=stored["next_value"].flatten(), gamma=gamma, lam=lam)
        return returns.view(len(returns), self.agents, -1).transpose(0, 1)

    def _shuffled(self) -> list[Tensor]:
        """Return the minibatches of one epoch: [A, B] places in each agent's collection, every one exactly once.

        With memory: [A, b] envs.
        """
        total = self.config.num_envs if self.recurrent else self.env_steps_per_collection
        orders = [torch.randperm(total, generator=generator, device=self.device) for generator in self.generators]
        return list(torch.stack(orders).chunk(self.config.num_minibatches, dim=1))

    def _train(self, minibatch: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Update every agent once; each metric is [A]."""
        agents = torch.arange(self.agents, device=self.device).unsqueeze(1)
        storage, losses, means = self.storage, [], []
        for together in self.q.slices:
            if self.recurrent:
                q, goal, valid = self._unroll(together.start, minibatch[together.start], targets)
            else:
                where = (agents[together], minibatch[together])
                q = self.q(together, storage.observation.flatten(1, 2)[where])  # [a, B, actions]
                action = storage.action.flatten(1)[where].long().unsqueeze(-1)
                q = q.gather(2, action).squeeze(2)
                goal, valid = targets.flatten(1)[where], ~storage.lost.flatten(1)[where]
            error = (q - goal).square() * valid
            loss = 0.5 * error.sum(1) / valid.sum(1).clamp(min=1)
            self.q.backward(together, loss)
            losses.append(loss.detach())
            means.append(q.detach().mean(1))
        norms = clip_rows(self.parameters.grad, self.config.max_grad_norm)
        self.optimizer.step([self.learning_rate(agent) for agent in range(self.agents)])
        self.updates = [count + 1 for count in self.updates]
        return dict(zip(METRICS, (torch.cat(losses), torch.cat(means), norms), strict=True))

    def _unroll(self, agent: int, envs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Q of the actions in the collections of some envs, their returns, and which steps are valid: [1, T * b]."""
        mine = {name: array[:, envs] for name, array in self.storage.of_agent(agent).items() if name != "next_value"}
        reset = torch.zeros_like(mine["terminated"])
        reset[1:] = (mine["terminated"] | mine["truncated"] | mine["lost"])[:-1]
        q = self.networks[agent].unroll(mine["observation"], mine["state"][0], reset)
        q = q.gather(2, mine["action"].long().unsqueeze(-1)).squeeze(2)
        return q.reshape(1, -1), targets[agent][:, envs].reshape(1, -1), ~mine["lost"].reshape(1, -1)

    def learning_rate(self, agent: int, updates: int | None = None) -> float:
        """Return the learning rate of an agent after so many updates; None: now."""
        progress = (self.updates[agent] if updates is None else updates) / max(
            1, self.total_collections * self.updates_per_collection
        )
        return named(self.config.lr_schedule, self.config.learning_rate, over=1.0)(progress)

    # -- resets

    def clone_from(
        self,
        network: QNetwork,
        *,
        epsilon_reset_to: Sequence[float] | float | None = None,
        keep_optimizer: bool = False,
    ) -> None:
        """Copy the network's parameters into every agent, bit for bit, and reset its optimiser and exploration.

        What an agent with memory remembers of its current episodes is kept.

        `epsilon_reset_to`: one value for all, or one for each. The schedules of learning rates continue. `keep_optimizer`:
        each agent's own optimiser state is kept.
        """
        ladder = epsilon_reset_to
        if ladder is None or isinstance(ladder, int | float):
            ladder = [ladder] * self.agents  # type: ignore[list-item]
        if len(ladder) != self.agents:
            raise LearnerError(f"{len(ladder)} epsilons for {self.agents} agents; pass one for each")
        state = network.state_dict()
        for agent, own in enumerate(self.networks):
            own.load_state_dict(state)
            if not keep_optimizer:
                self.optimizer.reset(agent)
            self.epsilons[agent].reset(ladder[agent])

    # -- state

    def agent_state_dict(self, agent: int) -> dict[str, Any]:
        """Return the state of one agent, without its envs, whose state the vector has."""
        return {
            "network": {name: saved(tensor) for name, tensor in self.networks[agent].state_dict().items()},
            "optimizer": self.optimizer.row_state(agent),
            "epsilon": self.epsilons[agent].state_dict(),
            "generator": self.generators[agent].get_state(),
            "updates": self.updates[agent],
            "state": self.collector.state[agent].clone(),
        }

    def load_agent_state_dict(self, agent: int, state: dict[str, Any]) -> None:
        self.networks[agent].load_state_dict(state["network"])
        self.optimizer.load_row_state(agent, state["optimizer"])
        self.epsilons[agent].load_state_dict(state["epsilon"])
        self.generators[agent].set_state(state["generator"])
        self.updates[agent] = int(state["updates"])
        if "state" in state:  # states of earlier versions have none
            self.collector.state[agent].copy_(state["state"])

    def begin_episodes(self) -> None:
        """Forget: every env begins a new episode, as those do that cannot save their state and are resumed."""
        self.collector.state.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all agents; between collect() and learn() also of the collection."""
        return {
            "agents": [self.agent_state_dict(agent) for agent in range(self.agents)],
            "pending": None if self._pending is None else self.storage.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["agents"]) != self.agents:
            raise LearnerError(f"the saved group has {len(state['agents'])} agents, this one {self.agents}")
        for agent, state_of_agent in enumerate(state["agents"]):
            self.load_agent_state_dict(agent, state_of_agent)
        self._pending = None
        if state["pending"] is not None:
            self.storage.load_state_dict(state["pending"])
            self._pending = [self.storage.view(agent, e.value, [], []) for agent, e in enumerate(self.epsilons)]

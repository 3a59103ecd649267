"""The agents of a mixture and the BigAgent: their seeds, Q-networks and envs.

The BigAgent learns with DQN from the BigPond, and in mode live acts, too. With several ranks each has a copy of both: all
draw the same batches, and each learns from its part of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond import fast
from millpond.config import MixtureRecipe
from millpond.devices import saved
from millpond.distributed import ALONE, Ranks
from millpond.envs.spec import EnvSpec
from millpond.formatting import plural
from millpond.learners import DQN, AgentGroup, Collection, Epsilon, QNetwork, build_q_network
from millpond.learners.augment import random_shift
from millpond.learners.dqn import GoalBatch, Replayed
from millpond.learners.q_network import LearnerError
from millpond.learners.returns import block_returns, goal_batches, prioritised_order, sequence_batches
from millpond.planner import MixturePlan
from millpond.replay import Lake
from millpond.replay.pond import PondBatch
from millpond.store import Checkpoint, CheckpointError, Run
from millpond.store.checkpoint import SKIP
from millpond.store.parts import MAX_WEIGHT
from millpond.trainers.common.backend import VectorSizes, choose_vector, keeping_random_state, time_network
from millpond.trainers.common.envs import build_vector, make_spec
from millpond.trainers.common.failures import Learning, as_numbers
from millpond.trainers.common.session import Player
from millpond.trainers.mixture.ponds import BigPond
from millpond.trainers.mixture.ranks import agent_name, agents_of_rank
from millpond.vector import BackendChoice, Vector

# Purposes of seeds: each purpose and agent has an independent generator. `ponds` has others.
NETWORK, EXPLORATION, ENVS, SAMPLER = range(4)
GLOBAL_NUMPY, SHIFTS = 5, 7
MAX_DRAWN_BYTES = 256 << 20  # of observations in the batches that the BigAgent draws together


def seed_for(seed: int, purpose: int, number: int = 0) -> int:
    """Derive the seed of a purpose and an agent from the run's seed."""
    return int(np.random.SeedSequence([seed, purpose, number]).generate_state(1)[0])


def make_network(recipe: MixtureRecipe, spec: EnvSpec, number: int = 0, quantiles: int | None = None) -> QNetwork:
    """Build the Q-network of agent `number`."""
    return build_q_network(
        spec.observation,
        spec.action,
        encoder=recipe.policy.encoder,
        hidden_size=recipe.policy.hidden_size,
        core=recipe.policy.core,
        quantiles=quantiles or 1,
        normalize_observations=recipe.policy.normalize_observations,
        generator=torch.Generator().manual_seed(seed_for(recipe.seed, NETWORK, number)),
    )


def mixture_player(recipe: MixtureRecipe, spec: EnvSpec, checkpoint: Checkpoint) -> Player:
    """Return the BigAgent of a run, or its one agent if it has no BigAgent."""
    network = make_network(recipe, spec)
    if "big" not in checkpoint.weights:
        return Player(network, weights="agent0", greedy=True)
    try:
        updates = plural(int(checkpoint.state["big"]["dqn"]["updates"]), "update")
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"{checkpoint.path} has weights of a BigAgent, but no number of its updates; {SKIP}"
        ) from None
    return Player(network, weights="big", greedy=True, description=f"the BigAgent after {updates} of its own")


def spread(updates: int, collections: int, index: int) -> int:
    """Return how many of all updates follow collection `index`, spread as evenly as possible."""
    return math.floor((index + 1) * updates / collections) - math.floor(index * updates / collections)


class BigAgent:
    """`replayed` counts the transitions of each agent (itself last) that it learned from.

    `epsilon` restarts with each mixture round, and its schedule counts updates.
    """

    def __init__(
        self,
        recipe: MixtureRecipe,
        plan: MixturePlan,
        spec: EnvSpec,
        lake: Lake,
        vector: Vector | None,
        ranks: Ranks = ALONE,
    ) -> None:
        device, self.ranks = torch.device(recipe.device), ranks
        self.dqn = DQN(
            make_network(recipe, spec, plan.agents, recipe.dqn.quantiles),
            recipe.dqn,
            device=device,
            total_updates=plan.big_updates_in_all,
            compiled=fast.dqn_updates if recipe.trainer.fast else None,
            initial=lambda reset: make_network(recipe, spec, plan.agents + reset, recipe.dqn.quantiles),
        )
        if recipe.dqn.random_shift and [part.kind for part in spec.observation.parts] != ["pixels"]:
            raise LearnerError(
                f"dqn.random_shift={recipe.dqn.random_shift} shifts images, but {recipe.env.id} has none"
            )
        self.epsilon = Epsilon(
            recipe.mixture.big_epsilon_reset_to, recipe.dqn.epsilon_end, over=recipe.dqn.epsilon_over
        )
        self.pond = BigPond(recipe, plan, lake, device)
        self.sampler = np.random.default_rng([recipe.seed, SAMPLER])
        self._seed = recipe.seed
        self._most_drawn = max(1, MAX_DRAWN_BYTES // (2 * spec.observation.nbytes * recipe.dqn.batch_size))
        self.replayed = torch.zeros(plan.agents + 1, dtype=torch.int64, device=device)  # read with the metrics
        own = recipe.dqn.batch_size // ranks.count
        self._part = slice(ranks.rank * own, (ranks.rank + 1) * own)  # of each batch
        self._newest: list[tuple[Any, Mapping[str, Any]]] = []  # batches and metrics of the last two updates
        self._actor: AgentGroup | None = None
        if vector is not None:
            self._actor = AgentGroup(
                [make_network(recipe, spec)],
                [vector],
                recipe.pqn.model_copy(update={"num_envs": vector.num_envs}),
                seeds=[seed_for(recipe.seed, EXPLORATION, plan.agents)],
                total_collections=plan.collections,
                device=device,
                names=["big"],
                compiled=fast.pqn_updates if recipe.trainer.fast else None,
            )
            self._actor.epsilons = [self.epsilon]

    def collect(self) -> dict[str, Collection]:
        """Collect in its own envs, if this rank has them, with the current parameters; return the collection by name."""
        if self._actor is None:
            return {}
        since = self.epsilon.since_reset
        self._actor.networks[0].pull(self.dqn.network)
        (collection,) = self._actor.collect()
        self.epsilon.since_reset = since  # it counts updates, not steps
        return {"big": collection}

    def update(self, count: int, record: Callable[[str, Tensor], None]) -> None:
        """Take `count` gradient steps, each on a new batch."""
        replayed = torch.zeros_like(self.replayed)
        numbers = torch.arange(len(replayed), device=self.dqn.device)
        for batches in self._batches(count):
            for batch, metrics in zip(batches, self._learn(batches), strict=False):  # fewer if one is not finite
                self._newest = [*self._newest[-1:], (batch, metrics)]
                for name, value in metrics.items():
                    record(f"big/{name}", value)
                self.epsilon.advance(1)
            agents = torch.cat([batch.column["agent"] for batch in batches])
            replayed += (agents.unsqueeze(1) == numbers).sum(0)  # bincount would be a sync
        if self.ranks.all_reduce is not None:
            self.ranks.all_reduce(replayed)
        self.replayed += replayed

    def _batches(self, count: int) -> Iterator[Sequence[Any]]:
        """Yield `count` batches, some at once; with returns over blocks, those that have the same parameters' returns."""
        config = self.dqn.config
        if config.target == "n_step":
            done = 0
            while done < count:
                updates = self.dqn.updates_with_same_targets(min(count - done, self._most_drawn))
                batches = self.pond.sample(
                    updates, self.sampler, self._part, n_step=self.dqn.n_step, gamma=self.dqn.gamma
                )
                done += updates
                yield self._shifted(batches)
            return
        stacked, learned = self.pond.stack is not None, config.block_steps - config.burn_in
        for done in range(0, count, config.updates_per_target):
            updates = min(config.updates_per_target, count - done)
            if self.dqn.network.states:
                blocks = self.pond.next_blocks(blocks=updates * config.batch_size // learned)
                returns = block_returns(self.dqn, blocks, stacked=stacked)
                yield sequence_batches(self.dqn, blocks, returns, updates, stacked=stacked)
                continue
            drawn = updates * config.batch_size
            blocks = self.pond.next_blocks(drawn * (config.priority_pool if config.priority_exponent else 1))
            returns = block_returns(self.dqn, blocks, stacked=stacked)
            if config.priority_exponent:
                places, weight = (
                    each.view(updates, -1)
                    for each in prioritised_order(self.dqn, blocks, returns, drawn, self.sampler, stacked=stacked)
                )
                yield self._shifted(goal_batches(blocks, returns, places, stacked=stacked, weight=weight))
                continue
            # The last block may have more steps than are needed; a random few are left out.
            order = self.sampler.permutation(len(returns))[:drawn].reshape(updates, -1)
            mine = self.pond.send(order[:, self._part])
            yield self._shifted(goal_batches(blocks, returns, mine, stacked=stacked))

    def _shifted(self, batches: Sequence[PondBatch | GoalBatch]) -> Sequence[PondBatch | GoalBatch]:
        """Return the batches with observations shifted at random, if the config says so; next ones have shifts of their own."""
        most = self.dqn.config.random_shift
        if most == 0:
            return batches

        first, size = self.dqn.updates, self.dqn.config.batch_size
        # Each update has a generator of its own, so that shifts do not depend on how many batches are drawn together.
        generators = [np.random.default_rng([self._seed, SHIFTS, first + k]) for k in range(len(batches))]
        drawn = np.stack([rng.integers(-most, most + 1, (2, size, 2))[:, self._part] for rng in generators])
        shifts = self.pond.send(drawn)  # [updates, 2, B, 2]

        def shifted(batch: PondBatch | GoalBatch, shift: Tensor) -> PondBatch | GoalBatch:
            observation = random_shift(batch.observation, shift[0])
            if isinstance(batch, GoalBatch):
                return replace(batch, observation=observation)
            return replace(
                batch, observation=observation, next_observation=random_shift(batch.next_observation, shift[1])
            )

        return [shifted(batch, shift) for batch, shift in zip(batches, shifts, strict=True)]

    def _learn(self, batches: Sequence[Replayed]) -> Iterable[Mapping[str, Any]]:
        """Take one gradient step per batch; yield metrics of each. With several ranks all of them take every step together."""
        if self.ranks.all_reduce is None:
            return self.dqn.update_all(batches)
        return (self.dqn.update(batch, parts=self.ranks.count, all_reduce=self.ranks.all_reduce) for batch in batches)

    @property
    def usable(self) -> bool:
        """True if a checkpoint of its weights could be written."""
        return bool(self.dqn.online.data.abs().max() < MAX_WEIGHT)

    def diagnose(self) -> Learning:
        """Describe the newest update, which gave a number that is not finite. On a device it may have been an earlier one."""
        newest, updates = self._newest, self.dqn.updates
        batch = newest[-1][0] if newest else None
        names = ("observation", "next_observation", "action", "reward", "discount")
        return Learning(
            "dqn",
            self.dqn.config.learning_rate,
            f"update {updates:,} of the BigAgent"
            if self.dqn.device.type == "cpu"
            else f"the updates up to {updates:,}",
            as_numbers(newest[-1][1]) if newest else {},
            as_numbers(newest[-2][1]) if len(newest) > 1 else {},
            f"update {updates - 1:,}",
            {} if batch is None else {name: getattr(batch, name) for name in names if hasattr(batch, name)},
        )

    def state_dict(self) -> dict[str, Any]:
        actor = self._actor
        return {
            "dqn": self.dqn.state_dict(),
            "epsilon": self.epsilon.state_dict(),
            "sampler": self.sampler.bit_generator.state,
            "blocks": self.pond.order.state_dict(),
            "replayed": saved(self.replayed),
            "exploration": None if actor is None else actor.generators[0].get_state(),
            "memory": None if actor is None else actor.collector.state.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.dqn.load_state_dict(state["dqn"])
        self.epsilon.load_state_dict(state["epsilon"])
        self.sampler.bit_generator.state = state["sampler"]
        self.replayed.copy_(state["replayed"])
        if "blocks" in state:  # states of earlier versions have none
            self.pond.order.load_state_dict(state["blocks"])
        if self._actor is not None:
            self._actor.generators[0].set_state(state["exploration"])
            if state.get("memory") is not None:  # states of earlier versions have none
                self._actor.collector.state.copy_(state["memory"])

    def begin_episodes(self) -> None:
        """Forget its own episodes: its envs begin new ones."""
        if self._actor is not None:
            self._actor.begin_episodes()


@dataclass
class Players:
    """Agents and BigAgent of this rank, with their envs. Their names are those of the lake's streams and of the metrics.

    `networks`: of all agents; those of other ranks are copies as of the last `share_networks`.
    """

    spec: EnvSpec
    group: AgentGroup
    big: BigAgent | None
    names: list[str]  # of this rank's agents
    networks: list[QNetwork]
    vectors: dict[str, Vector] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)

    @property
    def policy(self) -> QNetwork:
        """The result of the run: the BigAgent's network, or that of the one agent if there is no BigAgent."""
        return self.group.networks[0] if self.big is None else self.big.dqn.mean

    def reset_vectors(self) -> None:
        for name, vector in self.vectors.items():
            vector.reset(self.seeds[name])

    def close(self) -> None:
        for vector in self.vectors.values():
            vector.close()


def choose_vectors(recipe: MixtureRecipe, plan: MixturePlan, run: Run, ranks: Ranks = ALONE) -> BackendChoice | None:
    """Return how the envs of each agent are stepped with `vector.backend=auto`; None if the config sets it."""
    if recipe.vector.backend != "auto":
        return None
    spec, device = make_spec(recipe.env, stacked=True), torch.device(recipe.device)
    with keeping_random_state():
        network = make_network(recipe, spec, 0).to(device)
    vectors = len(agents_of_rank(ranks, plan.agents)) + (plan.own_envs > 0)
    time_acting = time_network(network, spec, plan.envs_per_agent, device)
    return choose_vector(recipe, spec, VectorSizes(plan.envs_per_agent, vectors=vectors), run, ranks, time_acting)


def make_players(
    recipe: MixtureRecipe,
    plan: MixturePlan,
    lake: Lake | None,
    ranks: Ranks = ALONE,
    choice: BackendChoice | None = None,
) -> Players:
    """Build agents and BigAgent of this rank, with initial parameters and envs that are not reset yet.

    Every rank has the BigAgent; only rank 0 has its envs. `choice` is that of `choose_vectors`.
    """
    spec = make_spec(recipe.env, stacked=True)
    numbers = agents_of_rank(ranks, plan.agents)
    networks = [make_network(recipe, spec, number).to(recipe.device) for number in range(plan.agents)]
    vectors: dict[str, Vector] = {}
    seeds: dict[str, int] = {}

    def envs(name: str, number: int, count: int) -> Vector:
        own = None if choice is None else replace(choice, num_workers=min(choice.num_workers, count))
        vectors[name] = build_vector(
            recipe.env, recipe.vector, num_envs=count, groups=1, num_workers=1, stacked=True, choice=own
        )
        seeds[name] = seed_for(recipe.seed, ENVS, number)
        return vectors[name]

    try:
        group = AgentGroup(
            [networks[number] for number in numbers],
            [envs(agent_name(number), number, plan.envs_per_agent) for number in numbers],
            recipe.pqn,
            seeds=[seed_for(recipe.seed, EXPLORATION, number) for number in numbers],
            total_collections=plan.collections,
            device=recipe.device,
            names=[agent_name(number) for number in numbers],
            compiled=fast.pqn_updates if recipe.trainer.fast else None,
        )
        big = None
        if lake is not None:
            own = envs("big", plan.agents, plan.own_envs) if plan.own_envs and ranks.first else None
            big = BigAgent(recipe, plan, spec, lake, own, ranks)
    except BaseException:
        for vector in vectors.values():
            vector.close()
        raise
    return Players(spec, group, big, [agent_name(number) for number in numbers], networks, vectors, seeds)

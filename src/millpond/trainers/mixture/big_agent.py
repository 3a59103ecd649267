"""The BigAgent, which learns with DQN from the BigPond and in mode live acts, too.

With several ranks each has a copy of both. All draw the same batches, and each learns from its part of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.config import MixtureRecipe
from millpond.distributed import ALONE, Ranks
from millpond.envs.spec import EnvSpec
from millpond.learners import DQN, AgentGroup, Collection, Epsilon
from millpond.planner import MixturePlan
from millpond.replay import Lake, LakeError, Steps
from millpond.replay.pond import Pond, PondBatch
from millpond.replay.steps import join_lanes
from millpond.replay.transfer import fill, restore_rings
from millpond.trainers.mixture.networks import EXPLORATION, SAMPLER, make_network, seed_for
from millpond.vector import Vector

FILL = 4  # purpose of a seed, after those in `networks`


class BigPond:
    """The BigAgent's replay buffer: `fill(round)` or `add(steps)`, then `sample(rng)`.

    In mode rounds it is filled uniformly from the lake in each round. In mode live it is a ring that the steps of all
    agents are added to as they are collected. It is not in checkpoints: it can be restored from the lake.
    """

    def __init__(self, recipe: MixtureRecipe, plan: MixturePlan, lake: Lake, device: torch.device) -> None:
        self.recipe, self.plan, self.lake, self.device = recipe, plan, lake, device
        self.stack = recipe.env.frame_stack if recipe.env.frame_stack > 1 else None
        self.pond: Pond | None = None

    @property
    def empty(self) -> bool:
        return self.pond is None

    def fill(self, round_number: int) -> int:
        """Fill with transitions of the lake, drawn uniformly; return their number. A function of lake, seed and round."""
        n_step = self.recipe.dqn.n_step
        count = min(self.plan.big_pond_transitions, self.lake.transitions(self.stack, n_step))
        if count == 0:
            raise LakeError(f"{self.lake.folder} has no transitions with stack {self.stack or 1} and n_step {n_step}")
        self.pond = None  # free its memory before allocating the next
        records = min(self.plan.big_pond_rows, sum(self.lake.view(name).num_records for name in self.lake.streams))
        self.pond = Pond.init(self.lake.schema, records, device=self.device)
        rng = np.random.default_rng([self.recipe.seed, FILL, round_number])
        fill(self.pond, self.lake, count, rng, stack=self.stack, n_step=n_step)
        self.lake.release()
        return count

    def add(self, steps: list[Steps]) -> None:
        """Add one collection of every stream (mode live)."""
        self._ring().add(join_lanes(steps))

    def restore(self, streams: list[str], *, continue_episodes: bool) -> None:
        """Restore the ring from the lake (mode live)."""
        if all(name in self.lake.streams for name in streams):
            restore_rings(self._ring(), self.lake, streams, continue_episodes=continue_episodes)

    def _ring(self) -> Pond:
        if self.pond is None:
            lanes = self.plan.agents * self.plan.envs_per_agent + self.plan.own_envs
            self.pond = Pond.init(self.lake.schema, self.plan.big_pond_rows, lanes=lanes, device=self.device)
        return self.pond

    def sample(self, rng: np.random.Generator, part: slice = slice(None)) -> PondBatch:
        """Draw one batch and return the given part of it, with stacks of frames."""
        if self.pond is None:
            raise LakeError("the BigPond is empty: fill it or add to it before sampling")
        dqn = self.recipe.dqn
        return self.pond.sample(dqn.batch_size, rng, stack=self.stack, n_step=dqn.n_step, gamma=dqn.gamma, part=part)


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
        self.dqn = DQN(make_network(recipe, spec, plan.agents), recipe.dqn, device=device)
        self.epsilon = Epsilon(
            recipe.mixture.big_epsilon_reset_to, recipe.dqn.epsilon_end, over=recipe.dqn.epsilon_over
        )
        self.pond = BigPond(recipe, plan, lake, device)
        self.sampler = np.random.default_rng([recipe.seed, SAMPLER])
        self.replayed = torch.zeros(plan.agents + 1, dtype=torch.int64)
        own = recipe.dqn.batch_size // ranks.count
        self._part = slice(ranks.rank * own, (ranks.rank + 1) * own)  # of each batch
        self._actor: AgentGroup | None = None
        if vector is not None:
            self._actor = AgentGroup(
                [copy.deepcopy(self.dqn.network)],
                [vector],
                recipe.pqn.model_copy(update={"num_envs": vector.num_envs}),
                seeds=[seed_for(recipe.seed, EXPLORATION, plan.agents)],
                total_collections=plan.collections,
                device=device,
            )
            self._actor.epsilons = [self.epsilon]

    def collect(self) -> dict[str, Collection]:
        """Collect in its own envs, if this rank has them, with the current parameters; return the collection by name."""
        if self._actor is None:
            return {}
        since = self.epsilon.since_reset
        self._actor.networks[0].load_state_dict(self.dqn.network.state_dict())
        (collection,) = self._actor.collect()
        self.epsilon.since_reset = since  # it counts updates, not steps
        return {"big": collection}

    def update(self, count: int, record: Callable[[str, Tensor], None]) -> None:
        """Take `count` gradient steps, each on a new batch."""
        replayed = torch.zeros_like(self.replayed)
        for _ in range(count):
            batch = self.pond.sample(self.sampler, self._part)
            metrics = self.dqn.update(batch, parts=self.ranks.count, all_reduce=self.ranks.all_reduce)
            for name, value in metrics.items():
                record(f"big/{name}", value)
            self.epsilon.advance(1)
            replayed += torch.bincount(batch.column["agent"], minlength=len(replayed)).cpu()
        if self.ranks.all_reduce is not None:
            self.ranks.all_reduce(replayed)
        self.replayed += replayed

    def state_dict(self) -> dict[str, Any]:
        actor = self._actor
        return {
            "dqn": self.dqn.state_dict(),
            "epsilon": self.epsilon.state_dict(),
            "sampler": self.sampler.bit_generator.state,
            "replayed": self.replayed.clone(),
            "exploration": None if actor is None else actor.generators[0].get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.dqn.load_state_dict(state["dqn"])
        self.epsilon.load_state_dict(state["epsilon"])
        self.sampler.bit_generator.state = state["sampler"]
        self.replayed.copy_(state["replayed"])
        if self._actor is not None:
            self._actor.generators[0].set_state(state["exploration"])

"""The BigAgent: learns with DQN from the BigPond, and in mode live acts too.

Of several ranks each has it, and the same BigPond. All draw the same batches, and each learns from its part of them.
"""

from __future__ import annotations

import copy
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
from millpond.replay import Lake
from millpond.trainers.mixture.big_pond import BigPond
from millpond.trainers.mixture.networks import EXPLORATION, SAMPLER, make_network, seed_for
from millpond.vector import Vector


class BigAgent:
    """`pond` is what it learns from, `replayed` how many transitions of each agent (itself last) it learned from.

    `epsilon` begins again with each of its trainings and is counted in its updates.
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
        """Act in its own envs, where it has any here, with the parameters as they are; by its name."""
        if self._actor is None:
            return {}
        since = self.epsilon.since_reset
        self._actor.networks[0].load_state_dict(self.dqn.network.state_dict())
        (collection,) = self._actor.collect()
        self.epsilon.since_reset = since  # updates are counted, and acting is none
        return {"big": collection}

    def update(self, count: int, record: Callable[[str, Tensor], None]) -> None:
        """So many gradient steps, each on a batch of its own."""
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

"""The players of a mixture: agents with their envs, the BigAgent, and, in mode live, the BigAgent's own envs."""

from __future__ import annotations

from dataclasses import dataclass, field

from millpond.config.recipe import MixtureRecipe
from millpond.envs.spec import EnvSpec
from millpond.learners import AgentGroup, QNetwork
from millpond.planner import MixturePlan
from millpond.replay import Lake
from millpond.trainers.mixture_big_agent import BigAgent
from millpond.trainers.mixture_networks import ENVS, EXPLORATION, make_network, seed_for
from millpond.trainers.worlds import build_vector, make_spec
from millpond.vector import Vector


@dataclass
class Players:
    """Who plays: `names` are those of the lake's streams and of the metrics."""

    spec: EnvSpec
    group: AgentGroup
    big: BigAgent | None
    vectors: dict[str, Vector] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)

    @property
    def agent_names(self) -> list[str]:
        return [f"agent{number}" for number in range(self.group.agents)]

    @property
    def policy(self) -> QNetwork:
        """Whom the run is for: the BigAgent, or the one agent where there is none."""
        return self.group.networks[0] if self.big is None else self.big.dqn.network

    def reset_vectors(self) -> None:
        for name, vector in self.vectors.items():
            vector.reset(self.seeds[name])

    def close(self) -> None:
        for vector in self.vectors.values():
            vector.close()


def make_players(recipe: MixtureRecipe, plan: MixturePlan, lake: Lake | None) -> Players:
    """Everyone of a run, with fresh parameters and envs that are not reset yet."""
    spec = make_spec(recipe.env, stacked=True)
    vectors: dict[str, Vector] = {}
    seeds: dict[str, int] = {}

    def envs(name: str, number: int, count: int) -> Vector:
        vectors[name] = build_vector(recipe.env, recipe.vector, num_envs=count, groups=1, num_workers=1, stacked=True)
        seeds[name] = seed_for(recipe.seed, ENVS, number)
        return vectors[name]

    try:
        group = AgentGroup(
            [make_network(recipe, spec, number) for number in range(plan.agents)],
            [envs(f"agent{number}", number, plan.envs_per_agent) for number in range(plan.agents)],
            recipe.pqn,
            seeds=[seed_for(recipe.seed, EXPLORATION, number) for number in range(plan.agents)],
            total_collections=plan.collections,
            device=recipe.device,
        )
        big = None
        if lake is not None:
            own = envs("big", plan.agents, plan.own_envs) if plan.own_envs else None
            big = BigAgent(recipe, plan, spec, lake, own)
    except BaseException:
        for vector in vectors.values():
            vector.close()
        raise
    return Players(spec, group, big, vectors, seeds)

"""Build the players of a mixture and their ponds: agents with their envs, and the BigAgent, in mode live with envs, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from millpond.config import MixtureRecipe
from millpond.distributed import ALONE, Ranks
from millpond.envs.spec import EnvSpec
from millpond.learners import AgentGroup, QNetwork
from millpond.planner import MixturePlan
from millpond.replay import Lake, Schema
from millpond.trainers.common.envs import build_vector, make_spec
from millpond.trainers.mixture.big_agent import BigAgent
from millpond.trainers.mixture.networks import ENVS, EXPLORATION, make_network, seed_for
from millpond.trainers.mixture.ponds import Ponds, StreamConfig
from millpond.trainers.mixture.ranks import agents_of_rank
from millpond.vector import Vector


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
        return self.group.networks[0] if self.big is None else self.big.dqn.network

    def reset_vectors(self) -> None:
        for name, vector in self.vectors.items():
            vector.reset(self.seeds[name])

    def close(self) -> None:
        for vector in self.vectors.values():
            vector.close()


def make_players(recipe: MixtureRecipe, plan: MixturePlan, lake: Lake | None, ranks: Ranks = ALONE) -> Players:
    """Build agents and BigAgent of this rank, with initial parameters and envs that are not reset yet.

    Every rank has the BigAgent; only rank 0 has its envs.
    """
    spec = make_spec(recipe.env, stacked=True)
    numbers = agents_of_rank(ranks, plan.agents)
    networks = [make_network(recipe, spec, number).to(recipe.device) for number in range(plan.agents)]
    vectors: dict[str, Vector] = {}
    seeds: dict[str, int] = {}

    def envs(name: str, number: int, count: int) -> Vector:
        vectors[name] = build_vector(recipe.env, recipe.vector, num_envs=count, groups=1, num_workers=1, stacked=True)
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


def make_ponds(recipe: MixtureRecipe, plan: MixturePlan, folder: Path, ranks: Ranks = ALONE) -> Ponds | None:
    """Build the ponds of this rank's players and open the lake; None in mode single, which replays nothing."""
    if plan.mode == "single":
        return None
    spec = make_spec(recipe.env, stacked=False)
    lake = Lake.create(folder, Schema.from_spec(spec), max_bytes=recipe.lake.max_bytes)
    agents = agents_of_rank(ranks, plan.agents)
    streams = [StreamConfig(agent_name(number), plan.envs_per_agent, plan.pond_rows) for number in agents]
    if plan.own_envs and ranks.first:
        streams.append(StreamConfig("big", plan.own_envs, plan.own_pond_rows))
    return Ponds(
        lake,
        streams,
        num_steps=recipe.pqn.num_steps,
        acknowledge_every=recipe.lake.acknowledge_every,
        collections_per_pour=plan.collections_per_pour,
        device=torch.device(recipe.device),
        savable=spec.savable,
        ranks=ranks,
    )


def agent_name(number: int) -> str:
    return f"agent{number}"

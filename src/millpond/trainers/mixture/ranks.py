"""A mixture over several ranks: which rank has which agents, and what ranks exchange.

Agent k is the same on any rank: its seeds follow from its number. Data about agents is exchanged by name.
With one rank every function here returns its input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from millpond.config import MixtureRecipe
from millpond.distributed import RankError, Ranks
from millpond.learners import DQN, Collection, QNetwork
from millpond.loop import Loop
from millpond.replay import Lake, Steps
from millpond.store import Run, RunError, Stateful, load_weights
from millpond.store.checkpoint import tree_from_bytes, tree_to_bytes
from millpond.trainers.common.envs import rank_device, rank_vector
from millpond.trainers.common.play import Evaluation


def recipe_of_rank(recipe: MixtureRecipe, ranks: Ranks) -> MixtureRecipe:
    """Return the recipe with the device and the threads of this rank."""
    place = ranks.place
    if ranks.alone:
        return recipe
    own = {"device": str(rank_device(recipe.device, place)), "vector": rank_vector(recipe.vector, place)}
    return recipe.model_copy(update=own)


def agents_of_rank(ranks: Ranks, agents: int) -> range:
    """Return the numbers of this rank's agents: an equal share, consecutive."""
    share = agents // ranks.count
    return range(ranks.rank * share, (ranks.rank + 1) * share)


def agent_name(number: int) -> str:
    return f"agent{number}"


def share_networks(ranks: Ranks, networks: Sequence[QNetwork]) -> None:
    """Update the copies of other ranks' networks."""
    if ranks.alone:
        return
    own = {number: dict(networks[number].state_dict()) for number in agents_of_rank(ranks, len(networks))}
    for data in ranks.all_gather_bytes(tree_to_bytes(own)):
        for number, weights in tree_from_bytes(data, "networks of a rank").items():
            networks[number].load_state_dict(weights)


def start_from(ranks: Ranks, networks: Sequence[QNetwork], big: DQN | None, other: Run | None) -> None:
    """Start agents and BigAgent from another mixture's BigAgent, or from its one agent; rank 0 reads the weights.

    Without another run agents keep their initial weights, and all ranks take the BigAgent of rank 0.
    """
    first = networks[0]

    def read() -> bool:
        if other is None:
            return False
        saved = other.checkpoint()
        weights = saved.weights
        of_agent = weights.get("big", weights.get("agent0"))
        if of_agent is None:
            raise RunError(f"run {other.name!r} has no weights of a BigAgent or agent; it has {sorted(weights)}")
        load_weights({"network": first}, {"network": of_agent}, f"run {other.name!r}, checkpoint {saved.path}")
        return True

    if ranks.run_on_first(read):
        ranks.broadcast_tensors(first.state_dict().values())
        for network in networks[1:]:
            network.load_state_dict(first.state_dict())
        if big is not None:
            big.start_from(first)
    if big is not None:
        ranks.broadcast_tensors([big.online.data, big.target_parameters.data, *big.mean.state_dict().values()])


# -- what ranks exchange


def gather_by_name(ranks: Ranks, own: dict[str, Any]) -> dict[str, Any]:
    """Merge the values that each rank has of its agents, by name. Scalar tensors become numbers."""
    if ranks.alone:
        return own
    return {name: value for of_rank in ranks.all_gather(_plain(own)) for name, value in of_rank.items()}


def collection_stats(collection: Collection) -> dict[str, Any]:
    """Return the numbers of a collection that are recorded."""
    episodes = [(episode.returns[0], episode.length, episode.info) for episode in collection.episodes]
    reward, terminated = (torch.from_numpy(collection.host[name]) for name in ("reward", "terminated"))
    return {
        "env_steps": collection.env_steps,
        "reward": reward.mean(),
        "reward_std": reward.std(correction=0),
        "termination_rate": terminated.float().mean(),
        "episodes": episodes,
    }


def record_stats(loop: Loop, name: str, stats: Mapping[str, Any]) -> None:
    """Record the numbers of one agent's collection, for this agent and for all."""
    loop.record("reward_per_agent_step", stats["reward"], weight=stats["env_steps"])
    for key in ("reward_std", "termination_rate"):
        loop.record(key, stats[key], weight=stats["env_steps"])
    for episode_return, length, info in stats["episodes"]:
        for prefix in ("", f"{name}/"):
            loop.record(f"{prefix}episode_return", episode_return)
            loop.record(f"{prefix}episode_length", float(length))
        for key, value in info.items():
            loop.record(f"env/{key}", float(value))


def gather_steps(ranks: Ranks, own: Mapping[str, Steps]) -> list[Steps]:
    """Return the steps of all streams, the BigAgent's last."""
    if ranks.alone:
        return list(own.values())
    schema = next(iter(own.values())).valid_for  # all ranks write one lake: what one has validated is valid for all
    trees = {name: {**vars(steps), "valid_for": None} for name, steps in own.items()}
    steps_by_name = {
        name: Steps(**{**tree, "valid_for": schema})
        for data in ranks.all_gather_bytes(tree_to_bytes(trees))
        for name, tree in tree_from_bytes(data, "steps of a rank").items()
    }
    return [steps_by_name[name] for name in sorted(steps_by_name, key=lambda name: name == "big")]


def evaluate_on_first(ranks: Ranks, evaluate: Callable[[], Evaluation]) -> Evaluation:
    """Evaluate on rank 0; return the result on all ranks."""
    if ranks.alone:
        return evaluate()
    fields = ranks.run_on_first(lambda: asdict(evaluate()))
    returns = tuple(map(tuple, fields["returns_by_agent"]))
    lengths, infos = tuple(fields["lengths"]), tuple(fields["infos"])
    return Evaluation(returns, lengths, infos, deterministic=fields["deterministic"])


def refresh_together(ranks: Ranks, lake: Lake) -> None:
    """Refresh the lake after all ranks have poured and before any of them writes again; all must see the same."""
    ranks.barrier()
    lake.refresh()
    seen = ranks.all_gather(
        {name: [position, lake.view(name).num_records] for name, position in lake.positions().items()}
    )
    if any(other != seen[0] for other in seen):
        raise RankError(
            f"the ranks do not see the same lake at {lake.folder} (streams: {'; '.join(map(str, seen))}): run_dir must "
            f"be on a disk that all ranks share"
        )


class StateGroup:
    """Several parts of a checkpoint as one, for `PerRank`: their names differ between ranks."""

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = parts

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(state[name])


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return float(value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value

"""Measures of a mixture besides its losses: evaluation, recovery after a reset, diversity; and the final summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from millpond.config import MixtureRecipe
from millpond.distributed import ALONE, Ranks
from millpond.formatting import figures, number, plural
from millpond.learners import Collection, QNetwork
from millpond.planner import MixturePlan
from millpond.record import Counters
from millpond.store.checkpoint import tree_from_bytes, tree_to_bytes
from millpond.trainers.common.envs import evaluation_vector
from millpond.trainers.common.play import Evaluation, evaluate
from millpond.vector import Vector

DIVERSITY_OBSERVATIONS = 256


class Evaluator:
    """Plays complete greedy episodes, always on the same seeds; its envs are reused from one evaluation to the next."""

    def __init__(self, recipe: MixtureRecipe) -> None:
        self.recipe = recipe
        self._vector: Vector | None = None

    def __call__(self, network: QNetwork) -> Evaluation:
        episodes = self.recipe.eval.episodes
        if self._vector is None:
            self._vector = evaluation_vector(self.recipe.env, self.recipe.vector, episodes)
        device = torch.device(self.recipe.device)
        return evaluate(
            network, self._vector, episodes=episodes, seed=self.recipe.eval.seed, device=device, deterministic=True
        )

    def due(self, round_number: int, rounds: int) -> bool:
        """Return True if this mixture round is evaluated: according to `eval.interval`, and always in the last one."""
        interval = self.recipe.eval.interval
        return round_number + 1 == rounds or (interval is not None and (round_number + 1) % interval == 0)

    def close(self) -> None:
        if self._vector is not None:
            self._vector.close()


class Recovery:
    """The time after a reset until the agents are as good as before it, in updates of one agent.

    `recovered` is 0 if they were not before the next reset; `recovery` is then the time between the resets.
    """

    def __init__(self) -> None:
        self.before: float | None = None  # mean return of the agents in their last evaluation
        self.level: float | None = None  # return to be reached again; None: reached
        self.reset_at = 0

    def reset(self, after: float, updates: int) -> dict[str, float]:
        """Note a reset to agents with mean return `after`; return metrics."""
        assert self.before is not None
        self.level, self.reset_at = self.before, updates
        return {"reset/before": self.before, "reset/after": after, **self.check(after, updates)}

    def check(self, now: float, updates: int, *, last: bool = False) -> dict[str, float]:
        """Note an evaluation of the agents; return metrics if they have recovered. `last`: the next reset follows."""
        self.before = now
        if self.level is None or (now < self.level and not last):
            return {}
        recovered = now >= self.level
        self.level = None
        return {"recovery": float(updates - self.reset_at), "recovered": float(recovered)}

    def state_dict(self) -> dict[str, Any]:
        return {"before": self.before, "level": self.level, "reset_at": self.reset_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before, self.level, self.reset_at = state["before"], state["level"], int(state["reset_at"])


class Diversity:
    """Return the share of actions in which two agents differ: the mean over pairs, on a fixed set of observations.

    These are taken from the first collections, equally many of every agent. Arguments are those of this rank's agents.
    Agents with memory see each as the first of an episode.
    """

    def __init__(self, device: str, agents: int, ranks: Ranks = ALONE) -> None:
        self.device, self.agents, self.ranks = torch.device(device), agents, ranks
        self.observation: Tensor | None = None

    def fix_observations(self, collections: Sequence[Collection]) -> None:
        """Take the observations from the first collections; later calls do nothing."""
        if self.observation is None:
            share = max(1, DIVERSITY_OBSERVATIONS // self.agents)
            picked = []
            for collection in collections:
                flat = torch.from_numpy(collection.host["observation"]).flatten(0, 1)
                picked.append(flat[torch.linspace(0, len(flat) - 1, min(share, len(flat))).long()])
            of_ranks = self.ranks.all_gather_bytes(tree_to_bytes(torch.cat(picked)))
            self.observation = torch.cat([tree_from_bytes(data, "observations") for data in of_ranks]).to(self.device)

    @torch.inference_mode()
    def __call__(self, networks: Sequence[QNetwork]) -> float:
        assert self.observation is not None
        if self.agents < 2:
            return 0.0
        own = torch.stack([network(self.observation).argmax(-1) for network in networks])
        actions = torch.cat([torch.tensor(of_rank) for of_rank in self.ranks.all_gather(own.tolist())])
        differ = torch.stack([(a != b).float().mean() for a, b in combinations(actions, 2)])
        return float(differ.mean())

    def state_dict(self) -> dict[str, Any]:
        return {"observation": self.observation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        observation = state["observation"]
        self.observation = None if observation is None else observation.to(self.device)


def summarise_mixture(
    plan: MixturePlan, counters: Counters, shares: Mapping[str, float], evaluation: Evaluation | None
) -> list[str]:
    """Return the final summary: evaluation, frames, and time by phase."""
    lines: list[str] = []
    if evaluation is not None:
        low, high = evaluation.interval()
        who = "the agent" if plan.mode == "single" else "the BigAgent"
        lines += [
            f"Return, mean of {plural(len(evaluation.lengths), 'greedy episode')} on separate seeds",
            *figures([(who, f"{evaluation.mean:.3f}", f"95% interval {low:.3f} to {high:.3f}")]),
            "",
        ]
    rate = counters.frames / max(counters.seconds, 1e-9)
    spent = [(name, f"{share:.0%}", "") for name, share in shares.items() if share >= 0.005]
    lines += [
        f"{number(counters.frames)} frames in {plural(plan.rounds, 'round')}, {plural(counters.updates, 'update')}",
        f"Time: {number(round(rate))} frames per second",
        *figures(spent),
    ]
    return lines

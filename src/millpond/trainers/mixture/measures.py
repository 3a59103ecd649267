"""What a mixture is measured by besides its losses: evaluations around a reset, recovery, and diversity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from millpond.config import MixtureRecipe
from millpond.distributed import ALONE, Ranks
from millpond.learners import Collection, QNetwork
from millpond.planner import MixturePlan
from millpond.planner.lines import figures, number
from millpond.plurals import plural
from millpond.record import Counters
from millpond.store.tree import tree_from_bytes, tree_to_bytes
from millpond.trainers.common.envs import evaluation_vector
from millpond.trainers.common.evaluate import Evaluation, evaluate
from millpond.vector import Vector

FIXED_BATCH = 256


class Judge:
    """Plays whole greedy episodes, always on the same seeds, in envs that are kept from one evaluation to the next."""

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
        """Whether this round is evaluated: as `eval.interval` says, and the last one always."""
        interval = self.recipe.eval.interval
        return round_number + 1 == rounds or (interval is not None and (round_number + 1) % interval == 0)

    def close(self) -> None:
        if self._vector is not None:
            self._vector.close()


class Recovery:
    """How long after a reset the agents are back at their level of before it, in updates of one agent.

    `recovered` is 0 where the next reset came first; `recovery` then is how long was waited in vain.
    """

    def __init__(self) -> None:
        self.before: float | None = None  # how good the agents were when they were last evaluated
        self.level: float | None = None  # to be reached again; None: nothing to wait for
        self.reset_at = 0

    def reset(self, after: float, updates: int) -> dict[str, float]:
        """A reset to agents that are `after` good."""
        assert self.before is not None
        self.level, self.reset_at = self.before, updates
        return {"reset/before": self.before, "reset/after": after, **self.check(after, updates)}

    def check(self, now: float, updates: int, *, last: bool = False) -> dict[str, float]:
        """An evaluation of the agents; `last`: the next reset follows."""
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
    """How often two agents choose differently: the mean over pairs, on observations fixed once and for all.

    They are taken from the first collections, of every agent as many. `fix` and calls are given what this rank has.
    """

    def __init__(self, device: str, agents: int, ranks: Ranks = ALONE) -> None:
        self.device, self.agents, self.ranks = torch.device(device), agents, ranks
        self.observation: Tensor | None = None

    def fix(self, collections: Sequence[Collection]) -> None:
        if self.observation is None:
            share = max(1, FIXED_BATCH // self.agents)
            picked = []
            for collection in collections:
                flat = collection.observation.flatten(0, 1)
                picked.append(flat[torch.linspace(0, len(flat) - 1, min(share, len(flat))).long()])
            told = self.ranks.all_gather_bytes(tree_to_bytes(torch.cat(picked)))
            self.observation = torch.cat([tree_from_bytes(data, "observations") for data in told]).to(self.device)

    @torch.inference_mode()
    def __call__(self, networks: Sequence[QNetwork]) -> float:
        assert self.observation is not None
        if self.agents < 2:
            return 0.0
        chosen = torch.stack([network(self.observation).argmax(-1) for network in networks])
        actions = torch.cat([torch.tensor(told) for told in self.ranks.all_gather(chosen.tolist())])
        differ = torch.stack([(a != b).float().mean() for a, b in combinations(actions, 2)])
        return float(differ.mean())

    def state_dict(self) -> dict[str, Any]:
        return {"observation": self.observation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        found = state["observation"]
        self.observation = None if found is None else found.to(self.device)


# -- What a person wants to know when a mixture is over.


def summarise_mixture(
    plan: MixturePlan, counters: Counters, shares: Mapping[str, float], evaluation: Evaluation | None
) -> list[str]:
    """Return, frames, and where the time went."""
    lines: list[str] = []
    if evaluation is not None:
        low, high = evaluation.interval()
        who = "the agent" if plan.mode == "single" else "the BigAgent"
        lines += [
            f"Return, mean of {plural(len(evaluation.lengths), 'greedy episode')} on seeds of their own",
            *figures([(who, f"{evaluation.mean:.3f}", f"95% interval {low:.3f} to {high:.3f}")]),
            "",
        ]
    rate = counters.frames / max(counters.seconds, 1e-9)
    spent = [(name, f"{share:.0%}", "") for name, share in shares.items() if share >= 0.005]
    lines += [
        f"{number(counters.frames)} frames in {plural(plan.rounds, 'round')}, {plural(counters.updates, 'update')}",
        f"Time: {number(round(rate))} frames a second",
        *figures(spent),
    ]
    return lines

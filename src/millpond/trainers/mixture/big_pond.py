"""The BigPond: what the BigAgent learns from.

Between rounds it is filled uniformly from the lake. In mode live it is a ring that everybody's steps reach as they
are taken. Neither is in a checkpoint: both can be made again from the lake.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from millpond.config import MixtureRecipe
from millpond.planner import MixturePlan
from millpond.replay import Lake, LakeError, Steps
from millpond.replay.pond import Pond, PondBatch
from millpond.replay.pour import fill
from millpond.replay.rings import restore_rings

FILL = 4  # names the generators of fillings among all of a run's


class BigPond:
    """`fill(round)` or `add(steps)`, then `sample(rng)`."""

    def __init__(self, recipe: MixtureRecipe, plan: MixturePlan, lake: Lake, device: torch.device) -> None:
        self.recipe, self.plan, self.lake, self.device = recipe, plan, lake, device
        self.stack = recipe.env.frame_stack if recipe.env.frame_stack > 1 else None
        self.pond: Pond | None = None

    @property
    def empty(self) -> bool:
        return self.pond is None

    def fill(self, round_number: int) -> int:
        """So many transitions of the lake as it is now, uniformly; a function of the lake, the seed and the round."""
        n_step = self.recipe.dqn.n_step
        there = self.lake.transitions(self.stack, n_step)
        count = min(self.plan.big_pond_transitions, there)
        if count == 0:
            raise LakeError(f"{self.lake.folder} has no transitions with stack {self.stack or 1} and n_step {n_step}")
        self.pond = None  # its memory is given back before the next is taken
        rows = min(self.plan.big_pond_rows, sum(self.lake.view(name).rows for name in self.lake.streams))
        self.pond = Pond.init(self.lake.schema, rows, device=self.device)
        rng = np.random.default_rng([self.recipe.seed, FILL, round_number])
        fill(self.pond, self.lake, count, rng, stack=self.stack, n_step=n_step)
        self.lake.release()
        return count

    def add(self, steps: list[Steps]) -> None:
        """Mode live: one collection of every stream, lane beside lane."""
        self._ring().add(_side_by_side(steps))

    def restore(self, streams: list[str], *, continue_episodes: bool) -> None:
        """Mode live: the ring as it was, from the lake."""
        if all(name in self.lake.streams for name in streams):
            restore_rings(self._ring(), self.lake, streams, continue_episodes=continue_episodes)

    def _ring(self) -> Pond:
        if self.pond is None:
            lanes = self.plan.agents * self.plan.envs_per_agent + self.plan.own_envs
            self.pond = Pond.init(self.lake.schema, self.plan.big_pond_rows, lanes=lanes, device=self.device)
        return self.pond

    def sample(self, rng: np.random.Generator, part: slice = slice(None)) -> PondBatch:
        """One batch, or a part of it; stacks of frames are put together here."""
        if self.pond is None:
            raise LakeError("the BigPond is empty: fill it, or add to it, before it is sampled")
        dqn = self.recipe.dqn
        return self.pond.sample(dqn.batch_size, rng, stack=self.stack, n_step=dqn.n_step, gamma=dqn.gamma, part=part)


def _side_by_side(parts: list[Steps]) -> Steps:
    """Streams [T, L] as one [T, sum of L]."""

    def joined(name: str) -> Any:
        wide = [np.asarray(getattr(part, name)) for part in parts]
        if wide[0].ndim < 2:  # one value for all of a stream's steps
            wide = [np.broadcast_to(value, part.reward.shape) for value, part in zip(wide, parts, strict=True)]
        return np.concatenate(wide, axis=1)

    # Final observations are ordered by step, then lane, within each part; the same order is wanted over all parts.
    order = np.argsort(np.concatenate([np.nonzero(part.has_final)[0] for part in parts]), kind="stable")
    return Steps(
        observation=joined("observation"),
        action=joined("action"),
        reward=joined("reward"),
        terminated=joined("terminated"),
        truncated=joined("truncated"),
        has_final=joined("has_final"),
        final_observation=np.concatenate([part.final_observation for part in parts])[order],
        agent=joined("agent"),
        round=joined("round"),
        policy_version=joined("policy_version"),
        epsilon=joined("epsilon"),
    )


def spread(updates: int, collections: int, index: int) -> int:
    """Of so many updates, those that follow collection `index`: as evenly as whole numbers go."""
    return math.floor((index + 1) * updates / collections) - math.floor(index * updates / collections)
